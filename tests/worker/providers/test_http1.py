"""One connection: whatever a service sends, and however it is cut, is one answer, or one error."""

import asyncio
import gc
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import pytest
from support.eventually import patience, wait_until_async
from support.services.conversation import KINDS, answer, body, hear, result, serve
from support.services.raw_server import RawConnection, RawServer, answering, begun, chunked, direct
from support.services.wire_server import Reply, WireServer

from antiphon.errors import ProviderStreamBroken, ProviderUnreachable
from antiphon_worker.providers.http import http1
from antiphon_worker.providers.http.http1 import HIGH_WATER_BYTES, Exchange

pytestmark = pytest.mark.usefixtures("any_loop")
OK = b"HTTP/1.1 200 OK\r\n"


async def answered(*pieces: bytes, then_close: bool = False) -> httpx2.Response:
    """What a client reads of an answer."""
    async with RawServer(answering(*pieces, then_close=then_close)) as server, direct() as client:
        return await client.post(server.url, content=b"{}")


def split_at_every_byte(whole: bytes) -> list[tuple[bytes, bytes]]:
    return [(whole[:index], whole[index:]) for index in range(1, len(whole))]


async def test_an_answer_may_be_cut_anywhere():
    whole = chunked(b"Hello", b" world", head=b"x-one: 1\r\nX-Two: 2\r\n")
    cuts = iter(split_at_every_byte(whole))

    async def play(connection: RawConnection) -> None:
        for pieces in cuts:
            await connection.request()
            await connection.send(*pieces)

    async with RawServer(play) as server, direct() as client:
        for _ in range(len(whole) - 1):
            response = await client.post(server.url, content=b"{}")
            assert (response.status_code, response.reason_phrase, response.text) == (200, "OK", "Hello world")
            assert (response.headers["x-one"], response.headers["x-two"]) == ("1", "2")
        assert len(server.connections) == 1


async def test_an_answer_may_come_byte_by_byte():
    whole = chunked(b"Hello", b" world", head=b"x-one: 1\r\n")
    response = await answered(*(whole[index : index + 1] for index in range(len(whole))))
    assert (response.text, response.headers["x-one"]) == ("Hello world", "1")


@pytest.mark.parametrize(
    ("head", "name", "values"),
    [
        (b"x-a: 1\r\nX-A: 2\r\n", "x-a", ["1", "2"]),
        (b"x-a:\r\n", "x-a", [""]),
        (b"x-a:  padded \t\r\n", "x-a", ["padded"]),
        (b"x-a: on two\r\n lines\r\n", "x-a", ["on two lines"]),
        (b"x-a: caf\xe9\r\n", "x-a", ["café"]),
    ],
    ids=["twice", "empty", "padded", "folded", "latin"],
)
async def test_headers_are_read_as_they_are_meant(head, name, values):
    response = await answered(chunked(b"Hi", head=head))
    assert response.headers.get_list(name) == values
    assert response.text == "Hi"


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (OK + b"content-length: 2\r\n\r\nHi", 200, "Hi"),
        (b"\r\n\r\n" + OK + b"content-length: 2\r\n\r\nHi", 200, "Hi"),
        (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nHi", 200, "Hi"),
        (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nHi", 200, "Hi"),
        (b"HTTP/1.1 299 \r\ncontent-length: 2\r\n\r\nHi", 299, "Hi"),
        (OK + b"content-length: 0\r\n\r\n", 200, ""),
        (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 200, ""),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", 204, ""),
        (b"HTTP/1.1 304 Known\r\ncontent-length: 5\r\n\r\n", 304, ""),
        (OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nHi\r\n0\r\n\r\n", 200, "Hi"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2;a=b;c\r\nHi\r\n0;d\r\nx-end: 1\r\nx-b: 2\r\n\r\n", 200, "Hi"),
        (OK + b"transfer-encoding: chunked\r\n\r\n2 \r\nHi\r\n0\r\n\r\n", 200, "Hi"),
        (OK + b"transfer-encoding: chunked\r\n\r\n0002\r\nHi\r\n000\r\n\r\n", 200, "Hi"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 2\r\n\r\nHi", 200, "Hi"),
        (
            b"HTTP/1.1 103 Early\r\nx-hint: a\r\n\r\nHTTP/1.1 100 On\r\n\r\n" + OK + b"content-length: 2\r\n\r\nHi",
            200,
            "Hi",
        ),
        (OK + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nHi", 200, "Hi"),
    ],
)  # fmt: skip
async def test_the_end_of_an_answer_is_found(sent, status, text):
    async with RawServer(answering(sent)) as server, direct() as client:
        for _ in range(2):
            response = await client.post(server.url, content=b"{}")
            assert (response.status_code, response.text) == (status, text)
            assert "x-hint" not in response.headers
            assert "x-end" not in response.headers
            assert "Early" not in response.reason_phrase


@pytest.mark.parametrize(
    "head",
    [OK, b"HTTP/1.0 200 OK\r\n", OK + b"connection: close\r\n", OK + b"transfer-encoding: identity\r\n"],
    ids=["nothing", "1.0", "close", "identity"],
)
async def test_the_end_of_the_connection_is_the_end_of_a_body_without_a_length(head):
    response = await answered(head + b"\r\nHello", b" world", then_close=True)
    assert response.text == "Hello world"


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([], "without an answer"),
        ([b"HT"], "without an answer"),
        ([OK + b"content-le"], "without an answer"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], "without an answer"),
        ([OK + b"content-length: 5\r\n\r\nHell"], "before the answer's end"),
        ([OK + b"transfer-encoding: chunked\r\n\r\n5\r\nHel"], "before the answer's end"),
        ([OK + b"transfer-encoding: chunked\r\n\r\n5\r\nHello\r\n"], "before the answer's end"),
        ([OK + 2 * b"transfer-encoding: chunked\r\n" + b"\r\n5\r\nHel"], "before the answer's end"),
        (
            [OK + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n5\r\nHel"],
            "before the answer's end",
        ),
        ([OK + b"transfer-encoding: chunked\r\n\r\n5\r\nHello\r\n0\r\n"], "before the answer's end"),
        ([OK + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"], "not HTTP"),
        ([OK + b"content-length: 3\r\ncontent-length: 4\r\n\r\n"], "not HTTP"),
        ([OK + b"content-length: many\r\n\r\n"], "not HTTP"),
        ([OK + b"transfer-encoding: chunked\r\n\r\nmany\r\nHi"], "not HTTP"),
        ([OK + b"transfer-encoding: chunked\r\n\r\n2\r\nHixx"], "not HTTP"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "not HTTP"),
        ([b"<html>A captive portal</html>"], "not HTTP"),
        ([b"\x15\x03\x03\x00\x02\x02\x50"], "not HTTP"),
        ([b"HTTP/1.1 000 None\r\ncontent-length: 0\r\n\r\n"], "status is 0"),
        ([b"HTTP/1.1 2x0 None\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 101 Now\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nx"], "another protocol"),
        ([b"HTTP/1.1 101 Now\r\n\r\n"], "another protocol"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error(pieces, said):
    with pytest.raises(httpx2.RemoteProtocolError, match=said):
        await answered(*pieces, then_close=True)


@pytest.mark.parametrize(
    "pieces", [[], [b"HTTP/1.1 200 O"], [OK + b"content-length: 5\r\n\r\nHell"], [OK + b"\r\nHi"]]
)
async def test_a_reset_is_an_error_even_where_the_end_would_be_none(pieces):
    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(*pieces)
        connection.reset()

    async with RawServer(play) as server, direct() as client:
        with pytest.raises(httpx2.TransportError):
            await client.post(server.url, content=b"{}")


async def test_a_head_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(http1, "MOST_HEAD_BYTES", 10_000)

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK)
        while True:
            await connection.send(b"x-more: %b\r\n" % (b"y" * 500))

    async with RawServer(play) as server, direct() as client:
        with pytest.raises(httpx2.RemoteProtocolError, match="headers are longer than 10000"):
            await client.post(server.url, content=b"{}")


@pytest.mark.parametrize(
    "more", [b"0\r\nx-more: ", b"0\r\n", b"5;"], ids=["a trailer", "trailers", "an extension"]
)
async def test_trailers_and_extensions_without_an_end_are_given_up(monkeypatch, more):
    monkeypatch.setattr(http1, "MOST_HEAD_BYTES", 10_000)

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"transfer-encoding: chunked\r\n\r\n5\r\nHello\r\n" + more)
        while True:
            await connection.send(b"x-more: y\r\n" * 50 if more == b"0\r\n" else b"y" * 500)

    async with RawServer(play) as server, direct() as client:
        with pytest.raises(httpx2.RemoteProtocolError, match="headers are longer than 10000"):
            await client.post(server.url, content=b"{}")


async def test_trailers_are_no_headers():
    whole = chunked(b"Hello", head=b"x-request-id: 1\r\n")[:-2] + b"X-Request-Id: 2\r\nRetry-After: 9\r\n\r\n"
    response = await answered(whole)
    assert response.text == "Hello"
    assert response.headers.multi_items() == [("x-request-id", "1"), ("transfer-encoding", "chunked")]


@pytest.mark.parametrize(
    "more",
    [
        OK + b"content-length: 6\r\n\r\nsecond",
        chunked(b"second"),
        b"garbage",
        b"H",
    ],
)
async def test_what_comes_after_an_answer_is_of_no_other_and_ends_the_connection(more):
    whole = OK + b"content-length: 5\r\n\r\nfirst"
    async with RawServer(answering(whole + more)) as server, direct() as client:
        for number in (1, 2):
            assert b"".join(await read_whole(client, server.url)) == b"first"
            assert len(server.connections) == number
        response = await client.post(server.url, content=b"{}")
        assert response.text == "first"


async def test_what_comes_while_nobody_has_asked_ends_the_connection():
    heard = asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 2\r\n\r\nHi")
        await heard.wait()
        await connection.send(OK + b"content-length: 5\r\n\r\nwrong")
        await connection.closed()

    async with RawServer(play) as server, direct() as client:
        assert (await client.post(server.url, content=b"{}")).text == "Hi"
        heard.set()
        await wait_until_async(lambda: not server.open)
        heard.clear()
        assert (await client.post(server.url, content=b"{}")).text == "Hi"
        assert len(server.connections) == 2


@pytest.mark.parametrize("held", [False, True], ids=["as they come", "had come"])
async def test_pieces_are_handed_over_until_they_are_refused_and_go_on_there(held):
    """All come in one packet."""
    pieces = [b"a", b"b", b"c", b"d", b"e"]
    head, _, rest = chunked(*pieces).partition(b"\r\n\r\n")
    go_on = asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(head + b"\r\n\r\n")
        await go_on.wait()
        await connection.send(rest)

    async with RawServer(play) as server, direct() as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        asyncio.get_running_loop().call_soon(go_on.set)
        if held:
            await wait_until_async(lambda: exchange._held == 5)

        def take(piece: bytes) -> bool:
            taken.append(piece)
            return len(taken) % 2 == 1

        rounds = 0
        while not await exchange.into(take):
            rounds += 1
            assert len(taken) == 2 * rounds
        assert (rounds, taken) == (2, pieces)
        assert await exchange.into(take), "the end stays the end"
        assert taken == pieces


async def test_iteration_and_into_share_what_has_come():
    go_on = asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 6\r\n\r\nab")
        await go_on.wait()
        await connection.send(b"cd", b"ef")

    async with RawServer(play) as server, direct() as client:
        _, exchange = await begun(client, server.url)
        async for piece in exchange:
            assert piece == b"ab"
            break
        go_on.set()
        taken: list[bytes] = []
        while not await exchange.into(lambda piece: bool(taken.append(piece))):
            continue
        assert b"".join(taken) == b"cdef"
        assert [piece async for piece in exchange] == []


class Wrong(BaseException):
    """What a sink may raise to stop a turn."""


@pytest.mark.parametrize("held", [False, True], ids=["as it comes", "had come"])
@pytest.mark.parametrize("wrong", [ValueError, Wrong])
async def test_what_take_raises_comes_out_of_into_and_the_connection_is_closed(wrong, held):
    go_on = asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        first, rest = OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n1\r\nb\r\n"
        await connection.send(first + rest if held else first)
        await go_on.wait()
        await connection.send(rest)
        await connection.closed()

    def take(piece: bytes) -> bool:
        taken.append(piece)
        raise wrong("mine")

    async with RawServer(play) as server, direct() as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(wrong, match="mine"):
            await exchange.into(take)
        await wait_until_async(lambda: not server.open)
        with pytest.raises(httpx2.ReadError):
            await exchange.into(take)
        assert taken == [b"a"]


async def flood(connection: RawConnection, sent: list[int], size: int) -> None:
    """A body of numbered lines, as fast as it is taken."""
    await connection.request()
    await connection.send(OK + b"content-length: %d\r\n\r\n" % size)
    left = size
    while left:
        piece = b"".join(
            b"%07d\n" % number for number in range((size - left) // 8, (size - left) // 8 + 8192)
        )
        connection.writer.write(piece)
        await connection.writer.drain()
        sent[0] += len(piece)
        left -= len(piece)
    await connection.closed()


SIZE = 32 * 1024 * 1024


@pytest.mark.parametrize("way", ["never asked", "refused", "iterated"])
async def test_a_reader_that_stops_holds_the_service_up_and_nothing_is_lost_or_doubled(way):
    sent = [0]

    async def play(connection: RawConnection) -> None:
        await flood(connection, sent, SIZE)

    async with RawServer(play) as server, direct(timeout=30.0) as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        if way == "refused":
            assert not await exchange.into(lambda piece: bool(taken.append(piece)))
        elif way == "iterated":
            async for piece in exchange:
                taken.append(piece)
                break
        await still(sent)
        assert sent[0] < SIZE, "the service was not held up"
        assert exchange._held < HIGH_WATER_BYTES + 1024 * 1024
        if way == "iterated":
            taken += [piece async for piece in exchange]
        while not await exchange.into(lambda piece: bool(taken.append(piece)) or len(taken) % 50 != 0):
            continue
        assert exchange._held == 0
        whole = b"".join(taken)
        assert len(whole) == SIZE
        assert all(whole[at : at + 8] == b"%07d\n" % (at // 8) for at in range(0, SIZE, 8 * 997))


async def test_what_comes_during_a_pause_is_read_in_one_piece_afterwards():
    more, sent = asyncio.Event(), asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 4\r\n\r\na")
        await more.wait()
        await connection.send(b"b", b"c", b"d")
        sent.set()
        await connection.closed()

    async with RawServer(play) as server, direct() as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        reading = asyncio.create_task(exchange.into(lambda piece: bool(taken.append(piece)) or True))
        await wait_until_async(lambda: taken == [b"a"])
        exchange.pause()
        more.set()
        await sent.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert taken == [b"a"]
        exchange.resume()
        assert await reading
        assert taken == [b"a", b"bcd"]


async def test_a_pause_and_a_reader_that_stops_both_have_to_end():
    sent = [0]

    async def play(connection: RawConnection) -> None:
        await flood(connection, sent, SIZE)

    async with RawServer(play) as server, direct(timeout=30.0) as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        assert not await exchange.into(lambda piece: bool(taken.append(piece)))
        exchange.pause()
        exchange.resume()
        await still(sent)
        assert sent[0] < SIZE, "the end of the pause made it read for a reader that has stopped"
        exchange.pause()
        reading = asyncio.create_task(exchange.into(lambda piece: bool(taken.append(piece)) or True))
        await still(sent)
        assert not reading.done(), "a reader that goes on ended the pause"
        exchange.resume()
        assert await reading
        assert sum(map(len, taken)) == SIZE


async def test_a_pause_concerns_no_answer_but_its_own():
    async def play(connection: RawConnection) -> None:
        while True:
            await connection.request()
            await connection.send(OK + b"content-length: 1\r\n\r\na")

    async with RawServer(play) as server, direct() as client:
        _, over = await begun(client, server.url)
        assert await over.into(lambda _: True)
        over.pause()
        _, closed = await begun(client, server.url)
        closed.pause()
        await closed.aclose()
        closed.resume()
        assert (await client.post(server.url, content=b"{}")).content == b"a"


async def still(sent: list[int]) -> None:
    """Return when the server sends no more."""
    last = -1
    count = 0
    while count < 200:
        count = count + 1 if sent[0] == last else 0
        last = sent[0]
        await asyncio.sleep(0)


async def test_cancelling_a_reader_loses_nothing():
    go_on = asyncio.Event()

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 4\r\n\r\n")
        await go_on.wait()
        await connection.send(b"ab", b"cd")

    async with RawServer(play) as server, direct() as client:
        _, exchange = await begun(client, server.url)
        taken: list[bytes] = []
        late: list[bytes] = []
        reading = asyncio.create_task(exchange.into(lambda piece: bool(late.append(piece)) or True))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        go_on.set()
        await wait_until_async(lambda: exchange._held or late)
        while not await exchange.into(lambda piece: bool(taken.append(piece)) or True):
            continue
        assert (b"".join(taken), late) == (b"abcd", [])


async def test_the_status_is_seen_of_a_service_that_refuses_a_body_while_it_is_sent():
    async def play(connection: RawConnection) -> None:
        await connection.head()
        await connection.reader.readexactly(100_000)
        await connection.send(b"HTTP/1.1 413 Too much\r\nconnection: close\r\ncontent-length: 3\r\n\r\nno!")
        connection.close()

    async with RawServer(play) as server, direct() as client:
        for _ in range(5):
            response = await client.post(server.url, content=b"x" * 20_000_000)
            assert (response.status_code, response.text) == (413, "no!")
        assert len(server.connections) == 5


async def test_a_service_that_has_said_all_is_not_sent_the_rest_of_a_request():
    """It ends its side of the connection, and reads no more."""

    async def play(connection: RawConnection) -> None:
        await connection.head()
        await connection.send(b"HTTP/1.1 413 Too much\r\nconnection: close\r\n\r\nno!")
        connection.writer.write_eof()
        await wait_until_async(lambda: done)
        await connection.closed()

    done: list[bytes] = []
    async with RawServer(play, limit=65536) as server, direct(timeout=None) as client:
        response, exchange = await begun(client, server.url, b"x" * 30_000_000)
        done.append(await asyncio.wait_for(response.aread(), patience(10)))
        assert (response.status_code, done) == (413, [b"no!"])
        assert exchange._connection.unsent == 0, "the rest of the request is kept"


async def test_a_long_body_arrives_as_it_is():
    content = b"".join(b"%09d," % number for number in range(1_000_000))
    async with RawServer(answering(chunked(b"ok"))) as server, direct() as client:
        for _ in range(2):
            assert (await client.post(server.url, content=content)).text == "ok"
        assert [body == content for _, _, body in server.requests] == [True, True]
        assert len(server.connections) == 1


async def test_an_error_body_is_read():
    error = b"HTTP/1.1 400 No\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n"
    async with RawServer(answering(error, b'{"error"', b": 1} ")) as server, direct() as client:
        response, _ = await begun(client, server.url)
        assert await response.aread() == b'{"error": 1} '
        assert response.is_closed


@pytest.mark.parametrize("status", [400, 307])
async def test_an_error_that_never_ends_is_read_as_far_as_anybody_would(status, monkeypatch):
    monkeypatch.setattr(http1, "MOST_ERROR_BYTES", 100_000)

    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 %d No\r\nlocation: /\r\ntransfer-encoding: chunked\r\n\r\n" % status)
        while True:
            await connection.send(b"3e8\r\n%b\r\n" % (b"x" * 1000))

    async with RawServer(play) as server, direct() as client:
        response = await asyncio.wait_for(client.post(server.url, content=b"{}"), patience(10))
        assert response.status_code == status
        assert 100_000 < len(response.content) < 10_000_000
        await wait_until_async(lambda: not server.open)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("then", ["cut", "whole", "no_length"])
async def test_an_answer_that_is_cut_into_bytes_is_the_same_answer(kind, then):
    data = body(kind, answer(kind, "Hello", " wörld"))
    async with WireServer(Reply([data[at : at + 1] for at in range(len(data))], then=then)) as server:
        provider = serve(kind, server.url)
        assert result(await hear(provider)).message.text == "Hello wörld"
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_that_goes_away_is_unreachable_before_its_answer_and_a_broken_stream_in_it(kind):
    for pieces, error in (([], ProviderUnreachable), ([chunked(b"data: {")[:-7]], ProviderStreamBroken)):
        async with RawServer(answering(*pieces, then_close=True)) as server:
            provider = serve(kind, server.url.rstrip("/"))
            with pytest.raises(error):
                await hear(provider)
            await provider.aclose()


async def read_whole(client: httpx2.AsyncClient, url: str) -> list[bytes]:
    """The pieces of an answer, by ``into``."""
    pieces: list[bytes] = []
    response, exchange = await begun(client, url)
    while not await exchange.into(lambda piece: bool(pieces.append(piece)) or True):
        continue
    await response.aclose()
    return pieces


def living() -> list[Any]:
    """What stands for a request in this process, that of other tests included."""
    return [one for one in gc.get_objects() if type(one) in (Exchange, httpx2.Request, httpx2.Response)]


@contextmanager
def nothing_is_left() -> Generator[None]:
    """What is made in here is freed in here, without the garbage collector."""
    gc.collect()
    before = living()
    gc.disable()
    try:
        yield
        assert [one for one in living() if not any(one is other for other in before)] == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "pieces", [[chunked(b"Hi")], [], [b"rubbish"], [OK + b"content-length: 5\r\n\r\nHe"]]
)
async def test_an_exchange_that_is_over_is_freed_without_the_garbage_collector(pieces):
    """So that thousands of answers leave it nothing to do."""
    async with RawServer(answering(*pieces, then_close=True)) as server, direct() as client:
        with nothing_is_left():
            with suppress(httpx2.TransportError):
                await read_whole(client, server.url)
            await wait_until_async(lambda: not server.open)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_leaves_nothing_to_the_garbage_collector(kind):
    async with WireServer(Reply([body(kind, answer(kind, "Hello", " world"))])) as server:
        provider = serve(kind, server.url)
        await hear(provider)
        with nothing_is_left():
            for _ in range(10):
                await hear(provider)
        await provider.aclose()
