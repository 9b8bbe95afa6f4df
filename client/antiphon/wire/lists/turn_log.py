"""Reads what the log of a session has of one turn, without its deltas."""

from __future__ import annotations

from antiphon.encryption.contents import open_event
from antiphon.errors import CorruptRecord
from antiphon.events import Event, decode_event
from antiphon.wire.cell import Cell, TurnRecord
from antiphon.wire.errors import asked
from antiphon.wire.lists.inspection import place_of_turn
from antiphon.wire.published import decode_published

__all__ = ["turn_log"]

PAGE = 1000
MOST_PAGES = 100


async def turn_log(cell: Cell, turn: TurnRecord) -> list[Event]:
    """Read the events of a turn's last run that are kept, but for deltas, in pages. Raises ``StoreError``."""
    after = await place_of_turn(cell, turn.session_id, turn.turn_id)
    found: list[Event] = []
    for _ in range(MOST_PAGES):
        page = await asked(
            cell.redis.xrange(cell.keys.events(turn.session_id), f"({after}-0", _end(turn), count=PAGE)
        )
        for place, fields in page:
            event = _event(cell, turn, fields.get(b"e", b""))
            found += [event] if event else []
            after = int(place.partition(b"-")[0])
        if len(page) < PAGE:
            break
    return found


def _end(turn: TurnRecord) -> str:
    """The place of its last event, or the end of the log while it runs."""
    return f"{turn.last_seq}-0" if turn.status in ("finished", "failed", "cancelled") else "+"


def _event(cell: Cell, turn: TurnRecord, body: bytes) -> Event | None:
    """Read an event of this turn; None for a delta, one of another turn, and a damaged one."""
    try:
        known = decode_published(body)
        if known.turn_id != turn.turn_id or known.type.endswith("_delta"):
            return None
        return decode_event(open_event(cell.seal, turn.session_id, body))
    except CorruptRecord:
        return None
