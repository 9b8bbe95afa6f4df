"""A response that streams events. It ends with its reader, its caller's rights or this process, whichever is first.

Each event is sent whole, with its ``seq`` as the id: a reader that comes back, to any replica, goes on after the last
one that it has. A reader that takes nothing for ``STALL_SECONDS`` is left; it holds at most what the transport buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon import sse
from antiphon.errors import AgentError
from antiphon.events import Heartbeat
from antiphon.wire.published import Published
from antiphon_gateway.http.stopping import Stopping

__all__ = [
    "HEARTBEAT_SECONDS",
    "Closing",
    "EventStream",
    "PublishedEvents",
    "message_of",
    "messages_of",
    "within",
]

T = TypeVar("T")

log = logging.getLogger("antiphon.gateway")

HEARTBEAT_SECONDS = 15.0
STALL_SECONDS = 60.0
LAST_WORD_SECONDS = 1.0


class Closing(Protocol):
    """Where the messages of a stream come from."""

    async def aclose(self) -> None: ...


class EventStream(Response):
    """Sends messages as they come; they are made from ``events``, which are closed at the end.

    ``until`` is when the caller's rights end, in seconds since 1970. ``held`` is entered while the stream is open.
    """

    def __init__(
        self,
        events: Closing,
        messages: AsyncIterator[bytes],
        stopping: Stopping,
        *,
        until: float | None,
        held: AbstractContextManager[Any],
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, {**sse.HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._messages = messages
        self._stopping = stopping
        self._until = until
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._held:
                await self._run(receive, send)
        finally:
            await self._events.aclose()

    async def _run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sending, left = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(_left(receive))
        tasks = [sending, left, asyncio.ensure_future(self._stopping.wait())]
        seconds = None if self._until is None else max(0.0, self._until - time.time())
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if left.done() and not left.cancelled():
            return
        if sending.done() and not sending.cancelled() and (error := sending.exception()):
            _tell(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        async for message in self._messages:
            async with asyncio.timeout(STALL_SECONDS):
                await send({"type": "http.response.body", "body": message, "more_body": True})


def _tell(error: BaseException) -> None:
    if isinstance(error, TimeoutError):
        log.info("A stream ends: its reader has taken nothing for %g s", STALL_SECONDS)
    else:
        log.error("A stream ends: %s", type(error).__name__, exc_info=error)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PublishedEvents(Protocol):
    """Events as they were published, each once and in order; an empty list after the last one."""

    async def published(self) -> list[Published]: ...
    async def aclose(self) -> None: ...


async def messages_of(events: PublishedEvents, types: frozenset[str] | None) -> AsyncIterator[bytes]:
    """Yield events as messages, all that have come in one piece, perhaps only those of some types.

    An event is sent as it stands in the log: nobody decodes or encodes it here, however many readers it has.
    """
    yield sse.BEGIN
    sent = time.monotonic()
    try:
        while True:
            found = await within(events.published(), sent + HEARTBEAT_SECONDS - time.monotonic())
            if found == []:
                break
            shown = [message_of(one) for one in found or () if types is None or one.type in types]
            if shown:
                yield b"".join(shown)
            elif time.monotonic() - sent >= HEARTBEAT_SECONDS:
                yield sse.encode(Heartbeat())
            else:
                continue
            sent = time.monotonic()
    except AgentError as exc:
        if last := sse.ended_by(exc):
            yield last
    else:
        yield sse.END


def message_of(event: Published) -> bytes:
    """Return an event as one message."""
    return b"id: %d\ndata: %b\n\n" % (event.seq, event.json)


async def within(work: Awaitable[T], seconds: float) -> T | None:
    """Return what ``work`` returns, or None if that takes longer."""
    timer = asyncio.timeout(max(seconds, 0.0))
    try:
        async with timer:
            return await work
    except TimeoutError:
        if not timer.expired():
            raise
        return None
