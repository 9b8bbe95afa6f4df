"""The choice of a router for a turn: it is written before the turn begins, and read by what shows turns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.input.ids import SessionId
from antiphon.model import encode
from antiphon.routing import Route
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn, TurnRecord, readable


async def write_route(
    cell: Cell, turn: ClaimedTurn, route: Route, *, entry: bytes, bodies: Sequence[bytes] = ()
) -> bool:
    """Note the choice for a turn, with the ``entry`` of its journal and events.

    The turn moves to the queue of the route. Returns False, and writes nothing, under another fence. Raises
    ``StoreError``.
    """
    session, seal = turn.session_id, cell.seal
    return await cell.run_held(
        b"OK", "route", session, turn.turn_id, turn.fence, route.queue or "",
        seal.seal(session, "route", encode(route)), seal.seal(session, "journal", entry),
        *seal.seal_all(session, "event", bodies),
    )  # fmt: skip


async def last_route(cell: Cell, session: SessionId) -> Route | None:
    """Return the last choice for a turn of a session, or None. Raises ``StoreError`` and ``CorruptRecord``."""
    [found] = await cell.session_fields(session, "route")
    return _decoded(cell.seal.open(session, "route", found), session) if found else None


def route_of(record: TurnRecord) -> Route | None:
    """Return the choice for a turn, or None. Raises ``CorruptRecord``."""
    found = record.fields.get("route")
    return _decoded(found, record.session_id) if found else None


def _decoded(data: bytes, session: str) -> Route:
    with readable("The choice of a router", session_id=session):
        return msgspec.json.decode(data, type=Route)
