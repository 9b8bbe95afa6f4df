"""The sessions of several cells as one list, the turns of a session, and those that no worker serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from antiphon.errors import CorruptRecord, StoreError
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import Status
from antiphon.redis.fields import decode_field
from antiphon.session.runtime import ListPlace, SessionInfo, agent_name
from antiphon.session.saved import ListedFields
from antiphon.wire import inspection
from antiphon.wire.cell import Cell
from antiphon.wire.inspection import SessionRow

__all__ = ["list_sessions", "list_turns", "warn_if_unserved"]

log = logging.getLogger("antiphon.unserved")

PAGE = 100
FIRST_LOOK_SECONDS = 3.0
LOOK_SECONDS = 30.0
LISTED = ListedFields.__struct_fields__


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
    turns = await inspection.turn_ids(cell, session_id)
    for start in range(0, len(turns), PAGE):
        some = turns[start : start + PAGE]
        for turn, found in zip(some, await inspection.statuses(cell, some), strict=True):
            if found and (status is None or found == status):
                yield turn


async def warn_if_unserved(cell: Cell, turn_id: TurnId) -> None:
    """Look now and then whether a worker may take the turn, and log one warning where none will; until cancelled.

    The turn stays where it is: workers may be on their way.
    """
    pause = FIRST_LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = LOOK_SECONDS
        try:
            complaint = await inspection.unserved(cell, turn_id)
        except StoreError:
            continue  # whoever waits hears of it by other ways
        if complaint:
            log.warning("%s", complaint, extra={"action": "turn_unserved", "turn": turn_id})
            return


async def _of_cell(
    cell: Cell, after: ListPlace | None, page: int
) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
    while places := await inspection.session_places(cell, after, page):
        for place, row in zip(places, await inspection.session_rows(cell, places, LISTED), strict=True):
            if row is not None:
                yield place, _info(row)
        after = places[-1]


def _info(row: SessionRow) -> SessionInfo:
    return SessionInfo(
        session_id=row.session_id,
        status="running" if row.held else "waiting" if row.turns else "done",
        agent=agent_name(_readable("agent", row.agent)),
        messages=row.messages,
        turns=row.turns,
        created=row.created,
        updated=row.updated,
        closed=row.closed,
        **{name: _readable(name, data) for name, data in row.fields.items()},
    )


def _readable(name: str, data: bytes) -> Any:
    """What one session holds must not hide all others: where it cannot be read, there is nothing."""
    try:
        return decode_field(name, data)
    except CorruptRecord:
        return decode_field(name, b"")
