"""Waits for the ends of many turns at once, with one connection and one log for each cell."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from antiphon.errors import AgentError, StreamGap
from antiphon.input.ids import TurnId, turn_id
from antiphon.model import TERMINAL, Response
from antiphon.redis.all_events import Notices, Page
from antiphon.redis.connections import Connections
from antiphon.redis.turn import AsyncTurn, remember_end, response_of_end, response_to
from antiphon.wire.cell import Cell
from antiphon.wire.errors import unknown_turn
from antiphon.wire.lists.notices import ends_of, turn_records
from antiphon.wire.records import TurnRecord

Submitted = AsyncTurn | AgentError
"""What ``submit_many`` returns for each turn: the turn, or the error that refused it."""

KEEP_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 30.0
STATUSES, RECORDS = 1000, 100  # read in one round trip

Found = TurnRecord | AgentError | None
"""The record of a turn, or the error of reading it; None if the turn has expired."""


class Ends:
    """Yields turns as they end. Turns may be added while others are awaited.

    If a worker of an older release ends a turn, the next check notices it, at most half a minute later. A turn whose
    input another turn has taken ends with that turn.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._notices = Notices(connections, KEEP_SECONDS, {})
        self._asked: set[TurnId] = set()
        self._open: set[TurnId] = (
            set()
        )  # of these, those that have not ended, and turns that took the input of others
        self._unread: set[TurnId] = set()  # whose status must be read
        self._taken: dict[TurnId, TurnId] = {}  # turns that steered, and those that took their input
        self._steering = defaultdict[TurnId, set[TurnId]](set)  # the same the other way round
        self._started = False
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, turns: Iterable[TurnId]) -> None:
        """Wait for these as well."""
        new = {*turns} - self._asked
        self._asked |= new
        self._open |= new
        self._unread |= new

    async def ended(self) -> list[TurnId]:
        """Wait until a turn has ended, and return all that have. They are no longer awaited."""
        if not self._started:
            await self._notices.start()
            self._started, self._looked_at = True, time.monotonic()
        while self._asked:
            while self._unread:  # reading a turn that steered adds the one that took its input
                if ended := await self._read():
                    return ended
            await self._follow()
        return []

    async def records(self, turns: Sequence[TurnId]) -> dict[TurnId, Found]:
        """Read these turns, a hundred per round trip. A turn that steered has the record of the one it steered."""
        home = {turn: self._taken.get(turn, turn) for turn in turns}
        found: dict[TurnId, Found] = {}
        for notices, ids in self._by_cell({*home.values()}):
            for start in range(0, len(ids), RECORDS):
                some = ids[start : start + RECORDS]

                async def read(cell: Cell = notices.cell, some: list[TurnId] = some) -> list[Found]:
                    return await turn_records(cell, some)

                found |= zip(some, await notices.patiently(read), strict=True)
        return {turn: found[taker] for turn, taker in home.items()}

    async def aclose(self) -> None:
        """Stop waiting."""
        await self._notices.aclose()

    async def _follow(self) -> None:
        """Wait for notices of open turns. After a gap, and every half minute, all open turns are read again."""
        left = self._looked_at + LOOK_AGAIN_SECONDS - time.monotonic()
        try:
            page: Page | None = await self._notices.page(max(left, 0.0))
        except StreamGap:
            for one in self._notices.of_cells:
                await one.go_on()
            page = None
        if page is None:
            self._unread, self._looked_at = {*self._open}, time.monotonic()
        else:
            self._unread |= self._open & {one.turn_id for one in page.notices}

    async def _read(self) -> list[TurnId]:
        """Read the status of turns that may have ended."""
        over, takers = set[TurnId](), dict[TurnId, TurnId]()
        for notices, ids in self._by_cell(self._unread):
            for start in range(0, len(ids), STATUSES):
                some = ids[start : start + STATUSES]

                async def read(
                    cell: Cell = notices.cell, some: list[TurnId] = some
                ) -> list[tuple[str, TurnId]]:
                    return await ends_of(cell, some)

                for turn, (status, taker) in zip(some, await notices.patiently(read), strict=True):
                    if taker:
                        takers[turn] = taker
                    elif not status or status in TERMINAL:
                        over |= {turn, *self._steering.pop(turn, ())}
        ended = over & self._asked
        self._asked -= over
        self._open = (self._open - over - {*takers}) | {*takers.values()}
        self._unread = {*takers.values()}
        for turn, taker in takers.items():
            self._taken[turn] = taker
            self._steering[taker].add(turn)
        return [*ended]

    def _by_cell(self, turns: Iterable[TurnId]):
        """Return the notices of each cell, with its turns."""
        homes = defaultdict[int, list[TurnId]](list)
        for turn in turns:
            homes[id(self._connections.cell_of_turn(turn))].append(turn)
        return [(one, homes[id(one.cell)]) for one in self._notices.of_cells if id(one.cell) in homes]


async def as_completed(
    connections: Connections, turns: Iterable[Submitted | str]
) -> AsyncGenerator[AsyncTurn, None]:
    """Iterate over the turns in the order in which they end. See ``AsyncClient.as_completed``."""
    wanted: dict[TurnId, list[AsyncTurn | None]] = defaultdict(list)
    for one in turns:
        if isinstance(one, AsyncTurn):
            wanted[one.id].append(one)
        elif not isinstance(one, AgentError):
            wanted[turn_id(one)].append(None)
    ends = Ends(connections)
    async with aclosing(ends):
        ends.add(wanted)
        while len(ends):
            found = await ends.records(await ends.ended())
            for known, record in sorted(found.items(), key=lambda item: _ended_at(item[1])):
                for handle in wanted[known]:
                    yield _told(connections, known, handle, record)


async def results(
    connections: Connections, turns: Iterable[Submitted | str]
) -> AsyncGenerator[Response | AgentError, None]:
    """Iterate over the outcomes in the order of the turns. See ``AsyncClient.results``."""
    wanted = [one if isinstance(one, AsyncTurn | AgentError) else turn_id(one) for one in turns]
    ids = [one.id if isinstance(one, AsyncTurn) else one for one in wanted]
    over: set[TurnId] = set()
    ends = Ends(connections)
    async with aclosing(ends):
        ends.add({one for one in ids if not isinstance(one, AgentError)})
        start = 0
        while start < len(wanted):
            stop = start
            while (
                stop < len(ids)
                and stop - start < RECORDS
                and (isinstance(ids[stop], AgentError) or ids[stop] in over)
            ):
                stop += 1
            if stop == start:
                over |= {*await ends.ended()}
                continue
            found = await ends.records([one for one in ids[start:stop] if not isinstance(one, AgentError)])
            for one, known in zip(wanted[start:stop], ids[start:stop], strict=True):
                yield known if isinstance(known, AgentError) else outcome_of(one, known, found[known])
            start = stop


def _told(connections: Connections, known: TurnId, handle: AsyncTurn | None, record: Found) -> AsyncTurn:
    """Return the caller's handle of an ended turn, or a new one for an id. Raises ``TurnNotFound`` for an id."""
    if handle is None:
        if not isinstance(record, TurnRecord):
            raise record or unknown_turn(known)
        handle = AsyncTurn(connections, known, record.session_id)
    if isinstance(record, TurnRecord) and record.turn_id == known:  # not of one that steered
        remember_end(handle, record)
    return handle


def outcome_of(turn: AsyncTurn | TurnId | AgentError, known: TurnId, record: Found) -> Response | AgentError:
    """Return how a turn has ended: its response, or the error that ``result`` raises."""
    if not isinstance(record, TurnRecord):
        return record or unknown_turn(known)
    try:
        if isinstance(turn, AsyncTurn) and record.turn_id == known:
            return response_to(turn, record)
        return response_of_end(record)
    except AgentError as error:
        return error


def _ended_at(record: Found) -> int:
    at = record.fields.get("ended_at", b"") if isinstance(record, TurnRecord) else b""
    return int(at) if at.isdigit() else 0
