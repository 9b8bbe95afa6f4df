"""The events of one turn, picked out of those of its session, up to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from antiphon.errors import StreamGap
from antiphon.events import Event
from antiphon.input.ids import TurnId
from antiphon.input.values import parse_cursor
from antiphon.model import TERMINAL
from antiphon.redis.subscription import Subscription
from antiphon.session.streams import EventIterator
from antiphon.session.turn import typed_event
from antiphon.wire.published import Published
from antiphon.wire.records import TurnRecord

__all__ = ["TurnEvents"]


class TurnEvents(EventIterator):
    """The events of a turn from its first one that is kept, or after a cursor, up to the one that ends it.

    ``record`` reads the turn, ``beginning`` the cursor before its first event that is kept, and ``kept`` whether the
    log holds the end of a turn that has ended. ``subscribe`` follows its session after a cursor, and
    ``terminal_event`` makes the last event of a turn whose events are gone.
    """

    def __init__(
        self,
        turn_id: TurnId,
        after: int | str | None,
        *,
        record: Callable[[], Awaitable[TurnRecord]],
        beginning: Callable[[], Awaitable[int]],
        kept: Callable[[TurnRecord], Awaitable[bool]],
        subscribe: Callable[[int], Subscription],
        terminal_event: Callable[[TurnRecord], Event],
        heartbeat: float | timedelta | None = None,
        schema: Any = None,
    ) -> None:
        super().__init__(heartbeat)
        self.cursor = parse_cursor(after)
        self._turn_id = turn_id
        self._schema = schema  # the caller's type for structured output
        self._read = record
        self._beginning = beginning
        self._kept = kept
        self._subscribe = subscribe
        self._terminal_event = terminal_event
        self._record: TurnRecord | None = None
        self._events: Subscription | None = None
        self._ended = False

    async def following(self) -> Event:
        if (end := await self._left()) is not None:
            return typed_event(end, self._schema)
        while (events := await self._reading()) is not None:
            try:
                event = await anext(events)
            except StreamGap as gap:
                event = await self._over(gap, events)
            if event is not None and self._takes(event):
                return typed_event(event, self._schema)
        await self.aclose()
        raise StopAsyncIteration

    async def published(self) -> list[Published]:
        """Wait for events, and return all that have come meanwhile, as they were published; none after the last one.

        Each comes once and in order, whether it is taken here or as an ``Event``.
        """
        if (end := await self._left()) is not None:
            return [Published.of(end)]
        while (events := await self._reading()) is not None:
            try:
                found = await events.published()
            except StreamGap as gap:
                left = await self._over(gap, events)
                found = [] if left is None else [Published.of(left)]
            if taken := [event for event in found if self._takes(event)]:
                return taken
        await self.aclose()
        return []

    async def _left(self) -> Event | None:
        """At the beginning, the end of a turn whose log holds it no more: its session was deleted, or began anew."""
        if self._record is not None or self._ended:
            return None
        record = self._record = await self._read()
        if record.status not in TERMINAL or self._seen(record) or await self._kept(record):
            return None
        end = self._terminal_event(record)
        return end if self._takes(end) else None

    async def _reading(self) -> Subscription | None:
        """The events of the session; None where the turn's last one was taken."""
        if self._ended:
            return None
        assert self._record is not None
        self._events = self._events or self._begin(self._record)
        return self._events

    def _takes(self, event: Event | Published) -> bool:
        """Whether the event is one of the turn's, before or at its end."""
        if event.turn_id != self._turn_id or self._ended:
            return False
        assert self._record is not None
        self.cursor = event.seq
        self._ended = event.terminal and event.run >= self._record.run
        return True

    async def aclose(self) -> None:
        """Stop reading."""
        self._ended = True
        if self._events is not None:
            await self._events.aclose()

    def _begin(self, record: TurnRecord) -> Subscription | None:
        """Follow the session; None where the caller has seen the turn's end."""
        if self._seen(record):
            return None
        return self._subscribe(max(record.queued_seq - 1, 0) if self.cursor is None else self.cursor)

    def _seen(self, record: TurnRecord) -> bool:
        """Whether the caller has seen the turn's end."""
        return record.status in TERMINAL and self.cursor is not None and self.cursor >= record.last_seq

    async def _over(self, gap: StreamGap, events: Subscription) -> Event | None:
        """What is missing was before the turn began: go on from there. Or the turn has ended: only its end is left."""
        self._record = await events.patiently(self._read)
        begins = await events.patiently(self._beginning)
        if begins > (events.cursor or 0):
            events.go_on(begins)
            return None
        if self._record.status in TERMINAL:
            return self._terminal_event(self._record)
        raise gap
