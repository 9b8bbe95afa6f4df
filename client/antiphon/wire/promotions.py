"""Reads and changes which revisions of agents the sessions of a cell take."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from antiphon.errors import CorruptRecord
from antiphon.model.revisions import Promotion, Promotions
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected

Change = Callable[[dict[str, Promotion]], dict[str, Promotion]]
"""Returns the promotions after a change. It may be called several times."""


def read_promotions(stored: bytes | None) -> Promotions:
    """Read stored promotions. Raises ``CorruptRecord``."""
    if not stored:
        return Promotions()
    try:
        return msgspec.json.decode(stored, type=Promotions)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise CorruptRecord(f"The promotions of agents cannot be read: {exc}.") from exc


async def promotions_of(cell: Cell) -> Promotions:
    """Return the promotions of a cell. Raises ``StoreError``."""
    return read_promotions(await asked(cell.redis.get(cell.keys.promotions)))


async def change_promotions(cell: Cell, change: Change) -> Promotions:
    """Change the promotions of a cell, after any concurrent changes. Returns the result, to copy it.

    Raises ``StoreError``, and what ``change`` raises.
    """
    stored: bytes = await asked(cell.redis.get(cell.keys.promotions)) or b""
    seconds, _ = await asked(cell.redis.time())
    while True:
        before = read_promotions(stored)
        after = Promotions(max(before.version + 1, seconds), change(before.agents))
        if after.agents == before.agents:
            return before if before.agents else Promotions(seconds)  # other cells may still have some
        found = await write_promotions(cell, stored, after)
        if found is None:
            return after
        stored = found


async def copy_promotions(cell: Cell, after: Promotions) -> None:
    """Write promotions that another cell has, unless this one has newer ones. Raises ``StoreError``."""
    stored: bytes | None = await asked(cell.redis.get(cell.keys.promotions)) or b""
    while stored is not None and read_promotions(stored).version < after.version:
        stored = await write_promotions(cell, stored, after)


async def write_promotions(cell: Cell, before: bytes, after: Promotions) -> bytes | None:
    """Replace the promotions that were read. Returns None, or the promotions that are stored now instead."""
    text = msgspec.json.encode(after) if after.agents else b""
    match await cell.run("promote", before, text):
        case [b"PROMOTED"]:
            return None
        case [b"CHANGED", current]:
            return current
        case answer:
            raise unexpected("promote", answer)
