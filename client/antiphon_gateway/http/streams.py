"""Responses that stream events until the reader, the rights or the process ends.

Each event is sent whole, with its ``seq`` as the id: a reader that reconnects, to any replica, continues after the
last one that it has. If a reader takes nothing for ``STALL_SECONDS``, its stream ends; at most what the transport
buffers waits for it.

The request's own task sends. Everything else that may end a stream is a callback: an event wakes one task and
sets no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon import sse
from antiphon.errors import AgentError
from antiphon.events import Heartbeat, decode_event
from antiphon.telemetry import log_fault
from antiphon.wire.records import Published
from antiphon_gateway.http.connection import LEAVING
from antiphon_gateway.problems import Draining

T = TypeVar("T")


class Stopping:
    """Whether this gateway drains. It belongs to one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def begin(self) -> None:
        """Close WebSockets, and end the wait of requests for turns."""
        self._event.set()

    @property
    def began(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """Return what ``work`` returns. Raises ``Draining`` if the gateway drains first, and ``TimeoutError``."""
        task, drains = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            ended, _ = await asyncio.wait(
                [task, drains], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended:
                raise TimeoutError
            if task not in ended:
                raise Draining
            return task.result()
        finally:
            task.cancel()
            drains.cancel()
            await asyncio.gather(task, drains, return_exceptions=True)


LOOK_SECONDS = 1.0


class Watched(Protocol):
    """An open stream."""

    def look(self, now: float) -> None:
        """Do what is due at this time of ``time.monotonic``."""
        ...

    def end(self) -> None:
        """End at the cursor: the reader continues at another gateway."""
        ...


class Watch:
    """The open streams of one event loop."""

    def __init__(self) -> None:
        self._streams: set[Watched] = set()
        self._next: asyncio.TimerHandle | None = None
        self._over = False

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Watched) -> None:
        """Watch a stream from now on. If all streams were ended before, end it."""
        self._streams.add(stream)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        if self._over:
            stream.end()

    def discard(self, stream: Watched) -> None:
        self._streams.discard(stream)
        if not self._streams and self._next is not None:
            self._next.cancel()
            self._next = None

    def end(self) -> None:
        """End all streams, and those added later."""
        self._over = True
        for stream in list(self._streams):
            stream.end()

    def _look(self) -> None:
        self._next = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        now = time.monotonic()
        for stream in list(self._streams):
            stream.look(now)


log = logging.getLogger("antiphon.gateway")

HEARTBEAT_SECONDS = 15.0
STALL_SECONDS = 60.0
LAST_WORD_SECONDS = 1.0


class Closing(Protocol):
    """The source of a stream's messages."""

    async def aclose(self) -> None: ...


Leaving = Callable[[Callable[[], None] | None], object]
"""Registers what to call when the client leaves; None ends that."""


class EventStream(Response):
    """Sends messages as they arrive, and a comment after a silence. ``events`` are their source.

    ``until`` is when the caller's rights end, in seconds since 1970. ``held`` is entered while the stream is open. The
    events are closed at the end.
    """

    def __init__(
        self,
        events: Closing,
        messages: AsyncGenerator[bytes],
        watch: Watch,
        *,
        until: float | None,
        held: AbstractContextManager[Any],
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, {**sse.HEADERS, **(headers or {})})
        self.raw_headers = [one for one in self.raw_headers if one[0] != b"content-length"]
        self._events = events
        self._messages = messages
        self._watch = watch
        self._until = until
        self._held = held
        self._open = asyncio.timeout(None)
        self._left = False  # whether the reader is gone
        self._writing = 0  # messages that the transport has not taken
        self._written = time.monotonic()  # when the last one was given to it
        self._beating: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        try:
            with self._held:
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )
                self.raw_headers = []  # most streams are long and idle
                try:
                    await self._send_all(scope.get(LEAVING) or _Receiving(receive))
                except Exception as exc:  # noqa: BLE001 - it is logged, and the reader continues at its cursor
                    log_fault(log, exc, "A stream ends", action="stream_failed")
                await self._last_word()
        finally:
            if self._beating is not None:
                self._beating.cancel()
            try:
                await self._events.aclose()
            except Exception as exc:  # noqa: BLE001 - it is logged: the response has ended
                log_fault(log, exc, "The events of a stream could not be closed", action="stream_failed")

    async def aclose(self) -> None:
        """Close the events of a response that is not sent."""
        await self._messages.aclose()
        await self._events.aclose()

    def end(self) -> None:
        """End at the cursor."""
        if not self._open.expired():
            self._open.reschedule(0)

    def look(self, now: float) -> None:
        """End if the reader takes nothing, and send a comment after a silence."""
        silent = now - self._written
        if self._writing and silent >= STALL_SECONDS:
            log.info(
                "A stream ends: its reader has taken nothing for %g s",
                STALL_SECONDS,
                extra={"action": "reader_stalled"},
            )
            self.end()
        elif not self._writing and silent >= HEARTBEAT_SECONDS:
            self._beating = asyncio.ensure_future(self._write(sse.encode(Heartbeat())))

    async def _last_word(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._left:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, leaving: Leaving) -> None:
        """Send all messages, or those that come before something ends the stream."""
        try:
            async with self._open:
                if self._until is not None:
                    seconds = max(0.0, self._until - time.time())
                    self._open.reschedule(asyncio.get_running_loop().time() + seconds)
                leaving(self._leave)
                self._watch.add(self)
                try:
                    async for message in self._messages:
                        await self._write(message)
                finally:
                    self._watch.discard(self)
                    leaving(None)
                    await self._messages.aclose()
        except TimeoutError:
            if not self._open.expired():
                raise

    async def _write(self, message: bytes) -> None:
        if not self._writing:
            self._written = time.monotonic()
        self._writing += 1
        try:
            await self._send({"type": "http.response.body", "body": message, "more_body": True})
        finally:
            self._writing -= 1

    def _leave(self) -> None:
        self._left = True
        self.end()


class _Receiving:
    """Calls a function when the client leaves, for servers that report this only to a waiting task."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Future[None] | None = None

    def __call__(self, call: Callable[[], None] | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None if call is None else asyncio.ensure_future(self._wait(call))

    async def _wait(self, call: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        call()


class PublishedEvents(Protocol):
    """Events as they were published, each once and in order; an empty list after the last one."""

    async def published(self) -> list[Published]: ...
    async def aclose(self) -> None: ...


async def messages_of(
    events: PublishedEvents, types: frozenset[str] | None, *, for_users: bool = False
) -> AsyncGenerator[bytes]:
    """Yield events as messages, all that have arrived in one chunk; with ``types``, only those of these types.

    An event is sent as it is in the log, unless ``json_of`` decodes it. ``for_users`` is that of ``json_of``.
    """
    yield sse.BEGIN
    try:
        while found := await events.published():
            shown = [message_of(one, for_users) for one in found if types is None or one.type in types]
            if shown:
                yield b"".join(shown)
    except AgentError as exc:
        if last := sse.ended_by(exc):
            yield last
    else:
        yield sse.END


def message_of(event: Published, for_users: bool = False) -> bytes:
    """Return an event as one message."""
    return b"id: %d\ndata: %b\n\n" % (event.seq, json_of(event, for_users))


def json_of(event: Published, for_users: bool = False) -> bytes:
    """Return the JSON of an event. A failure has its sentence for end users; ``for_users`` omits its other texts."""
    if event.type not in ("turn_failed", "turn_retrying") and not (for_users and event.type == "child_event"):
        return event.json
    found = decode_event(event.json)
    if for_users:
        found = sse.for_users(found)
    return found.to_json()
