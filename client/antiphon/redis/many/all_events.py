"""The ends of turns, and turns that wait for somebody, of all sessions: those of a tenant, of an agent, or all."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple, Self

from antiphon.errors import CorruptRecord, UsageError
from antiphon.events import Event, Heartbeat, decode_event
from antiphon.input.values import duration
from antiphon.redis.connections import Connections
from antiphon.redis.fields import decode_field
from antiphon.redis.many.notices import Notices, Page
from antiphon.redis.turn import terminal_event
from antiphon.session.runtime import agent_name
from antiphon.wire.cell import Cell
from antiphon.wire.lists.notices import KEEP_SECONDS, OLDEST, Notice, agents_of, noticed_events, turn_records
from antiphon.wire.records import TurnRecord

__all__ = ["NOTICED", "AllEvents", "FollowedEvent", "check_types", "is_agent", "read_events"]

NOTICED = ("turn_finished", "turn_failed", "turn_cancelled", "turn_suspended")


class FollowedEvent(NamedTuple):
    """An event of any session, and the cursor to go on behind it."""

    event: Event
    cursor: str


class AllEvents:
    """Iterates over noticed events after a cursor, without end. A cancelled ``anext`` loses nothing.

    Of several cells, the events of each come in their order. An event whose session was deleted meanwhile is left out.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        types: Iterable[str] | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        after: str | int | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> None:
        self._types = check_types(types)
        self._tenant = tenant
        self._agent = agent
        self._heartbeat = duration(heartbeat, "heartbeat")
        self._tags = {
            name: hashlib.sha256(name.encode()).hexdigest()[:8] for name, _ in connections.cells.named()
        }
        self._places = _places(after, self._tags)
        self._notices = Notices(connections, KEEP_SECONDS, self._places)
        self._page: Page | None = None
        self._ready: deque[tuple[Event | None, str, str]] = (
            deque()
        )  # each with the name of its cell and its entry
        self._started = False

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Begin to follow; no later event is missed. Iteration calls this itself."""
        if not self._started:
            await self._notices.start()
            self._places = {one.name: one.cursor for one in self._notices.of_cells}
            self._started = True

    @property
    def cursor(self) -> str:
        """Where this stands: behind the event that came last. Pass it as ``after=`` to go on from there."""
        return ",".join(f"{self._tags[name]}:{entry}" for name, entry in self._places.items())

    async def aclose(self) -> None:
        """Stop following."""
        await self._notices.aclose()

    async def __anext__(self) -> FollowedEvent:
        timer = asyncio.timeout(self._heartbeat)
        try:
            async with timer:
                event = await self._following()
        except TimeoutError:
            if not timer.expired():
                raise
            event = Heartbeat(seq=0)
        return FollowedEvent(event, self.cursor)

    async def _following(self) -> Event:
        await self.start()
        while True:
            while self._ready:
                event, name, entry = self._ready.popleft()
                self._places[name] = entry
                if event is not None:
                    return event
            if self._page is None:
                self._page = await self._notices.page()
            if self._page is not None:
                self._ready.extend(await self._events(self._page))
            self._page = None

    async def _events(self, page: Page) -> list[tuple[Event | None, str, str]]:
        """The events of a page, None for those that are not asked for or are gone."""
        wanted = [
            one for one in page.notices if one.kind in self._types and self._tenant in (None, one.tenant)
        ]
        if self._agent is not None:
            names = await page.of.patiently(lambda: agents_of(page.of.cell, wanted))
            wanted = [one for one, raw in zip(wanted, names, strict=True) if is_agent(raw, self._agent)]
        found = await page.of.patiently(lambda: read_events(page.of.cell, wanted))
        return [(found.get(one.id), page.of.name, one.id) for one in page.notices]


def is_agent(stored: bytes, name: str) -> bool:
    """Return whether this is the agent of a turn, as it is stored."""
    try:
        return agent_name(decode_field("agent", stored)) == name
    except CorruptRecord:
        return False


async def read_events(cell: Cell, wanted: Sequence[Notice]) -> dict[str, Event]:
    """Read the events that these notices are of, by the ids of the notices; those that are gone are left out.

    Raises ``StoreError``.
    """
    found: dict[str, Event] = {}
    trimmed: list[Notice] = []
    for one, entry in zip(wanted, await noticed_events(cell, wanted), strict=True):
        event = _event(entry)
        if event is None or event.turn_id != one.turn_id:
            trimmed.append(one)
        else:
            found[one.id] = event
    records = await turn_records(cell, [one.turn_id for one in trimmed]) if trimmed else []
    for one, record in zip(trimmed, records, strict=True):
        if isinstance(record, TurnRecord) and record.last_seq == one.seq:
            found[one.id] = terminal_event(record)
    return found


def _event(entry: bytes | None) -> Event | None:
    try:
        return None if entry is None else decode_event(entry)
    except CorruptRecord:
        return None


def check_types(types: Iterable[str] | None) -> Collection[str]:
    """Check the types of events to follow; without any, these are all. Raises ``UsageError``."""
    asked = NOTICED if types is None else [types] if isinstance(types, str) else list(types)
    for one in asked:
        if one not in NOTICED:
            raise UsageError(f"types= may name {', '.join(NOTICED)}, not {one!r}.")
    return asked


def _places(after: str | int | None, tags: dict[str, str]) -> dict[str, str]:
    """Read a cursor: an entry for each cell. A cell that it does not name is read from its oldest entry."""
    if after is None:
        return {}
    if after in (0, "0"):
        return dict.fromkeys(tags, OLDEST)
    given: dict[str, str] = {}
    for pair in str(after).split(","):
        tag, _, entry = pair.partition(":")
        given[tag] = entry
    if not all(entry == OLDEST or _is_entry(entry) for entry in given.values()):
        raise UsageError(f"after= must be a cursor that came with an event, 0 or None, not {after!r:.80}.")
    return {name: given.get(tag, OLDEST) for name, tag in tags.items()}


def _is_entry(text: str) -> bool:
    return [part.isascii() and part.isdigit() and len(part) < 20 for part in text.split("-")] == [True, True]
