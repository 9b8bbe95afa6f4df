"""Notifications about single turns: where they are sent, and how many at once."""

import asyncio
import logging
import socket

import pytest
from support.eventually import wait_until_async
from support.receiver import Receiver

from antiphon.wire.pushes import Push, set_push
from antiphon_worker import pushes
from antiphon_worker.providers.http import addresses
from antiphon_worker.providers.http.posting import Poster
from antiphon_worker.pushes import AT_ONCE, Pusher, endpoint_of

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:pushes")]

URL = "https://agents.example.com/hook"
PUBLIC, INSIDE = "93.184.215.14", "127.0.0.1"


async def ended(cell, number: int, *urls: str, private: bool = False) -> None:
    """A turn that has ended, with a push to each of these URLs."""
    turn = await cell.started(f"t{number}", f"s{number}")
    for n, url in enumerate(urls):
        await set_push(
            cell, turn.turn_id, turn.session_id, Push(f"p{n}", "me", url, ["turn_finished"], private=private)
        )
    await cell.end(turn)


async def sent(cell) -> None:
    """Send what is due."""
    poster = Poster()
    pusher = Pusher(cell, lambda: poster, lambda: None)
    await pusher.take_all()
    await asyncio.gather(*pusher.tasks)
    await poster.aclose()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (URL, "https://AGENTS.Example.com:443/other?x=1", True),
        (URL, "https://agents.example.com./hook", True),
        (URL, "HTTPS://agents.example.com:/hook", True),
        ("http://agents.example.com/", "http://agents.example.com:80/", True),
        ("https://[2606:4700::1111]/", "https://[2606:4700:0:0:0:0:0:1111]:443/", True),
        (URL, "https://agents.example.com:8443/hook", False),
        (URL, "https://others.example.com/hook", False),
        ("https://agents.example.com:80/", "http://agents.example.com/", True),
    ],
)  # fmt: skip
def test_an_endpoint_is_the_same_however_it_is_written(one, other, same):
    assert (endpoint_of(one) == endpoint_of(other)) is same


async def test_few_are_sent_at_once_to_an_endpoint_however_it_is_written(cell, monkeypatch):
    settle, settled = pushes.settle_push, []

    async def settling(cell, due, *rest):
        settled.append(due)
        await settle(cell, due, *rest)

    monkeypatch.setattr(pushes, "settle_push", settling)
    monkeypatch.setattr(pushes, "PATIENCE_SECONDS", 0.01)
    with Receiver() as receiver:
        receiver.hold()
        names = [
            f"http://{name}:{receiver.port}/" for name in ("localhost", "LOCALHOST", "Localhost", "localHOST")
        ]
        for number in range(4):
            await ended(cell, number, *[names[number]] * 6, private=True)
        sending = asyncio.create_task(sent(cell))
        await wait_until_async(lambda: len(settled) == 24 - AT_ONCE, 20)
        receiver.release()
        await sending
    assert len(receiver.received) == AT_ONCE


async def test_the_address_that_was_checked_is_the_one_that_is_used(cell, monkeypatch, caplog):
    """A name may lead to another address each time that it is looked up."""
    found, reached = [PUBLIC, INSIDE], []

    async def getaddrinfo(self, host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (found.pop(0), port))]

    async def connected(address):
        reached.append(address[4][0])
        raise ConnectionRefusedError

    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(addresses, "_connected", connected)
    await ended(cell, 1, URL)
    await sent(cell)
    assert (reached, found) == ([PUBLIC], [INSIDE]), "it is looked up once"
    await cell.wait(20_000)
    with caplog.at_level(logging.WARNING, "antiphon.webhooks"):
        await sent(cell)
    assert (reached, found) == ([PUBLIC], [])
    assert "no connection: the host has no public address" in caplog.text


async def test_one_that_cannot_be_read_is_tried_again(cell, caplog):
    await ended(cell, 1, URL)
    [name] = [one for one in await cell.redis.hkeys("ant:turn:t1") if one.startswith(b"push:")]
    since, _ = (await cell.redis.hget("ant:turn:t1", name)).split(b" ", 1)
    await cell.redis.hset("ant:turn:t1", name, since + b" {")
    with caplog.at_level(logging.WARNING, "antiphon.webhooks"):
        await sent(cell)
    assert "a notification about turn t1 cannot be read" in caplog.text
    assert await cell.redis.zcard("ant:pushes") == 1
