"""The variants of ended turns: what workers ran again, and what came of it."""

from __future__ import annotations

import msgspec

from antiphon.errors import UsageError
from antiphon.model import encode
from antiphon.model.recording import VariantRun
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected, unknown_turn
from antiphon.wire.records import TurnRecord, readable

LASTS_MS = 7 * 86_400_000
MOST = 100  # per turn


async def keep_variant(cell: Cell, record: TurnRecord, run: VariantRun, *, tell: bool = False) -> bool:
    """Keep a variant and, with ``tell``, have its worker run it. Returns False if that worker does not listen.

    Repeating it sends the command again; a worker runs a variant once. Raises ``UsageError`` if the turn has too many,
    ``TurnNotFound`` and ``StoreError``.
    """
    data = cell.seal.seal(record.session_id, "variant", encode(run))
    match await cell.run(
        "keep_variant", record.turn_id, run.id, data, MOST, LASTS_MS, run.worker, "1" if tell else ""
    ):
        case [b"KEPT"]:
            return True
        case [b"NOT_LISTENING"]:
            return False
        case [b"FULL"]:
            raise UsageError(f"The turn has {MOST} variants, and cannot have more.")
        case [b"TURN_NOT_FOUND"]:
            raise unknown_turn(record.turn_id)
        case answer:
            raise unexpected("keep_variant", answer)


async def variants_of(cell: Cell, record: TurnRecord) -> list[VariantRun]:
    """Return the variants of a turn, in the order of their start. Raises ``CorruptRecord`` and ``StoreError``."""
    found: dict[bytes, bytes] = await asked(cell.redis.hgetall(cell.keys.variants(record.turn_id)))
    with readable("A variant of a turn", session_id=record.session_id, turn_id=record.turn_id):
        runs = [
            msgspec.json.decode(cell.seal.open(record.session_id, "variant", data), type=VariantRun)
            for data in found.values()
        ]
    return sorted(runs, key=lambda run: (run.at, run.id))
