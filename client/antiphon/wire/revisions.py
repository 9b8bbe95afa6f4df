"""The revision on which a turn runs, and those that its session keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from antiphon.model import encode
from antiphon.wire.cell import Cell
from antiphon.wire.errors import unexpected
from antiphon.wire.records import ClaimedTurn, readable


async def begin(
    cell: Cell, turn: ClaimedTurn, revision: str, *, pins: Mapping[str, str] | None = None, bodies: Sequence[bytes] = ()
) -> bool:  # fmt: skip
    """Note on which revision a turn runs, and the ``pins`` of its session. Returns False under another fence.

    ``bodies`` are events that are published with it. Raises ``StoreError``.
    """
    session = turn.session_id
    answer = await cell.run(
        "begin", session, turn.turn_id, turn.fence, revision, encode(pins) if pins else b"",
        *cell.seal.seal_all(session, "event", bodies),
    )  # fmt: skip
    match answer:
        case [b"OK", _]:
            return True
        case [b"SUPERSEDED"]:
            return False
        case _:
            raise unexpected("begin", answer)


def pins_of(turn: ClaimedTurn) -> dict[str, str]:
    """Return the revisions that the turn's session keeps, by agent. Raises ``CorruptRecord``."""
    if not turn.pins:
        return {}
    with readable("The revisions that a session keeps", session_id=turn.session_id):
        return msgspec.json.decode(turn.pins, type=dict[str, str])
