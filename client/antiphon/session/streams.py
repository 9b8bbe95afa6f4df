"""The events of a turn that its caller owns: leaving the loop early rolls the turn back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing
from typing import Any, Self

from antiphon.events import Event
from antiphon.session.background import iterate
from antiphon.session.reentry import Reading

__all__ = ["AsyncEventStream", "EventStream"]

Batches = Callable[[], AsyncGenerator[list[Event], None]]


class EventStream:
    """Iterate over it once. The turn starts with the first event that is asked for.

    The iterator is not kept here, so that leaving a ``for`` loop drops it, and with it the turn.
    """

    def __init__(self, work: Batches) -> None:
        self._work = work
        self._own: Generator[Event, None, None] | None = None

    def __iter__(self) -> Iterator[Event]:
        return _events(self._work)

    def __next__(self) -> Event:
        """The next event, for callers without a loop; ``close`` when done."""
        if self._own is None:
            self._own = _events(self._work)
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
    """``async for`` over it, or over what awaiting it gives, which is the same."""

    def __init__(self, work: Batches) -> None:
        self._work = work
        self._own: AsyncGenerator[Event, None] | None = None

    def __await__(self) -> Generator[Any, Any, AsyncEventStream]:
        return self
        yield  # makes this a generator that ends at once

    def __aiter__(self) -> AsyncIterator[Event]:
        return _async_events(self._work)

    async def __anext__(self) -> Event:
        """The next event, for callers without a loop; ``aclose`` when done."""
        if self._own is None:
            self._own = _async_events(self._work)
        return await anext(self._own)

    async def aclose(self) -> None:
        """Leave the turn. Rolls it back unless its terminal event was seen."""
        if self._own is not None:
            await self._own.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _events(work: Batches) -> Generator[Event, None, None]:
    batches, reading = iterate(work()), Reading()
    try:
        for batch in batches:
            for event in batch:
                yield reading.given(event)
            reading.asks()
    finally:
        reading.asks()
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]


async def _async_events(work: Batches) -> AsyncGenerator[Event, None]:
    reading = Reading()
    async with aclosing(work()) as batches:
        try:
            async for batch in batches:
                for event in batch:
                    yield reading.given(event)
                reading.asks()
        finally:
            reading.asks()
