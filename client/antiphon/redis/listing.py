"""Lists the sessions and the delayed and suspended turns of several cells, and the turns of a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from antiphon.errors import CorruptRecord, SessionNotFound
from antiphon.input.ids import SessionId, TurnId, check_tenant
from antiphon.input.values import SessionWord
from antiphon.model import Status
from antiphon.redis.archived import ArchiveReader, archived_sessions, whole_snapshot
from antiphon.redis.connections import Connections
from antiphon.redis.fields import decode_field
from antiphon.session.runtime import ListPlace, SessionInfo, agent_name
from antiphon.session.saved import ListedFields
from antiphon.wire.cell import Cell
from antiphon.wire.lists import inspection
from antiphon.wire.lists.inspection import DueTurn, SessionRow
from antiphon.wire.lists.reading import Place
from antiphon.wire.lists.reading import places as places_of
from antiphon.wire.records import Snapshot
from antiphon.wire.suspension import SuspendedTurn, suspended_turns

T = TypeVar("T")

PAGE = 100
ARCHIVED = 0
"""The place of sessions that exist only in the archive: after all sessions in Redis."""
LISTED = ListedFields.__struct_fields__
LISTED_STATES: tuple[SessionWord, ...] = ("running", "suspended", "failed")
MOST_OF_A_STATE = 1000
"""The most turns that are read to find the sessions of a cell in one of these states."""


async def list_sessions(
    connections: Connections, after: ListPlace | None, page: int, state: SessionWord | None = None
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    """Iterate over the sessions of all cells, page by page; the session that expires last comes first.

    Sessions that exist only in the archive come last, ordered by id. For a ``state`` with a list of its own in Redis,
    only that list is read.
    """
    cells, archive = connections.cells, connections.archive
    if state in LISTED_STATES:
        async for row in merged(
            [_of_state(connections, cell, state, after, page) for cell in cells],
            lambda row: row[0],
            last=True,
        ):
            yield row
        return
    if after is None or after[0] > ARCHIVED:
        async with aclosing(_live_sessions(cells, after, page, archive)) as rows:
            async for row in rows:
                yield row
        after = None
    if archive is not None:
        async for session, found in archived_sessions(cells, archive, after[1] if after else "", page):
            row = _whole(SessionRow(session), found)
            yield (ARCHIVED, session), info_of(row)


async def _of_state(
    connections: Connections, cell: Cell, state: SessionWord, after: ListPlace | None, page: int
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    """Yield the sessions of a cell that run, are suspended or have failed, from the lists of their turns."""
    names = await inspection.sessions_in(cell, state, MOST_OF_A_STATE)
    places = [
        place for place in await inspection.places_of_sessions(cell, names) if after is None or place < after
    ]
    for start in range(0, len(places), page):
        some = places[start : start + page]
        rows = await inspection.session_rows(cell, some, LISTED)
        for place, row in zip(some, rows, strict=True):
            if row is not None:
                row.suspended = row.suspended or state == "suspended"
                whole = (
                    row if connections.archive is None else await _with_past(cell, connections.archive, row)
                )
                yield place, info_of(whole)


async def _live_sessions(
    cells: Iterable[Cell], after: ListPlace | None, page: int, archive: ArchiveReader | None
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    async for row in merged(
        [_of_cell(cell, after, page, archive) for cell in cells], lambda row: row[0], last=True
    ):
        yield row


def list_due(cells: Iterable[Cell], page: int = PAGE) -> AsyncGenerator[DueTurn, None]:
    """Iterate over the delayed turns of all cells, the next one first; read page by page."""
    return merged(
        [_timed(cell, cell.keys.due, page, inspection.due_turns) for cell in cells], lambda turn: turn.due
    )


def list_suspended(cells: Iterable[Cell], page: int = PAGE) -> AsyncGenerator[SuspendedTurn, None]:
    """Iterate over the suspended turns of all cells, the longest wait first; read page by page."""
    streams = [_timed(cell, cell.keys.suspended, page, suspended_turns) for cell in cells]
    return merged(streams, lambda turn: turn.suspended)


async def merged(
    streams: Sequence[AsyncGenerator[T, None]], place_of: Callable[[T], Any], *, last: bool = False
) -> AsyncGenerator[T, None]:
    """Merge these iterations in the order of the places; with ``last``, the greatest place comes first."""
    first_of = max if last else min
    try:
        heads = {stream: await anext(stream, None) for stream in streams}
        while there := {stream: one for stream, one in heads.items() if one is not None}:
            first = first_of(there, key=lambda stream: place_of(there[stream]))
            yield there[first]
            heads[first] = await anext(first, None)
    finally:
        for stream in streams:
            await stream.aclose()


async def list_turns(
    cell: Cell, session_id: SessionId, status: Status | None, tenant: str | None
) -> AsyncGenerator[TurnId, None]:
    """Iterate over a session's kept turns, newest first: all, or those with one status."""
    turns, exists, found = await inspection.turn_ids(cell, session_id)
    check_tenant(session_id, tenant, exists, found)
    for start in range(0, len(turns), PAGE):
        some = turns[start : start + PAGE]
        for turn, found in zip(some, await inspection.statuses(cell, some), strict=True):
            if found and (status is None or found == status):
                yield turn


async def _of_cell(
    cell: Cell, after: ListPlace | None, page: int, archive: ArchiveReader | None
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    while places := await places_of(cell, cell.keys.sessions, after, page, last_first=True):
        for place, row in zip(places, await inspection.session_rows(cell, places, LISTED), strict=True):
            if row is not None:
                yield place, info_of(row if archive is None else await _with_past(cell, archive, row))
        after = places[-1]


async def _with_past(cell: Cell, archive: ArchiveReader, row: SessionRow) -> SessionRow:
    """Return the row including its archived past. A copy that cannot be read is left out."""
    if row.restored:
        return row
    try:
        return _whole(row, await whole_snapshot(cell, archive, SessionId(row.session_id), 1, 0))
    except (CorruptRecord, SessionNotFound):
        return row


def _whole(row: SessionRow, found: Snapshot) -> SessionRow:
    fields = found.fields
    row.fields = {name: fields.get(name, b"") for name in LISTED}
    row.agent, row.closed, row.messages = fields.get("agent", b""), "closed" in fields, found.history_length
    row.updated = decode_field("updated", fields.get("updated", b""))
    row.created = decode_field("created", fields.get("created", b"")) or row.updated
    return row


async def _timed(
    cell: Cell,
    key: str,
    page: int,
    read: Callable[[Cell, list[Place]], Awaitable[Sequence[T | None]]],
) -> AsyncGenerator[T, None]:
    """Yield the turns of a list that is ordered by time, without those that no longer exist."""
    after: Place | None = None
    while places := await places_of(cell, key, after, page):
        for turn in await read(cell, places):
            if turn is not None:
                yield turn
        after = places[-1]


def info_of(row: SessionRow) -> SessionInfo:
    """Return a session of a list as callers see it."""
    states: dict[SessionWord, Any] = {
        "running": row.held, "suspended": row.suspended, "waiting": row.turns, "delayed": row.due, "failed": row.failed,
    }  # fmt: skip
    words: list[SessionWord] = [word for word, is_so in states.items() if is_so]
    return SessionInfo(
        session_id=row.session_id, status=words[0] if words else "done",
        due=row.due or None, agent=agent_name(_readable("agent", row.agent)), messages=row.messages, turns=row.turns,
        created=row.created, updated=row.updated, closed=row.closed,
        **{name: _readable(name, data) for name, data in row.fields.items()},
    )  # fmt: skip


def _readable(name: str, data: bytes) -> Any:
    """Decode a value, or return an empty one if it is damaged: one damaged session must not hide all others."""
    try:
        return decode_field(name, data)
    except CorruptRecord:
        return decode_field(name, b"")
