"""The agent of a turn and its revision: a router's choice, what its session keeps, and what its agents last ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from antiphon.input.ids import SessionId
from antiphon.model import encode
from antiphon.routing import Route
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn, TurnRecord, readable

WOKEN_AT_ONCE = 100


async def begin(
    cell: Cell, turn: ClaimedTurn, revision: str, *, pins: Mapping[str, str] | None = None,
    ran: Mapping[str, str] | None = None, bodies: Sequence[bytes] = (),
) -> bool:  # fmt: skip
    """Record the revision that a turn runs on, and the ``pins`` of its session. Returns False under another fence.

    ``ran`` are the revisions that the session's agents last ran on; an empty mapping removes them. ``bodies`` are
    events that are published with it. Raises ``StoreError``.
    """
    session = turn.session_id
    return await cell.run_held(
        b"OK", "begin", session, turn.turn_id, turn.fence, revision, encode(pins) if pins else b"",
        b"" if ran is None else encode(ran), *cell.seal.seal_all(session, "event", bodies),
    )  # fmt: skip


async def wake_missing(cell: Cell, revision: str) -> None:
    """Let the turns that wait for this revision (agent@revision) be claimed immediately. Raises ``StoreError``."""
    while True:
        [number] = await cell.run_for(b"WOKEN", "wake", revision, WOKEN_AT_ONCE)
        if number < WOKEN_AT_ONCE:
            return


def pins_of(turn: ClaimedTurn) -> dict[str, str]:
    """Return the revisions that the turn's session keeps, by agent. Raises ``CorruptRecord``."""
    return _by_agent(turn, turn.pins, "that a session keeps")


def ran_on(turn: ClaimedTurn) -> dict[str, str]:
    """Return the revisions of the last turns of the session, by agent, as far as they are noted.

    Raises ``CorruptRecord``.
    """
    return _by_agent(turn, turn.ran, "of a session's last turns")


def _by_agent(turn: ClaimedTurn, stored: bytes | None, what: str) -> dict[str, str]:
    if not stored:
        return {}
    with readable(f"The revisions {what}", session_id=turn.session_id):
        return msgspec.json.decode(stored, type=dict[str, str])


async def write_route(
    cell: Cell, turn: ClaimedTurn, route: Route, *, entry: bytes, bodies: Sequence[bytes] = ()
) -> bool:
    """Record the route of a turn, with the ``entry`` of its journal and events.

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
    """Return the last route of a session's turns, or None. Raises ``StoreError`` and ``CorruptRecord``."""
    [found] = await cell.session_fields(session, "route")
    return _decoded(cell.seal.open(session, "route", found), session) if found else None


def route_of(record: TurnRecord) -> Route | None:
    """Return the route of a turn, or None. Raises ``CorruptRecord``."""
    found = record.fields.get("route")
    return _decoded(found, record.session_id) if found else None


def _decoded(data: bytes, session: str) -> Route:
    with readable("The choice of a router", session_id=session):
        return msgspec.json.decode(data, type=Route)
