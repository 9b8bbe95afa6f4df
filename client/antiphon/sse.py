"""Events as server-sent events, for the streaming response of any web framework.

With Starlette or FastAPI:

    @app.get("/turns/{turn_id}/events")
    async def events(turn_id: str, request: Request) -> StreamingResponse:
        turn = await client.turn(turn_id, tenant=tenant_of(request))
        events = turn.stream(request.headers.get("last-event-id"))
        return StreamingResponse(sse.stream(events), headers=sse.HEADERS)

In the browser:

    const source = new EventSource(`/turns/${turnId}/events`);
    source.onmessage = (message) => show(JSON.parse(message.data));
    source.addEventListener("end", () => source.close());

Each event is a message whose id is its ``seq`` and whose data is its JSON. A browser that loses the connection
reconnects by itself and sends the last id as ``Last-Event-ID``, from which ``turn.stream`` and ``client.subscribe``
continue. The last event is followed by a message of the type ``end``. Its data is ``{}``, or ``{"code": …}`` if
reconnecting would not help: after ``stream_gap`` the page takes a snapshot and subscribes after its cursor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.errors import AgentError, ClientClosed
from antiphon.events import ChildEvent, Event, Heartbeat, TurnFailedEvent, TurnRetrying, decode_event
from antiphon.input.values import duration

__all__ = ["BEGIN", "END", "HEADERS", "encode", "ended_by", "for_users", "stream", "stream_sync"]

log = logging.getLogger("antiphon.sse")

HEADERS = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
"""The headers of the response. The last one makes nginx forward each message at once."""

BEGIN = b"retry: 1000\n\n"
"""The first message: a browser that has lost the connection reconnects after this many ms."""

END = b"event: end\ndata: {}\n\n"
"""The last message, after which a browser need not reconnect."""
_HEARTBEAT = b": heartbeat\n\n"


def encode(event: Event) -> bytes:
    """Return one event as a message; a ``Heartbeat`` as a comment, which browsers ignore.

    >>> from antiphon.events import TextDelta
    >>> encode(TextDelta(seq=7, text="Hello"))
    b'id: 7\\ndata: {"type":"text_delta","text":"Hello","seq":7}\\n\\n'
    """
    if isinstance(event, Heartbeat):
        return _HEARTBEAT
    return b"id: %d\ndata: %b\n\n" % (event.seq, event.to_json())


def for_users(event: Event) -> Event:
    """Return an event as end users may read it.

    A failure keeps only its ``code``, ``limit`` and ``user_message``, also as ``message``. A ``TurnRetrying`` loses
    its ``reason`` and ``service``. Events of child turns are treated alike.

    >>> from antiphon.events import TurnFailedEvent
    >>> failed = TurnFailedEvent(code="provider_unauthorized", message="check the API key")
    >>> for_users(failed).message
    'The assistant is not available at the moment. Please try again later.'
    """
    match event:
        case TurnFailedEvent():
            return replace(event, message=event.user_message, raw="", service=None)
        case TurnRetrying():
            return replace(event, reason="", service=None)
        case ChildEvent():
            child = decode_event(msgspec.json.encode(event.event))
            shown = for_users(child)
            return event if shown is child else replace(event, event=msgspec.json.decode(shown.to_json()))
        case _:
            return event


async def stream(
    events: AsyncIterable[Event], *, heartbeat: float | timedelta = 15.0, to_users: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield events as messages, up to the last one, and a comment after each ``heartbeat`` seconds of silence.

    ``events`` are ``turn.stream(…)``, ``client.subscribe(…)`` or ``session.stream_async(…)``. They are closed when the
    response ends, also if the reader has left. A retryable error, or ``ClientClosed``, ends the response without
    ``end``, so that the browser reconnects. ``to_users`` applies ``for_users`` to each event.

    >>> from antiphon import Agent
    >>> turn = await Agent(provider="scripted", model="any").session().submit_async("Hello")
    >>> messages = [message async for message in stream(turn.stream())]
    >>> messages[0], messages[-1]
    (b'retry: 1000\\n\\n', b'event: end\\ndata: {}\\n\\n')
    """
    seconds, items = duration(heartbeat, "heartbeat"), aiter(events)
    coming: asyncio.Future[Event] | None = None
    try:
        yield BEGIN
        while True:
            coming = coming or asyncio.ensure_future(_next(items))
            if not (await asyncio.wait([coming], timeout=seconds))[0]:
                yield _HEARTBEAT
                continue
            event, coming = coming, None
            yield encode(for_users(event.result()) if to_users else event.result())
    except StopAsyncIteration:
        yield END
    except AgentError as exc:
        if last := ended_by(exc):
            yield last
    finally:
        await _leave(items, coming)


def stream_sync(events: Iterable[Event], *, to_users: bool = False) -> Iterator[bytes]:
    """``stream`` for frameworks with synchronous responses, such as Flask and Django.

    Heartbeats come from the events: ``client.subscribe(…, heartbeat=15)``, ``turn.stream(…, heartbeat=15)``.

    >>> turn = Agent(provider="scripted", model="any").session().submit("Hello")
    >>> list(stream_sync(turn.stream(heartbeat=15)))[-1]
    b'event: end\\ndata: {}\\n\\n'
    """
    yield BEGIN
    try:
        for event in events:
            yield encode(for_users(event) if to_users else event)
    except AgentError as exc:
        if last := ended_by(exc):
            yield last
    else:
        yield END


def ended_by(error: AgentError) -> bytes:
    """Return the last message of a stream that an error ends, or ``b""`` if its reader may reconnect.

    >>> from antiphon.errors import StreamGap
    >>> ended_by(StreamGap())
    b'event: end\\ndata: {"code":"stream_gap"}\\n\\n'
    """
    if error.retryable or isinstance(error, ClientClosed):
        log.info("A stream of events ends, and its reader may come back: %s", error)
        return b""
    return b"event: end\ndata: %b\n\n" % msgspec.json.encode({"code": str(error.code)})


async def _next(items: AsyncIterator[Event]) -> Event:
    return await anext(items)


async def _leave(items: AsyncIterator[Event], coming: asyncio.Future[Event] | None) -> None:
    if coming is not None:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    close: Any = getattr(items, "aclose", None)
    if close is not None:
        await close()
