"""Following a session's events: each once, in order, whatever happens to the connection.

    subscribe → wait for the confirmation → replay the log from the cursor → drop what was seen
    → a seq is missing, the connection was lost, or 5 s of silence: read the log again
    → number and time do not go the same way (a later event with an earlier seq): read the log again
    → what is missing is no longer in the log, or the event at the cursor is another one now: StreamGap

The log is the truth, the channel only makes it quick. A session that was deleted and began anew counts from 1 again:
its events look like some that were seen before, but they are later.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self, TypeVar

from redis.exceptions import RedisError

from antiphon.errors import CorruptRecord, StoreUnavailable, StreamGap
from antiphon.events import Event, decode_event
from antiphon.input.ids import SessionId
from antiphon.input.values import parse_cursor
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import RESYNC, Listener, LiveFeed
from antiphon.wire.errors import store_error
from antiphon.wire.records import readable

__all__ = ["Subscription"]

T = TypeVar("T")
log = logging.getLogger("antiphon.subscribe")

PAGE = 500
SILENCE_SECONDS = 5.0
OUTAGE_RETRY_SECONDS = 1.0
_PLACE = re.compile(rb'\{"seq":(\d{1,18}),"at":(\d{1,18}),')  # what the scripts put in front of every event


class Subscription:
    """The events of one session, from a cursor on, without end.

    ``cursor`` is the seq of the event that was last given: a new subscription after it goes on from there.
    Raises ``StreamGap`` where events after the cursor are no longer kept, ``CorruptRecord`` where one cannot be read,
    and ``ClientClosed`` when its client is closed.
    """

    def __init__(self, cell: Cell, feed: LiveFeed, session_id: SessionId, after: int | str | None) -> None:
        self.session_id = session_id
        self.cursor = parse_cursor(after)
        self._cell = cell
        self._feed = feed
        self._entry: bytes | None = None  # the event at the cursor, once this subscription has seen it
        self._at = 0  # its time
        self._stack = AsyncExitStack()
        self._listener: Listener | None = None
        self._events: AsyncGenerator[Event, None] | None = None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        await self.start()
        assert self._events is not None
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Subscribe and settle the cursor; no event after it is missed from here on. Iteration calls it itself."""
        if self._listener is not None:
            return
        channel = self._cell.keys.live(self._cell.database, self.session_id)
        self._listener = await self._stack.enter_async_context(self._feed.listen(channel))
        await self._confirmed(self._listener)
        if self.cursor is None:
            self.cursor = await self.patiently(self._newest)
        self._events = self._follow(self._listener, self.cursor)

    def go_on(self, after: int) -> None:
        """Go on behind another event than the last one, after a ``StreamGap``: the channel was never left."""
        assert self._listener is not None
        self._entry, self._at = None, 0
        self._events = self._follow(self._listener, after)

    async def aclose(self) -> None:
        """Stop listening."""
        if self._events is not None:
            await self._events.aclose()
        await self._stack.aclose()

    async def _confirmed(self, listener: Listener) -> None:
        while True:
            try:
                await listener.get(SILENCE_SECONDS)
            except TimeoutError:
                await self.patiently(self._newest)  # says so in the log while Redis is away
                continue
            return

    async def _follow(self, listener: Listener, cursor: int) -> AsyncGenerator[Event, None]:
        self.cursor = cursor
        message = RESYNC
        while True:
            event = self._next_event(message)
            if event is not None:
                yield event
            elif not self._seen(message):
                async for event in self._replay():
                    yield event
            try:
                message = await listener.get(SILENCE_SECONDS)
            except TimeoutError:
                message = RESYNC
                if await self.patiently(self._newest) > self.cursor:
                    self._feed.reconnect()

    def _next_event(self, message: bytes) -> Event | None:
        """The event that follows the cursor; None for anything else, also for what is no event."""
        try:
            seq, at = _place(message)
            follows = seq == (self.cursor or 0) + 1 and at >= self._at
            return self._accept(seq, message) if follows else None
        except CorruptRecord:
            return None

    def _seen(self, message: bytes) -> bool:
        """True for an event that was given before. Of anything else the log says what is true."""
        try:
            seq, at = _place(message)
        except CorruptRecord:
            return False
        return seq <= (self.cursor or 0) and (at < self._at or message == self._entry)

    def _accept(self, seq: int, entry: bytes) -> Event:
        event = decode_event(entry)
        if event.seq != seq:
            raise CorruptRecord(f"The event {seq} says that it is {event.seq}.", session_id=self.session_id)
        self._arrive(seq, entry)
        return event

    def _arrive(self, seq: int, entry: bytes) -> None:
        self.cursor, self._entry, self._at = seq, entry, _time(entry)

    async def _replay(self) -> AsyncGenerator[Event, None]:
        """What the log holds after the cursor, in pages."""
        while True:
            entries = await self.patiently(self._page)
            for seq, entry in entries:
                try:
                    event = self._accept(seq, entry)
                except CorruptRecord as exc:
                    raise CorruptRecord(
                        f"Event {seq} cannot be read; after={seq} goes on behind it. {exc}",
                        session_id=self.session_id,
                    ) from exc
                yield event
            if len(entries) < PAGE:
                return

    async def _page(self) -> list[tuple[int, bytes]]:
        """One page of the log after the cursor. Raises ``StreamGap`` where it does not go on from there."""
        assert self.cursor is not None
        keys, redis = self._cell.keys, self._cell.redis
        pipe = redis.pipeline(transaction=True)
        pipe.hmget(keys.session(self.session_id), "seq", "first")
        pipe.xrange(keys.events(self.session_id), f"{max(self.cursor, 1)}-0", "+", count=PAGE + 1)
        try:
            (newest, first), raw = await pipe.execute()
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc
        with readable("The log of a session", session_id=self.session_id):
            entries = [(int(entry_id.partition(b"-")[0]), fields.get(b"e", b"")) for entry_id, fields in raw]
            self.cursor = self.cursor or int(first or 0)  # a session's first event need not be number 1
            last = int(newest or 0)
        at_cursor = entries.pop(0) if entries and entries[0][0] == self.cursor else None
        self._check(last, at_cursor, entries)
        if at_cursor is not None and self._entry is None:
            self._arrive(*at_cursor)
        return entries[:PAGE]

    def _check(
        self, newest: int, at_cursor: tuple[int, bytes] | None, entries: list[tuple[int, bytes]]
    ) -> None:
        cursor = self.cursor or 0
        oldest = entries[0][0] if entries else None
        replaced = at_cursor is not None and self._entry is not None and at_cursor[1] != self._entry
        if newest < cursor or replaced or (newest > cursor and oldest != cursor + 1):
            if newest < cursor:
                missing = f"There is no event {cursor}, the session's last one is {newest}"
            elif replaced:
                missing = f"The session began anew: its event {cursor} is another one now"
            else:
                missing = f"Events after {cursor} are no longer kept"
            raise StreamGap(
                f"{missing}: take a snapshot and go on from its cursor.",
                cursor=cursor, oldest=oldest, session_id=self.session_id,
            )  # fmt: skip

    async def _newest(self) -> int:
        try:
            seq = await self._cell.redis.hget(self._cell.keys.session(self.session_id), "seq")  # pyright: ignore[reportGeneralTypeIssues]
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc
        with readable("The record of a session", session_id=self.session_id):
            return int(seq or 0)

    async def patiently(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read, and wait for Redis to come back where it is away; the log says when it went and came.

        Raises ``ClientClosed`` where nobody waits any more: a closed client makes no connections.
        """
        lost_at = 0.0
        while True:
            self._feed.check_open()
            try:
                found = await read()
            except StoreUnavailable as exc:
                if not lost_at:
                    lost_at = time.monotonic()
                    log.warning("session %s: %s Trying again.", self.session_id, exc)
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)
                continue
            if lost_at:
                log.info(
                    "session %s: Redis is back after %.1f s", self.session_id, time.monotonic() - lost_at
                )
            return found


def _place(event: bytes) -> tuple[int, int]:
    """The seq and the time that stand in front of every event. Raises ``CorruptRecord``."""
    found = _PLACE.match(event)
    if found is None:
        raise CorruptRecord("An event does not begin with its seq and its time.")
    return int(found[1]), int(found[2])


def _time(event: bytes) -> int:
    """The time of an event; 0 for a damaged one, behind which a reader may go on."""
    found = _PLACE.match(event)
    return int(found[2]) if found else 0
