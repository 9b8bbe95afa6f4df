"""Headers of a request: the transport frames and routes it, and whoever submits a turn cannot."""

import asyncio
from typing import Any

import httpx2
import pytest
from support.services.conversation import KINDS, answer, body, hear, request, result, said, serve
from support.services.raw_server import RawConnection, RawServer, answering, begun, chunked, direct
from support.services.wire_server import Reply, WireServer

from antiphon.errors import ProviderRejected, SettingsError
from antiphon.input.parameters import misplaced
from antiphon_worker.providers.http.transport import framed
from antiphon_worker.providers.service import ModelService

OK = b"HTTP/1.1 200 OK\r\n"
HI = OK + b"content-length: 2\r\n\r\nHi"

FRAMING = [
    {"Content-Length": "0"},
    {"content-length": "4"},
    {"Content_Length": "0"},
    {"Transfer-Encoding": "chunked"},
    {"transfer-encoding": "identity, chunked"},
    {"Host": "other.example"},
    {"Connection": "keep-alive, x-api-key"},
    {"Keep-Alive": "timeout=1000"},
    {"Upgrade": "h2c"},
    {"TE": "trailers"},
    {"Trailer": "x-a"},
    {"Expect": "100-continue"},
    {"Proxy-Authorization": "Basic eDp5"},
    {"Proxy-Connection": "keep-alive"},
    {"Accept-Encoding": "gzip"},
    {"Content-Encoding": "gzip"},
    {"Content-Type": "text/plain"},
    {"Accept": "text/html"},
    {"HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"},
]
SECRETS = [
    {"Authorization": "Bearer mine"},
    {"x-api-key": "mine"},
    {"API-Key": "mine"},
    {"x_api_key": "mine"},
    {"X-Goog-Api-Key": "mine"},
    {"Ocp-Apim-Subscription-Key": "mine"},
    {"Cookie": "a=b"},
    {"X-Amz-Security-Token": "mine"},
]
MALFORMED: list[dict[Any, Any]] = [
    {"x-trace": "a\r\nx-b: c"},
    {"x-trace": "a\nb"},
    {"x-trace": "a\0b"},
    {"x-trace": "café"},
    {"x-trace": "\ud800"},
    {"x-trace": 5},
    {"x-trace": None},
    {"x-a\r\nb": "c"},
    {"x a": "b"},
    {"x-a:": "b"},
    {"": "b"},
    {" host": "b"},
    {"x-é": "b"},
    {5: "b"},
]


@pytest.mark.parametrize("headers", [*FRAMING, *SECRETS, *MALFORMED], ids=str)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_brings_no_header_that_frames_routes_or_opens(kind, headers):
    """The worker says so itself, because not every turn is written by this client."""
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        with pytest.raises(ProviderRejected, match="extra_headers") as raised:
            await hear(provider, request(params={"extra_headers": headers}))
        (name,) = headers
        assert repr(str(name)) in raised.value.message or repr(name) in raised.value.message
        assert "mine" not in raised.value.message
        assert not raised.value.retryable
        assert server.connections == 0
        await provider.aclose()


@pytest.mark.parametrize(
    "params",
    [
        {"extra_headers": ["x-trace"]},
        {"extra_headers": "x-trace: 1"},
        {"extra_query": "a=b"},
        {"extra_query": {"key": "AIza"}},
        {"extra_query": {"access_token": "a"}},
        {"extra_query": {"a": {"b": 1}}},
        {"extra_query": {5: "b"}},
        {"extra_body": [1]},
        {"extra_body": {"stream": False}},
        {"extra_body": {"stream_options": None}},
        {"extra_body": {"model": "other"}},
        {"extra_body": {"messages": []}},
        {"extra_body": {"input": "other"}},
        {"extra_body": {"system": "other"}},
        {"extra_body": {"instructions": "other"}},
        {"extra_body": {"tools": []}},
        {"stream": False},
        {"messages": []},
        {"input": "other"},
        {"system": "other"},
        {"instructions": "other"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_turn_does_not_replace_what_the_provider_writes(kind, params):
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        with pytest.raises(ProviderRejected, match=next(iter(params))):
            await hear(provider, request(params=params))
        assert server.connections == 0
        await provider.aclose()


async def test_the_options_of_the_stream_do_not_take_the_usage_away():
    given = {"stream_options": {"include_usage": False, "include_obfuscation": False}}
    async with WireServer(said("openai-chat", "Hi")) as server:
        provider = serve("openai-chat", server.url)
        await hear(provider, request(params=given))
        assert server.seen[0].body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_header_that_is_on_no_list_is_sent_only_where_the_provider_allows_it(kind):
    params = {"extra_headers": {"X-Mine": "1", "x-our-1": "2", "traceparent": "3", "X-B3-TraceId": "4"}}
    async with WireServer(said(kind, "Hi")) as server:
        provider = serve(kind, server.url)
        with pytest.raises(ProviderRejected, match=r"'X-Mine'.*allowed_headers"):
            await hear(provider, request(params=params))
        assert not server.seen
        allowing = serve(kind, server.url, allowed_headers=["x-mine", "X-Our-*"])
        await hear(allowing, request(params=params))
        seen = server.seen[0].headers
        assert [seen[name] for name in ("x-mine", "x-our-1", "traceparent", "x-b3-traceid")] == list("1234")
        await provider.aclose()
        await allowing.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_never_sent_is_not_sent_either_where_a_provider_allows_it(kind):
    provider = serve(kind, "http://127.0.0.1:1", allowed_headers=["*", "content-length", "authorization"])
    for headers in (*FRAMING, *SECRETS):
        with pytest.raises(ProviderRejected, match="extra_headers"):
            await hear(provider, request(params={"extra_headers": headers}))
    await provider.aclose()


@pytest.mark.parametrize("headers", FRAMING, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_is_not_made_with_headers_that_frame_or_route(kind, headers):
    with pytest.raises(SettingsError, match=next(iter(headers))):
        serve(kind, "http://127.0.0.1:1", headers=headers)


@pytest.mark.parametrize("given", FRAMING[:8], ids=str)
async def test_the_transport_says_itself_how_long_a_request_is_and_where_it_goes(given):
    async with RawServer(answering(HI)) as server, direct() as client:
        for _ in range(2):
            await client.post(server.url, content=b"POST / HTTP/1.1", headers={**given, "x-trace": "1"})
        for number, head, content in server.requests:
            lines = head.lower().split(b"\r\n")
            assert number == 1
            assert content == b"POST / HTTP/1.1"
            assert [line for line in lines if line.startswith(b"content-length:")] == [b"content-length: 15"]
            assert [line for line in lines if line.startswith(b"host:")] == [
                b"host: 127.0.0.1:%d" % server.port
            ]
            assert b"x-trace: 1" in lines
            assert not [line for line in lines if b"_" in line.partition(b":")[0]]
            assert not [
                line for line in lines if line.startswith((b"transfer-encoding", b"expect", b"upgrade"))
            ]


def test_a_header_with_a_sign_of_the_protocol_in_it_is_never_written():
    for sign in map(chr, [*range(33), *b'"(),/:;<=>?@[\\]{}', *range(127, 256)]):
        with pytest.raises(ValueError, match="header"):
            framed(b"h", [(f"x{sign}y".encode("latin-1"), b"1")])
    for sign in (b"\r", b"\n", b"\0"):
        with pytest.raises(ValueError, match="'x-a'"):
            framed(b"h", [(b"x-a", b"1" + sign + b"2")])


SMUGGLED = "POST /v1/chat/completions HTTP/1.1\r\nhost: other.example\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize("kind", KINDS)
async def test_no_turn_harms_the_turns_of_another_tenant_on_its_connection(kind):
    """The service keeps to the protocol; the attacker writes turns by hand, with a request inside the text."""
    whole = body(kind, answer(kind, "Hello", " world"))
    hosts: list[bytes] = []

    async def play(connection: RawConnection) -> None:
        while True:
            head, _ = await connection.request()
            hosts.extend(line for line in head.lower().split(b"\r\n") if line.startswith(b"host:"))
            await connection.send(chunked(whole, head=b"content-type: text/event-stream\r\n"))

    async with RawServer(play) as server:
        provider = serve(kind, server.url.rstrip("/"), max_connections=1)
        for turn in range(20):
            attack = {
                "extra_headers": [*FRAMING, *SECRETS][turn],
                "extra_body": {"metadata": {"a": SMUGGLED}},
            }
            with pytest.raises(ProviderRejected):
                await hear(provider, request(params=attack))
            assert result(await hear(provider)).message.text == "Hello world"
        assert len(server.connections) == 1
        assert hosts == [b"host: 127.0.0.1:%d" % server.port] * 20
        await provider.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("headers", [{}, {"Api-Key": "mine-too"}])
async def test_a_redirect_to_another_host_takes_no_key_along(kind, headers):
    async with WireServer(said(kind, "There")) as there:
        reply = Reply([b"gone"], 307, "text/plain")
        async with WireServer(reply) as here:
            provider = serve(kind, here.url, api_key="sk-mine", headers=headers)
            reply.headers["location"] = f"{there.url}/v1"
            assert result(await hear(provider)).message.text == "There"
            assert "mine" not in str(there.seen[0].headers)
            assert "sk-mine" in str(here.seen[0].headers)
            await provider.aclose()


CHUNKED = b"transfer-encoding: chunked\r\n\r\n2\r\nHi\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HI + b"HTTP/1.1 200 OK\r\n",
        HI + b"{",
        HI + b"\0",
        OK + CHUNKED + b"0\r\n\r\n",
        OK + CHUNKED + HI,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HI,
        b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + HI,
        HI + b"HTTP/1.1 100 Continue\r\n\r\n",
        OK + b"transfer-encoding: chunked\r\n" + CHUNKED,
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n" + CHUNKED,
        b"HTTP/1.1 204 None\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 204 None\r\n" + CHUNKED,
        b"HTTP/1.1 304 Same\r\ncontent-length: 2\r\n\r\nHi",
    ],
    ids=str,
)
async def test_a_connection_with_an_odd_answer_is_not_used_again(sent):
    async with RawServer(answering(sent)) as server, direct() as client:
        for number in (1, 2, 3):
            assert (await client.post(server.url, content=b"{}")).status_code in (200, 204, 304)
            assert len(server.connections) == number


@pytest.mark.parametrize(
    "sent",
    [
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\nHi\r\n0\r\n\r\n",
        OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nHi",
        OK + b"content-length: 2, 2\r\n\r\nHi",
    ],
    ids=str,
)
async def test_an_answer_with_two_ends_is_an_error_and_ends_its_connection(sent):
    async with RawServer(answering(sent)) as server, direct() as client:
        for number in (1, 2):
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.post(server.url, content=b"{}")
            assert len(server.connections) == number


async def test_a_connection_whose_answer_began_before_the_request_was_sent_is_not_used_again():
    """The whole request is taken afterwards, and the answer is whole: the two may still disagree."""

    async def play(connection: RawConnection) -> None:
        while True:
            head = await connection.head()
            length = next(
                int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-l")
            )
            await connection.send(OK + b"content-length: 2\r\n\r\n")
            await begins.wait()
            await connection.reader.readexactly(length)
            await connection.send(b"Hi")

    begins = asyncio.Event()
    async with RawServer(play, limit=65536) as server, direct() as client:
        for number in (1, 2):
            begins.clear()
            response, _ = await begun(client, server.url, b"x" * 30_000_000)
            begins.set()
            assert await response.aread() == b"Hi"
            assert len(server.connections) == number


async def test_a_connection_whose_answer_was_given_up_is_not_used_again():
    async def play(connection: RawConnection) -> None:
        await connection.request()
        await connection.send(OK + b"content-length: 4\r\n\r\nHi")
        await connection.closed()

    async with RawServer(play) as server, direct() as client:
        for number in (1, 2):
            response, _ = await begun(client, server.url)
            await response.aclose()
            assert len(server.connections) == number


async def test_a_connection_whose_request_was_cancelled_is_not_used_again():
    async def play(connection: RawConnection) -> None:
        await connection.request()
        heard.set()
        if connection.number == 1:
            await connection.closed()
        else:
            await connection.send(HI)
            await connection.closed()

    heard = asyncio.Event()
    async with RawServer(play) as server, direct() as client:
        asking = asyncio.create_task(client.post(server.url, content=b"{}"))
        await heard.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await client.post(server.url, content=b"{}")).text == "Hi"
        assert [number for number, *_ in server.requests] == [1, 2]


def test_what_may_be_added_to_a_request():
    params = {
        "temperature": 1,
        "stream": None,
        "extra_headers": {"x-trace": "1", "Anthropic-Beta": "a,b", "idempotency-key": "k"},
        "extra_query": {"api-version": "2024-10-21", "beta": True},
        "extra_body": {"top_k": 3, "key": 1},
    }
    assert misplaced(params) is None
    assert misplaced({}) is None
    assert isinstance(serve("openai-chat", "http://127.0.0.1:1"), ModelService)
