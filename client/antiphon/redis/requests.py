"""Reads the requests that are kept of a turn."""

from __future__ import annotations

from antiphon.input.ids import TurnId
from antiphon.model.requests import KeptRequest
from antiphon.wire.cell import Cell
from antiphon.wire.requests import kept_requests


async def requests_of(cell: Cell, turn_id: TurnId) -> list[KeptRequest]:
    """Return what the models received in a turn. Raises ``TurnNotFound``, ``TurnDeleted`` and ``CorruptRecord``."""
    record = await cell.turn(turn_id)
    return await kept_requests(cell, record) if cell.has_disk and "deleted" not in record.fields else []
