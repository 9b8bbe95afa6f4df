"""Events over HTTP, with real web frameworks and a reader that comes back as browsers do."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager

import pytest
from fastapi import FastAPI, HTTPException
from fastapi import Request as FastRequest
from fastapi.responses import StreamingResponse as FastStreaming
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from support.event_source import EventSource
from support.eventually import patience, wait_until_async
from support.proxy import Proxy
from support.serving import serving

from antiphon import sse
from antiphon.client import AsyncClient, Client
from antiphon.errors import ProviderRejected, StoreUnavailable, WrongTenant
from antiphon.events import ChildEvent, Heartbeat, TextDelta, TurnFailedEvent, TurnRetrying, decode_event
from antiphon.testing import script

BEAT = 0.05


def starlette_app(client):
    async def turn(request: Request):
        found = await client.turn(request.path_params["turn"])
        events = found.stream(request.headers.get("last-event-id"))
        return StreamingResponse(sse.stream(events, heartbeat=BEAT), headers=sse.HEADERS)

    async def session(request: Request):
        after = request.headers.get("last-event-id") or request.query_params["after"]
        events = client.subscribe(request.path_params["session"], after)
        return StreamingResponse(sse.stream(events, heartbeat=BEAT), headers=sse.HEADERS)

    return Starlette(routes=[Route("/turns/{turn}", turn), Route("/sessions/{session}", session)])


def fastapi_app(client):
    app = FastAPI()

    @app.get("/turns/{turn}")
    async def turn(turn: str, request: FastRequest):
        found = await client.turn(turn)
        events = found.stream(request.headers.get("last-event-id"))
        return FastStreaming(sse.stream(events, heartbeat=BEAT), headers=sse.HEADERS)

    @app.get("/sessions/{session}")
    async def session(session: str, request: FastRequest, after: str = "0", tenant: str | None = None):
        events = client.subscribe(session, request.headers.get("last-event-id") or after, tenant=tenant)
        try:
            await events.start()
        except WrongTenant as exc:
            raise HTTPException(403, exc.message) from exc
        return FastStreaming(sse.stream(events, heartbeat=BEAT), headers=sse.HEADERS)

    return app


def synchronous_app(url):
    client = Client(url)

    def turn(request: Request):
        events = client.turn(request.path_params["turn"]).stream(
            request.headers.get("last-event-id"), heartbeat=BEAT
        )
        return StreamingResponse(sse.stream_sync(events), headers=sse.HEADERS)

    def session(request: Request):
        after = request.headers.get("last-event-id") or request.query_params["after"]
        events = client.subscribe(request.path_params["session"], after, heartbeat=BEAT)
        return StreamingResponse(sse.stream_sync(events), headers=sse.HEADERS)

    app = Starlette(routes=[Route("/turns/{turn}", turn), Route("/sessions/{session}", session)])
    return app, client


APPS = ["starlette", "fastapi", "synchronous"]


@asynccontextmanager
async def served(kind, url):
    """One of the apps, on a client of its own, behind a proxy that can cut its connections."""
    async with AsyncClient(url) as client:
        if kind == "synchronous":
            app, other = synchronous_app(url)
        else:
            app, other = {"starlette": starlette_app, "fastapi": fastapi_app}[kind](client), None
        async with serving(app) as port:
            with Proxy(port) as proxy:
                yield f"http://127.0.0.1:{proxy.port}", proxy
        if other is not None:
            await asyncio.to_thread(other.close)


async def read(source, until="end"):
    """All messages up to the one of this type, without comments, and the number of those."""
    found, comments = [], 0
    async with aclosing(source.messages()) as messages:
        async for message in messages:
            comments += message.type == ":"
            if message.type == until:
                return found, comments, json.loads(message.data) if until == "end" else {}
            if message.type == "message":
                found.append(message)
    raise AssertionError("it does not end by itself")


def same(messages, events):
    assert [message.data.encode() for message in messages] == [event.to_json() for event in events]
    assert [message.id for message in messages] == [str(event.seq) for event in events]
    assert [decode_event(message.data) for message in messages] == list(events)


@pytest.mark.parametrize("kind", APPS)
async def test_a_turn_is_read_to_its_end(kind, redis_url, ensemble):
    async with ensemble.worker(), served(kind, redis_url) as (url, _):
        turn = await ensemble.submit("s", "go on words:20")
        source = EventSource(f"{url}/turns/{turn.id}")
        messages, _, end = await asyncio.wait_for(read(source), patience(20))
        same(messages, await ensemble.events("s"))
        assert (end, source.connections, source.retry_ms) == ({}, 1, 1000)
        assert source.types[0].startswith("text/event-stream")
        again, _, end = await asyncio.wait_for(read(source), patience(20))  # a page that did not close it
        assert (again, end) == ([], {})


@pytest.mark.parametrize("kind", APPS)
async def test_a_reader_whose_connection_is_cut_comes_back_and_misses_nothing(kind, redis_url, ensemble):
    async with ensemble.worker(), served(kind, redis_url) as (url, proxy):
        turn = await ensemble.submit("s", "go on words:10 gate:g1 words:10 gate:g2 words:10")
        source = EventSource(f"{url}/turns/{turn.id}")
        reading = asyncio.create_task(read(source))
        for gate in ("g1", "g2"):
            await ensemble.waits(gate)
            seen = (await ensemble.events("s"))[-1].seq
            await wait_until_async(lambda seen=seen: int(source.last_id or 0) >= seen)
            proxy.cut()
            ensemble.stage.open(gate)
        messages, _, end = await asyncio.wait_for(reading, patience(60))
        same(messages, await ensemble.events("s"))
        assert (end, source.connections) == ({}, 3)


@pytest.mark.parametrize("kind", APPS)
async def test_a_session_is_followed_with_heartbeats_over_its_turns(kind, redis_url, ensemble):
    async with ensemble.worker(), served(kind, redis_url) as (url, proxy):
        await (await ensemble.submit("s", "one")).result(60)
        source, seen, comments = EventSource(f"{url}/sessions/s?after=0"), [], 0
        async with aclosing(source.messages()) as messages:
            async for message in messages:
                if message.type == ":":
                    comments += 1
                    if comments == 2:
                        proxy.cut()
                    if comments == 4:
                        await ensemble.submit("s", "two")
                else:
                    seen.append(message)
                if sum(decode_event(one.data).terminal for one in seen) == 2:
                    break
        same(seen, await ensemble.events("s"))
        assert source.connections == 2
        await wait_until_async(lambda: nobody_listens(redis_url), description="the reader has left")


async def nobody_listens(url):
    async with Redis.from_url(url) as redis:
        return await redis.pubsub_channels("ant:live:*") == []


async def test_a_cursor_that_is_no_longer_kept_ends_the_stream_with_its_code(redis_url, ensemble):
    async with ensemble.worker(), served("fastapi", redis_url) as (url, _):
        await (await ensemble.submit("s", "one words:3")).result(60)
        async with Redis.from_url(redis_url) as redis:
            await redis.xtrim("ant:events:s", maxlen=2, approximate=False)
            await redis.hdel("ant:session:s", "ends")  # as an older release leaves it
        source = EventSource(f"{url}/sessions/s?after=1")
        found, _, end = await asyncio.wait_for(read(source), patience(20))
        assert (found, end) == ([], {"code": "stream_gap"})


async def test_another_tenant_is_refused_before_the_stream_begins(redis_url, ensemble):
    async with ensemble.worker(), served("fastapi", redis_url) as (url, _):
        await (await ensemble.submit("s", "one", tenant="acme")).result(60)
        with pytest.raises(Exception, match="403"):
            await read(EventSource(f"{url}/sessions/s?tenant=other"))
        (first, *_), *_ = await read(EventSource(f"{url}/sessions/s?tenant=acme"), until=":")
        assert first.id == "1"


async def broken(error):
    yield TextDelta(seq=1, text="Hello")
    raise error


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ProviderRejected("secret"), [b'event: end\ndata: {"code":"provider_rejected"}\n\n']),
        (StoreUnavailable("secret"), []),  # the browser comes back
    ],
)
async def test_an_error_says_whether_to_come_back_and_nothing_else(error, end):
    messages = [message async for message in sse.stream(broken(error))]
    assert messages[1:] == [b'id: 1\ndata: {"type":"text_delta","text":"Hello","seq":1}\n\n', *end]

    def raising():
        yield TextDelta(seq=1, text="Hello")
        raise error

    assert list(sse.stream_sync(raising())) == messages


async def test_an_error_of_the_callers_own_code_is_raised():
    with pytest.raises(ZeroDivisionError):
        [message async for message in sse.stream(broken(ZeroDivisionError()))]


async def test_a_response_that_is_left_closes_its_events():
    closed = []

    async def endless():
        try:
            yield TextDelta(seq=1)
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    messages = sse.stream(endless(), heartbeat=0.01)
    assert [await anext(messages) for _ in range(4)][2:] == [b": heartbeat\n\n"] * 2
    await messages.aclose()
    assert closed == [True]


async def test_a_streamed_run_is_passed_on_too(runtime):
    runtime.use(script("Hello"))
    events = runtime.agent().session().stream_async("Hi")
    messages = [message async for message in sse.stream(events)]
    assert b'"type":"turn_finished"' in messages[-2]
    assert messages[-1] == b"event: end\ndata: {}\n\n"
    await runtime.aclose()


def test_data_is_one_line_whatever_was_said():
    said = "a\nb\r\nc\u2028d\0: e"
    message = sse.encode(TextDelta(seq=3, text=said))
    assert message.count(b"\n") == 3
    assert b"\r" not in message
    assert decode_event(message.split(b"data: ")[1]).text == said
    assert sse.encode(Heartbeat(seq=3)) == b": heartbeat\n\n"


OPERATORS = "check the API key"
FAILURES = [
    TurnFailedEvent(seq=1, code="provider_unauthorized", message=OPERATORS, raw=OPERATORS),
    TurnRetrying(seq=2, code="provider_unauthorized", reason=OPERATORS),
]
FAILURES += [
    ChildEvent(seq=one.seq, child_id="c", event=json.loads(one.to_json()) | {"type": one.type})
    for one in FAILURES
]


async def test_end_users_read_of_a_failure_only_its_sentence_and_its_code():
    async def happens():
        for event in FAILURES:
            yield event

    sent = [message async for message in sse.stream(happens(), to_users=True)]
    assert sent == list(sse.stream_sync(FAILURES, to_users=True))
    shown = [json.loads(one.partition(b"data: ")[2]) for one in sent if one.startswith(b"id:")]
    ends = [one.get("event", one) for one in shown]
    assert len(ends) == 4
    assert OPERATORS not in str(shown)
    assert {one["code"] for one in ends} == {"provider_unauthorized"}
    assert ends[0]["message"] == ends[2]["message"] == ends[0]["user_message"]
    assert OPERATORS in str([message async for message in sse.stream(happens())])
