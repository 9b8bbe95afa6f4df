"""The sessions of several cells as one list, and the turns of a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec

from antiphon.input.ids import SessionId, TurnId
from antiphon.model import Status
from antiphon.session.runtime import ListPlace, SessionInfo, agent_name
from antiphon.wire import inspection as overview
from antiphon.wire.cell import Cell
from antiphon.wire.inspection import SessionRow

__all__ = ["list_sessions", "list_turns"]

PAGE = 100


async def list_sessions(
    cells: Iterable[Cell], after: ListPlace | None, page: int
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    """The sessions of all cells by the end of their life, the last one first; read page by page."""
    streams = [_of_cell(cell, after, page) for cell in cells]
    try:
        heads = {stream: await anext(stream, None) for stream in streams}
        while rows := {stream: row for stream, row in heads.items() if row is not None}:
            first = max(rows, key=lambda stream: rows[stream][0])
            yield rows[first]
            heads[first] = await anext(first, None)
    finally:
        for stream in streams:
            await stream.aclose()


async def list_turns(
    cell: Cell, session_id: SessionId, status: Status | None
) -> AsyncGenerator[TurnId, None]:
    """A session's turns that are kept, the one submitted last first; those of one status, or all."""
    turns = await overview.turn_ids(cell, session_id)
    for start in range(0, len(turns), PAGE):
        some = turns[start : start + PAGE]
        for turn, found in zip(some, await overview.statuses(cell, some), strict=True):
            if found and (status is None or found == status):
                yield turn


async def _of_cell(
    cell: Cell, after: ListPlace | None, page: int
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    while places := await overview.session_places(cell, after, page):
        for place, row in zip(places, await overview.session_rows(cell, places), strict=True):
            if row is not None:
                yield place, _info(row)
        after = places[-1]


def _info(row: SessionRow) -> SessionInfo:
    agent = _json(row.agent)
    return SessionInfo(
        session_id=row.session_id,
        status="running" if row.held else "waiting" if row.turns else "done",
        tenant=row.tenant or None,
        agent=agent_name(agent if isinstance(agent, dict | str) else None),
        queue=row.queue or None,
        messages=row.messages,
        turns=row.turns,
        metadata=found if isinstance(found := _json(row.metadata), dict) else {},
        created=row.created,
        updated=row.updated,
        closed=row.closed,
    )


def _json(data: bytes) -> Any:
    """What one session holds must not hide all others: where it cannot be read, there is nothing."""
    try:
        return msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
