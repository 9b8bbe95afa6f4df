"""Calls in batches whose turns have ended: what they hold of a budget in another cell counts as used.

The cell of a ledger cannot see the turns of other cells. A worker whose call finds no room there looks for them.
"""

from __future__ import annotations

from contextlib import suppress

from antiphon.errors import StoreError
from antiphon.model import TERMINAL
from antiphon.redis.cells import Cells
from antiphon.text import text_of
from antiphon.wire.budgets import Busy, Call, capture
from antiphon.wire.cell import Cell
from antiphon.wire.lists.reading import fields_of


async def count_ended(cells: Cells, cell: Cell, busy: Busy) -> None:
    """Count as used what calls of ended or deleted turns hold of a ledger of ``cell``. Skips cells that are down."""
    homes: dict[str, tuple[Cell, list[Call]]] = {}
    for call in busy.away:
        home = cells.of_turn(call.turn_id)
        homes.setdefault(home.name, (home, []))[1].append(call)
    for home, calls in homes.values():
        with suppress(StoreError):
            found = await fields_of(home, [home.keys.turn(call.turn_id) for call in calls], "status")
            for call, (status,) in zip(calls, found, strict=True):
                if status is None or text_of(status) in TERMINAL:
                    await capture(
                        cell, call, [busy.ledger], cost=call.cost or 0, tokens=call.tokens, estimated=True
                    )
