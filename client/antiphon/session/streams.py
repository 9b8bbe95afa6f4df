"""Streams of the events of a turn, and the deadline of the caller who waits for them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from datetime import timedelta
from typing import Any, Self, TypeVar

import msgspec

from antiphon.errors import AgentError, TurnFailed
from antiphon.events import Event, Heartbeat, TurnFinished
from antiphon.input.schema import typed
from antiphon.input.values import duration
from antiphon.session.background import iterate

T = TypeVar("T")

# A running turn ends itself at its timeout and publishes a terminal event: the extra time to wait for that event.
END_SECONDS = 0.5
# The number of event loop steps between leaving ``async for`` and the closing of its generator.
CLOSING_STEPS = 3

Events = Callable[[], AsyncGenerator[Event, None]]


class Deadline:
    """A deadline, counted from now in seconds. None means no deadline."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + (seconds or 0)

    async def wait(self, work: Awaitable[T], *, at_work: bool = False) -> T:
        """Await ``work`` and cancel it at the deadline. Then raises ``TurnFailed`` with the code ``turn_timed_out``."""
        if self._seconds is None:
            return await work
        left = max(self._at - time.monotonic(), 0)
        timer = asyncio.timeout(left + END_SECONDS * at_work)
        try:
            async with timer:
                return await work
        except TimeoutError as exc:
            if isinstance(exc, AgentError) or not timer.expired():
                raise  # the work's own, not the timer's
            raise TurnFailed(
                f"The turn did not end within {self._seconds:g} s.", code="turn_timed_out"
            ) from exc


class EventIterator(ABC):
    """Events, for ``async for`` and for ``anext``. A cancelled ``anext`` loses nothing: the next one continues.

    With a ``heartbeat``, in seconds, a ``Heartbeat`` comes after each such period without another event.
    """

    cursor: int | None = None
    """The ``seq`` of the last event."""

    def __init__(self, heartbeat: float | timedelta | None = None) -> None:
        self._heartbeat = duration(heartbeat, "heartbeat")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._heartbeat is None:
            return await self.following()
        timer = asyncio.timeout(self._heartbeat)
        try:
            async with timer:
                return await self.following()
        except TimeoutError:
            if not timer.expired():
                raise
            return Heartbeat(seq=self.cursor or 0)

    @abstractmethod
    async def following(self) -> Event:
        """Wait for the next event. Raises ``StopAsyncIteration`` at the end. A cancelled call takes no event."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop reading. Leaving the object to the garbage collector does the same."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class EventStream:
    """The events of a turn, for one ``for`` loop. The turn starts when the first event is requested.

    Leaving the loop before the terminal event rolls the turn back.
    """

    def __init__(self, stream: AsyncEventStream) -> None:
        self._work = stream.work
        self._own: Generator[Event, None, None] | None = None

    def __iter__(self) -> Iterator[Event]:
        return self._events()

    def _events(self) -> Generator[Event, None, None]:
        return iterate(self._work(), instead="Session.stream_async")

    def __next__(self) -> Event:
        """Return the next event, for use without a loop. Call ``close`` when you are done."""
        if self._own is None:
            self._own = self._events()
        return next(self._own)

    def close(self) -> None:
        """Leave the turn. Rolls it back unless its terminal event was seen."""
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncEventStream:
    """The events of a turn, for one ``async for`` loop. Awaiting the stream returns the stream itself."""

    def __init__(self, work: Events) -> None:
        self.work = work
        self._own: AsyncGenerator[Event, None] | None = None

    def __await__(self) -> Generator[Any, Any, AsyncEventStream]:
        return self
        yield  # makes this a generator that ends at once

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.work()

    async def __anext__(self) -> Event:
        """Return the next event, for use without a loop. Call ``aclose`` when you are done."""
        if self._own is None:
            self._own = self.work()
        return await anext(self._own)

    async def aclose(self) -> None:
        """Leave the turn. Rolls it back unless its terminal event was seen."""
        if self._own is not None:
            await self._own.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def typed_event(event: Event, schema: Any) -> Event:
    """Return the event with its response, if any, read as the caller's type. Raises ``InvalidOutput``."""
    if schema is None or not isinstance(event, TurnFinished) or event.response is None:
        return event
    return msgspec.structs.replace(event, response=typed(event.response, schema))
