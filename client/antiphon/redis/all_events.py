"""Follows the completion events of all sessions."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import NamedTuple, Self

from antiphon.errors import CorruptRecord, StreamGap, UsageError
from antiphon.events import Event, Heartbeat, decode_event
from antiphon.input.values import duration
from antiphon.redis.connections import Connections, Patience
from antiphon.redis.fields import decode_field
from antiphon.redis.turn import terminal_event
from antiphon.session.runtime import agent_name
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import RESYNC, Listener, LiveFeed
from antiphon.wire.lists.notices import (
    KEEP_SECONDS,
    OLDEST,
    Notice,
    agents_of,
    follow,
    noticed_events,
    read_notices,
    turn_records,
)
from antiphon.wire.records import TurnRecord

PAGE = 500
SILENCE_SECONDS = 5.0


class CellNotices:
    """The completion events of one cell after a cursor. ``cursor`` is the last entry read, '' before the start."""

    def __init__(self, name: str, cell: Cell, feed: LiveFeed, after: str, keep_seconds: float) -> None:
        self.name = name
        self.cell = cell
        self.cursor = after
        self._feed = feed
        self._keep_seconds = keep_seconds
        self._stack = AsyncExitStack()
        self._listener: Listener | None = None
        self._asked_at = 0.0  # when the log was last requested
        self._behind = True
        self._silent = False
        self.patiently = Patience(cell, feed, f"notices of {name}")

    async def start(self) -> None:
        """Request the notices. Without a cursor, those from now on are read."""
        if self._listener is None:
            self.patiently.begin()
            channel = self.cell.keys.live(self.cell.database, "")
            self._listener = await self._stack.enter_async_context(self._feed.listen(channel))
        newest = await self.patiently(self._ask)
        self.cursor = self.cursor or newest

    async def go_on(self) -> None:
        """Continue with notices from now on, as after a ``StreamGap``."""
        self.cursor = await self.patiently(self._ask)

    async def aclose(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close(StopAsyncIteration())
        await self._stack.aclose()

    async def page(self) -> list[Notice]:
        """Wait for notices, and return a page of them. Raises ``StreamGap``."""
        if self._listener is None:
            await self.start()
        while True:
            if self._behind:
                found = await self.patiently(self._read)
                if found is None:
                    raise StreamGap(
                        f"The completion events after {self.cursor} of {self.name} are no longer kept: "
                        "list the sessions or failed turns you need, and subscribe again without a cursor."
                    )
                self._behind = len(found) == PAGE
                if found:
                    self._hurry()
                    self.cursor = found[-1].id
                    return found
            await self._wake()

    async def _wake(self) -> None:
        assert self._listener is not None
        if time.monotonic() - self._asked_at > self._keep_seconds / 4:
            await self.patiently(self._ask)
        try:
            message = await self._listener.get(self.patiently.left(SILENCE_SECONDS))
            self._behind = message == RESYNC or place(text_of(message)) > place(self.cursor)
        except TimeoutError:
            self._behind = self._silent = True
        self.patiently.heard = time.monotonic()

    def _hurry(self) -> None:
        """Reconnect the channel if it was silent although there were notices."""
        if self._silent:
            self._feed.reconnect()
        self._silent = False

    async def _ask(self) -> str:
        newest = await follow(self.cell, int(self._keep_seconds * 1000))
        self._asked_at = time.monotonic()
        return newest

    async def _read(self) -> list[Notice] | None:
        return await read_notices(self.cell, self.cursor, PAGE)


class Page(NamedTuple):
    """Notices of one cell."""

    of: CellNotices
    notices: list[Notice]


class Notices:
    """The notices of all cells, as they arrive. A cancelled call loses none.

    ``after`` has entries by cell name; a cell without one begins with new notices. The logs are kept for
    ``keep_seconds`` after they were last requested.
    """

    def __init__(self, connections: Connections, keep_seconds: float, after: Mapping[str, str]) -> None:
        self.of_cells = [
            CellNotices(name, cell, connections.feed_of(cell), after.get(name, ""), keep_seconds)
            for name, cell in connections.cells.named()
        ]
        self._reading: dict[CellNotices, asyncio.Task[list[Notice]]] = {}

    async def start(self) -> None:
        """Request the notices of every cell; later ones are not missed."""
        for one in self.of_cells:
            await one.start()

    async def page(self, timeout: float | None = None) -> Page | None:
        """Wait for notices of any cell; None after ``timeout`` seconds. Raises ``StreamGap`` if one has a gap."""
        for one in self.of_cells:
            if one not in self._reading:
                self._reading[one] = asyncio.create_task(one.page(), name="antiphon notices")
        done, _ = await asyncio.wait(
            self._reading.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        for one, task in list(self._reading.items()):
            if task in done:
                del self._reading[one]
                return Page(one, task.result())
        return None

    async def aclose(self) -> None:
        """Stop reading."""
        tasks = [*self._reading.values()]
        self._reading.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self.of_cells:
            await one.aclose()


def place(entry_id: str) -> tuple[int, int]:
    """Return the sort key of an entry."""
    at, _, number = entry_id.partition("-")
    return int(at or 0), int(number or 0)


NOTICED = ("turn_finished", "turn_failed", "turn_cancelled", "turn_suspended")


class FollowedEvent(NamedTuple):
    """An event of any session, and the cursor to continue after it."""

    event: Event
    cursor: str


class AllEvents:
    """Iterates over completion events after a cursor, without end. A cancelled ``anext`` loses nothing.

    With several cells, the events of each come in order. Events of sessions deleted in the meantime are left out.
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
        """The position after the last event. Pass it as ``after=`` to continue from there."""
        return ",".join(f"{self._tags[name]}:{entry}" for name, entry in self._places.items())

    async def aclose(self) -> None:
        """Stop following."""
        await self._notices.aclose()

    async def __anext__(self) -> FollowedEvent:
        await self.start()  # before the first heartbeat, so that each has a cursor
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
        """Return the events of a page, with None for those that were not requested or are gone."""
        wanted = [
            one for one in page.notices if one.kind in self._types and self._tenant in (None, one.tenant)
        ]
        if self._agent is not None:
            names = await page.of.patiently(lambda: agents_of(page.of.cell, wanted))
            wanted = [one for one, raw in zip(wanted, names, strict=True) if is_agent(raw, self._agent)]
        found = await page.of.patiently(lambda: read_events(page.of.cell, wanted))
        return [(found.get(one.id), page.of.name, one.id) for one in page.notices]


def is_agent(stored: bytes, name: str) -> bool:
    """Return whether the stored agent of a turn has this name."""
    try:
        return agent_name(decode_field("agent", stored)) == name
    except CorruptRecord:
        return False


async def read_events(cell: Cell, wanted: Sequence[Notice]) -> dict[str, Event]:
    """Read the events of these notices, by the ids of the notices; those that are gone are left out.

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
    for one in wanted:
        if one.id in found:
            found[one.id].tenant = one.tenant
    return found


def _event(entry: bytes | None) -> Event | None:
    try:
        return None if entry is None else decode_event(entry)
    except CorruptRecord:
        return None


def check_types(types: Iterable[str] | None) -> Collection[str]:
    """Check the types of events to follow; None means all. Raises ``UsageError``."""
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
