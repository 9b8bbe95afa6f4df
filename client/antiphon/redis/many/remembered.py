"""Which turns a memory remembers, wherever their sessions live."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress

from antiphon.input.ids import SessionId
from antiphon.redis.cells import Cells
from antiphon.wire.cell import Cell
from antiphon.wire.lists.memories import Remembered, which_known

__all__ = ["remembered"]


async def remembered(cells: Cells, memory: str, turns: Iterable[Remembered]) -> set[Remembered]:
    """Leave out the turns that were deleted, cut off or never indexed. Raises ``StoreError``."""
    homes: dict[Cell, list[Remembered]] = {}
    for turn in dict.fromkeys(turns):
        homes.setdefault(cells.of_session(SessionId(turn.session_id)), []).append(turn)
    found: set[Remembered] = set()
    for cell, here in homes.items():
        found.update(compress(here, await which_known(cell, memory, here)))
    return found
