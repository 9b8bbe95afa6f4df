"""A host with several addresses is reached by the one that answers first."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from support.eventually import wait_until_async
from support.services.raw_server import RawConnection, RawServer, answering, deaf, direct

from antiphon_worker.providers.http import addresses
from antiphon_worker.providers.http.addresses import reached

pytestmark = pytest.mark.usefixtures("any_loop")
HI = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nHi"


@pytest.fixture
def found(monkeypatch) -> list[Any]:
    """The addresses of every host."""
    found: list[Any] = []

    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return list(found)

    class Loop:
        """The running loop, but for its addresses."""

        def __getattr__(self, name: str) -> Any:
            return getaddrinfo if name == "getaddrinfo" else getattr(asyncio.get_running_loop(), name)

    names = {name: getattr(asyncio, name) for name in ("create_task", "wait", "gather", "FIRST_COMPLETED")}
    monkeypatch.setattr(addresses, "asyncio", SimpleNamespace(**names, get_running_loop=Loop))
    return found


@pytest.fixture
def made(monkeypatch) -> list[socket.socket]:
    """The sockets that were made."""
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(addresses, "socket", SimpleNamespace(socket=Noted, SOCK_STREAM=socket.SOCK_STREAM))
    return made


def place(port: int, family: int = socket.AF_INET) -> Any:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))


async def test_an_address_that_does_not_answer_is_passed_over_after_its_head_start(found, monkeypatch):
    monkeypatch.setattr(addresses, "HEAD_START_SECONDS", 0.01)
    async with RawServer(answering(HI)) as server, direct() as client:
        with deaf() as port:
            found += [place(port), place(server.port)]
            assert (await client.post("http://service.example", content=b"{}")).text == "Hi"


async def test_an_address_that_refuses_is_passed_over_at_once(found, monkeypatch, unused_port):
    monkeypatch.setattr(addresses, "HEAD_START_SECONDS", 1000)
    async with RawServer(answering(HI)) as server, direct() as client:
        found += [place(unused_port), place(server.port)]
        assert (await client.post("http://service.example", content=b"{}")).text == "Hi"


async def test_the_first_address_is_taken_where_it_answers(found, monkeypatch):
    monkeypatch.setattr(addresses, "HEAD_START_SECONDS", 1000)
    async with RawServer(answering(HI)) as one, RawServer(answering(HI)) as other, direct() as client:
        found += [place(one.port), place(other.port)]
        await client.post("http://service.example", content=b"{}")
        assert (len(one.connections), len(other.connections)) == (1, 0)


async def test_where_no_address_answers_the_first_error_is_told(found, monkeypatch):
    async def refused(address: Any) -> socket.socket:
        raise ConnectionRefusedError(f"port {address[4][1]}")

    monkeypatch.setattr(addresses, "_connected", refused)
    found += [place(1), place(2), place(3)]
    with pytest.raises(ConnectionRefusedError, match="port 1"):
        await reached("service.example", 80)


async def test_giving_up_closes_what_was_tried(found, made, monkeypatch):
    monkeypatch.setattr(addresses, "HEAD_START_SECONDS", 0.0)
    with deaf() as port, deaf() as other:
        found += [place(port), place(other)]
        reaching = asyncio.create_task(reached("service.example", 80))
        await wait_until_async(lambda: len(made) == 2)
        reaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reaching
        assert [one.fileno() for one in made] == [-1, -1]


async def test_of_two_that_answer_at_once_one_is_closed(found, made, monkeypatch):
    async def wait(tries: Any, **_: Any) -> Any:
        return (set(), tries) if len(tries) == 1 else await asyncio.wait(tries)

    monkeypatch.setattr(addresses.asyncio, "wait", wait)

    async def play(connection: RawConnection) -> None:
        await connection.closed()

    async with RawServer(play) as first, RawServer(play) as second:
        found += [place(first.port), place(second.port)]
        winner = await reached("service.example", 80)
        assert [one.fileno() for one in made if one is not winner] == [-1]
        winner.close()


def test_addresses_of_both_kinds_are_tried_in_turn():
    six, four = ([(kind, number) for number in range(3)] for kind in (10, 2))
    assert addresses._alternating([*six[:2], *four]) == [six[0], four[0], six[1], four[1], four[2]]  # type: ignore[list-item]
