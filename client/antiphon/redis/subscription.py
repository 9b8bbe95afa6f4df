"""Follows the events of a session or a turn: each one once, in order, across reconnects.

    subscribe → wait for the confirmation → replay the log from the cursor → drop events seen before
    → a seq is missing, or the connection was lost: read the log again
    → nothing came for 5 s, then 10, 20 and 30: ask for its newest seq (``Silences``), and read the log if it is new
    → seq and time disagree (a later event has an earlier seq): read the log again
    → the missing events are no longer in the log: read the messages that they added from the history (``Past``)
    → the event at the cursor is a different one, or no notes of the history go back that far: StreamGap
    → the session was created again, or has ended: StreamGap

The log is authoritative; the channel only makes delivery fast. A later session with the same id skips a seq, so that
its events never follow a cursor of the earlier one. If it begins more than an hour after the earlier one ended, it
counts from 1 again: its events repeat earlier seqs, but have a later time. `life` in each page distinguishes the
sessions.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Self, TypeVar

from antiphon.errors import CorruptRecord, StreamGap
from antiphon.events import Event, decode_event
from antiphon.input.ids import SessionId, TurnId, check_tenant
from antiphon.input.values import parse_cursor
from antiphon.model import TERMINAL
from antiphon.redis.connections import Patience
from antiphon.redis.past import Past, PastOf
from antiphon.redis.silences import FIELDS, TICK_SECONDS, Found, silences
from antiphon.session.streams import EventIterator, typed_event
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import RESYNC, Listener, LiveFeed
from antiphon.wire.records import Published, TurnRecord, decode_published, readable

E = TypeVar("E", Event, Published)

PAGE = 500
SILENCE_SECONDS = 5.0
MOST_SILENCES = 6
"""A session that stays silent is checked less and less often: up to this multiple of ``SILENCE_SECONDS``."""
MISSED = -1
"""An event was published, but its message had not arrived when the session was checked."""
# The scripts write this at the beginning of every event.
_PLACE = re.compile(rb'\{"seq":(\d{1,18}),"at":(\d{1,18}),')


class Subscription(EventIterator):
    """Iterates over the events of one session after a cursor, without end.

    ``cursor`` is the seq of the last event returned; a new subscription after it continues from there. Raises
    ``StreamGap`` if events after the cursor are no longer kept and ``past`` cannot replace them, or if the session
    has ended, ``CorruptRecord`` if an event is damaged, ``WrongTenant`` if the session does not belong to ``tenant``,
    ``StoreUnavailable`` if its client has tried for some seconds and never reached Redis, and ``ClientClosed`` when
    its client is closed.

    A cancellation loses no event: events that were read wait in ``_log``, and published ones in the listener.
    """

    def __init__(
        self,
        cell: Cell,
        feed: LiveFeed,
        session_id: SessionId,
        after: int | str | None,
        *,
        tenant: str | None = None,
        heartbeat: float | timedelta | None = None,
        past: PastOf | None = None,
    ) -> None:
        super().__init__(heartbeat)
        self.session_id = session_id
        self.cursor = parse_cursor(after)
        self._beginning = self.cursor == 0  # until an event was returned
        self._past_of = past
        self._past: Past | None = None  # most readers never need it
        self._instead: Sequence[Event] = ()  # these replace events that are no longer kept
        self.cell = cell
        self._feed = feed
        self._tenant = tenant
        self._life = b""  # which session of this id it reads; empty until there is one
        self._entry: bytes | None = None  # the event at the cursor, once this subscription has seen it
        self._at = 0  # its time
        self._listens: AbstractAsyncContextManager[Listener] | None = None
        self._listener: Listener | None = None
        self._confirmed = False
        self._started = False
        self._log: list[tuple[int, bytes]] = []  # read from the log, and not returned yet
        self._behind = True  # the log may hold more than was read
        self._quiet = 0  # how many checks in a row found nothing new, or MISSED
        self._silence = _silence(0)
        self._doubtful = False  # its session could not be checked: the connection may be dead
        self.patiently = Patience(cell, feed, f"session {session_id}", session_id)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Subscribe, fix the cursor and check the tenant; no later event is missed. Iteration calls this itself."""
        if self._started:
            return
        listener = await self.listening()
        while not self._confirmed:
            try:
                await listener.get(self.patiently.left(SILENCE_SECONDS))
                self._confirmed = True
            except TimeoutError:
                await self.patiently(self._newest)  # logs it while Redis is unreachable
        if self.cursor is None:
            self.cursor = await self.patiently(self._newest)
            self._behind = False  # what is published after this comes over the channel
        elif self._tenant is not None:
            await self._read_log()
        self._started = True
        self._watch()

    def _watch(self) -> None:
        """Have the session checked whenever it is silent."""
        silences().watch(self)

    def go_on(self, after: int) -> None:
        """Continue after this event, as after a ``StreamGap``. The channel stays subscribed."""
        self._entry, self._at, self._life, self.cursor, self._beginning = None, 0, b"", after, False
        self._log.clear()
        self._instead = ()
        self._behind = True

    async def aclose(self) -> None:
        """Stop listening. Iterations that wait for an event end."""
        if self._listener is not None:
            self._listener.close(StopAsyncIteration())
        listens, self._listens = self._listens, None
        if listens is not None:
            await listens.__aexit__(None, None, None)

    async def following(self) -> Event:
        while True:
            if (self._behind or self._log or not self._started) and await self._ready():
                return self._from_log(decode_event)
            event = await self._from_channel(decode_event)
            if event is not None:
                return event

    async def published(self) -> list[Published]:
        """Wait for events, and return all that have arrived, as stored in the log.

        Each comes once and in order, whether it is read here or as an ``Event``. Raises what the iteration raises. A
        cancelled call takes no events.
        """
        found: list[Published] = []
        while not found:
            if (self._behind or self._log or self._instead or not self._started) and await self._ready():
                while self._instead or self._log:
                    try:
                        found.append(self._from_log(decode_published))
                    except CorruptRecord:
                        if not found:
                            raise
                        break
            elif (first := await self._from_channel(decode_published)) is not None:
                found.append(first)
                self._drain(found)
        return found

    def _drain(self, found: list[Published]) -> None:
        """Add the waiting messages that continue without a gap."""
        assert self._listener is not None
        while (message := self._listener.take()) is not None:
            event = self._next_event(message, decode_published)
            if event is not None:
                found.append(event)
            elif not self._seen(message):
                self._behind = True
                return

    async def _ready(self) -> bool:
        """Read the log where it may hold more. Return whether events from it wait to be returned."""
        if not self._started:
            await self.start()
        while self._behind and not (self._log or self._instead):
            await self._read_log()
        return bool(self._log or self._instead)

    async def listening(self) -> Listener:
        """Subscribe to the channel without waiting for the confirmation: ``start`` does that."""
        if self._listener is None:
            self.patiently.begin()
            channel = self.cell.keys.live(self.cell.database, self.session_id)
            listens = self._feed.listen(channel)
            self._listener = await listens.__aenter__()
            self._listens = listens
        return self._listener

    async def _from_channel(self, decode: Callable[[bytes], E]) -> E | None:
        """Return the next event of the channel, or None if the log must be read."""
        listener = self._listener or await self.listening()
        message = await listener.get()
        if self._quiet and message:
            self._quiet, self._silence = 0, _silence(0)
        self.patiently.heard = time.monotonic()
        event = self._next_event(message, decode) if self._life else None
        if event is None and not self._seen(message):
            self._behind = True
        return event

    @property
    def due(self) -> float | None:
        """When its session should be checked if no message comes; None once it has stopped listening."""
        if self._listener is None or self._listener.ended:
            return None
        return self.patiently.heard + self._silence

    def look(self, found: Found) -> None:
        """Process the result of a check, and read the log if anything has changed.

        If a new event's message has not arrived by the next check either, it was lost: the connection is broken.
        """
        listener, cursor = self._listener, self.cursor or 0
        self.patiently.heard = time.monotonic()
        if listener is None or listener.behind or self._behind or self._log or self._instead:
            return  # there is something to return
        unknown = isinstance(found, Exception)
        newest = 0 if unknown else number(found[0])
        if newest > cursor and self._quiet != MISSED:
            self._quiet, self._silence = MISSED, TICK_SECONDS
            return
        if newest > cursor:
            self._feed.reconnect()
        self._quiet = 0 if newest > cursor else max(self._quiet, 0) + 1
        self._silence = _silence(self._quiet)
        self._doubtful = unknown
        if unknown or newest != cursor or _life(*found[1:3]) != self._life or self._only_archived:
            listener.push(RESYNC)

    @property
    def _only_archived(self) -> bool:
        return not self._life and self._past is not None and self._past.archived

    async def _read_log(self) -> None:
        """Read up to a page of the log after the cursor. The log contains all events whose messages wait already."""
        if self._listener is not None:
            self._listener.clear()
        entries = await self.patiently(self._page)
        if self._doubtful and entries:
            self._feed.reconnect()
        self._doubtful = False
        self._log.extend(entries)
        self._behind = len(entries) == PAGE or bool(self._instead)

    def _from_log(self, decode: Callable[[bytes], E]) -> E:
        if self._instead:
            event = decode(self._instead[0].to_json())
            self._instead = self._instead[1:]
            self._stand_at(event.seq)
            return event
        seq, entry = self._log[0]
        try:
            event = self._accept(seq, _time(entry), entry, decode)
        except CorruptRecord as exc:
            raise type(exc)(
                f"Event {seq} cannot be decoded; continue after it with after={seq}. {exc}",
                session_id=self.session_id,
            ) from exc
        del self._log[0]
        return event

    def _next_event(self, message: bytes, decode: Callable[[bytes], E]) -> E | None:
        """Return the message's event if it follows the cursor, else None. The first one may be a later session's."""
        try:
            seq, at = _place(message)
            follows = self.cursor and seq == self.cursor + 1 and at >= self._at
            return self._accept(seq, at, message, decode) if follows else None
        except CorruptRecord:
            return None

    def _seen(self, message: bytes) -> bool:
        """Return whether the event was returned before. The log decides about all others."""
        try:
            seq, at = _place(message)
        except CorruptRecord:
            return False
        return seq <= (self.cursor or 0) and (at < self._at or message == self._entry)

    def _accept(self, seq: int, at: int, entry: bytes, decode: Callable[[bytes], E]) -> E:
        event = decode(self.cell.seal.open(self.session_id, "event", entry))
        if event.seq != seq:
            raise CorruptRecord(f"The event {seq} has the number {event.seq}.", session_id=self.session_id)
        self.cursor, self._at, self._entry = seq, at, entry
        self._beginning = False
        return event

    def _stand_at(self, seq: int) -> None:
        """Continue after an event that the log does not have."""
        self.cursor, self._at, self._entry = seq, 0, None
        self._beginning = self._beginning and not seq

    async def _page(self) -> list[tuple[int, bytes]]:
        """Return one page of the log after the cursor. Raises ``StreamGap`` if it does not continue there."""
        assert self.cursor is not None
        first_seq = max(self.cursor, 1)
        (first, newest, *life), entries = await self.cell.log(
            self.session_id, ("first", *FIELDS), first_seq, PAGE + 1
        )
        known = bool(self._life)
        self._check_life(*life)
        with readable("The log of a session", session_id=self.session_id):
            began, last = int(first or 0), int(newest or 0)
        if self._past_of is not None and await self._read_past(self._past_of, last, entries, known):
            return []
        self.cursor = self.cursor or began  # a session's first event need not be number 1
        at_cursor = entries.pop(0) if entries and entries[0][0] == self.cursor else None
        self._check(last, at_cursor, entries)
        if at_cursor is not None and self._entry is None:
            self._entry = at_cursor[1]
            self._at = _time(at_cursor[1])
        return entries[:PAGE]

    async def _read_past(
        self, past_of: PastOf, newest: int, entries: list[tuple[int, bytes]], known: bool
    ) -> bool:
        """Read the events that replace missing ones. Returns False if the log continues at the cursor.

        A cursor of 0 has a past if the reader has seen the session (``known``) before its first event. The log is
        read first, so that events trimmed from it in the meantime are not missed.
        """
        cursor, oldest = self.cursor or 0, entries[0][0] if entries else newest + 1
        if not (cursor or self._beginning or known) or (
            self._life and not cursor < newest >= oldest - 1 > cursor
        ):
            return False
        past = self._past = self._past or past_of(self.cell, self.session_id, self._tenant)
        if not (self._life or past.archived):
            return False
        found = await past.after(cursor, oldest if self._life else 0, beginning=self._beginning)
        if found:
            self._instead = found
        elif found is not None and self._life:
            self._stand_at(oldest - 1)
            return False
        return found is not None

    def _check(
        self, newest: int, at_cursor: tuple[int, bytes] | None, entries: list[tuple[int, bytes]]
    ) -> None:
        cursor = self.cursor or 0
        oldest = entries[0][0] if entries else None
        replaced = at_cursor is not None and self._entry is not None and at_cursor[1] != self._entry
        if newest < cursor or replaced or (newest > cursor and oldest != cursor + 1):
            if newest < cursor:
                missing = f"There is no event {cursor}; the session's last event is {newest}"
            elif replaced:
                missing = f"The session began anew: event {cursor} is a different one now"
            else:
                missing = f"Events after {cursor} are no longer kept"
            raise self._gap(missing, oldest)

    def _gap(self, missing: str, oldest: int | None = None) -> StreamGap:
        return StreamGap(
            f"{missing}: take a snapshot and continue after its cursor, with snapshot({self.session_id!r}) and "
            f"subscribe({self.session_id!r}, after=snapshot.cursor).",
            cursor=self.cursor or 0, oldest=oldest, session_id=self.session_id,
        )  # fmt: skip

    async def _newest(self) -> int:
        seq, *life = await self.cell.session_fields(self.session_id, *FIELDS)
        self._check_life(*life)
        with readable("The record of a session", session_id=self.session_id):
            return int(seq or 0)

    def _check_life(self, created: bytes | None, life: bytes | None, tenant: bytes | None) -> None:
        """Check the tenant of the session, and that it is still the session that was read before.

        Raises ``WrongTenant`` and ``StreamGap``. Older releases write no ``life``.
        """
        if self._tenant is not None:
            check_tenant(self.session_id, self._tenant, bool(created), text_of(tenant) or None)
        found = _life(created, life)
        if self._life and found != self._life:
            raise self._gap("The session was created again" if found else "The session has ended")
        self._life = found


def _life(created: bytes | None, life: bytes | None) -> bytes:
    """Return the value that distinguishes sessions with the same id; empty if there is no session."""
    return (life or created or b"") if created else b""


def _silence(quiet: int) -> float:
    """Return how long to wait for a message, with jitter so that sessions are not all checked at once."""
    return SILENCE_SECONDS * min(2**quiet, MOST_SILENCES) * random.uniform(0.8, 1.0)


def _place(event: bytes) -> tuple[int, int]:
    """Return the seq and the time at the beginning of an event. Raises ``CorruptRecord``."""
    found = _PLACE.match(event)
    if found is None:
        raise CorruptRecord("An event does not begin with its seq and its time.")
    return int(found[1]), int(found[2])


def _time(event: bytes) -> int:
    """Return the time of an event, or 0 for a damaged one, so that a reader can continue after it."""
    found = _PLACE.match(event)
    return int(found[2]) if found else 0


class TurnEvents(EventIterator):
    """The events of a turn, from its first kept one or after a cursor, up to the terminal one.

    ``record`` reads the turn, ``beginning`` the cursor before its first kept event, and ``kept`` whether the log
    still holds the end of an ended turn. ``subscribe`` follows its session, and ``terminal_event`` makes the last
    event of a turn whose events are gone. The channel is subscribed to before the turn is read: both answers are
    awaited at once, and the log is read after both.

    Set ``until`` to a cursor of the session to end there, even if the turn has not ended.
    """

    until: float = math.inf

    def __init__(
        self,
        turn_id: TurnId,
        after: int | str | None,
        *,
        record: Callable[[], Awaitable[TurnRecord]],
        beginning: Callable[[], Awaitable[int]],
        kept: Callable[[TurnRecord], Awaitable[bool]],
        subscribe: Callable[[], Subscription],
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
        while (events := self._reading()) is not None:
            try:
                event = await anext(events)
            except StreamGap as gap:
                event = await self._over(gap, events)
            if event is not None and self._takes(event):
                return typed_event(event, self._schema)
        await self.aclose()
        raise StopAsyncIteration

    async def published(self) -> list[Published]:
        """Wait for events, and return all that have arrived, as published; none after the last one.

        Each comes once and in order, whether it is read here or as an ``Event``.
        """
        if (end := await self._left()) is not None:
            return [Published.of(end)]
        while (events := self._reading()) is not None:
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
        """Before the first event, return the end of an ended turn if the log no longer contains it."""
        if self._record is not None or self._ended:
            return None
        record = self._record = await self._begin()
        if record.status not in TERMINAL or self._ended or await self._kept(record):
            return None
        end = self._terminal_event(record)
        return end if self._takes(end) else None

    def _reading(self) -> Subscription | None:
        """Return the session's subscription, or None after the turn's last event."""
        return None if self._ended else self._events

    def _takes(self, event: Event | Published) -> bool:
        """Return whether the event belongs to the turn, up to its end."""
        ended, self._ended = self._ended, self._ended or event.seq >= self.until
        if event.turn_id != self._turn_id or ended:
            return False
        assert self._record is not None
        self.cursor = event.seq
        self._ended = self._ended or (event.terminal and event.run >= self._record.run)
        return True

    async def aclose(self) -> None:
        """Stop reading."""
        self._ended = True
        if self._events is not None:
            await self._events.aclose()

    async def _begin(self) -> TurnRecord:
        """Read the turn, and follow its session from there unless the caller has seen the turn's end."""
        events = self._events = self._events or self._subscribe()
        try:
            await events.listening()
            record = await self._read()
        except Exception:
            self._events = None  # the next call starts over
            await events.aclose()
            raise
        cursor = max(record.queued_seq - 1, 0) if self.cursor is None else self.cursor
        seen = record.status in TERMINAL and self.cursor is not None and cursor >= record.last_seq
        self._ended = self._ended or seen
        events.go_on(cursor)
        return record

    async def _over(self, gap: StreamGap, events: Subscription) -> Event | None:
        """If the gap lies before the turn, continue from there. If the turn has ended, return its terminal event."""
        record = self._record = await events.patiently(self._read)
        if record.status in TERMINAL and not await events.patiently(lambda: self._kept(record)):
            return self._terminal_event(record)
        begins = await events.patiently(self._beginning)
        if begins > (events.cursor or 0):
            events.go_on(begins)
            return None
        if record.status in TERMINAL:
            return self._terminal_event(record)
        raise gap
