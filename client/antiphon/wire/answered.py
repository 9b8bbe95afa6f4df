"""What each message to a suspended turn has answered, so that a repeated message answers nothing else."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from antiphon.input.ids import TurnId
from antiphon.model import encode
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected, unknown_turn
from antiphon.wire.records import readable


class Answered(Struct):
    """The ids of the calls and waits that a message answers, and whether it has answered all of them."""

    names: frozenset[str]
    done: bool = False


async def keep_answered(cell: Cell, turn_id: TurnId, message: str, answered: Answered) -> Answered:
    """Keep what a message answers for as long as the turn. Returns what it answered the first time.

    Raises ``TurnNotFound``, ``CorruptRecord`` and ``StoreError``.
    """
    names = encode(sorted(answered.names))
    match await cell.run("keep_answered", turn_id, _digest(message), names, "1" if answered.done else "0"):
        case [b"KEPT", names, done]:
            return _read(turn_id, names, done)
        case [b"TURN_NOT_FOUND"]:
            raise unknown_turn(turn_id)
        case answer:
            raise unexpected("keep_answered", answer)


async def answered_by(cell: Cell, turn_id: TurnId, message: str) -> Answered | None:
    """Return what a message has answered, or None for a new one. Raises ``CorruptRecord`` and ``StoreError``."""
    found: bytes | None = await asked(
        cell.redis.hget(cell.keys.turn(turn_id), f"answered:{_digest(message)}")
    )
    if found is None:
        return None
    done, _, names = found.partition(b" ")
    return _read(turn_id, names, done)


def _digest(message: str) -> str:
    return hashlib.sha256(message.encode()).hexdigest()[:32]


def _read(turn_id: TurnId, names: bytes, done: bytes) -> Answered:
    with readable("What a message has answered", turn_id=turn_id):
        return Answered(msgspec.json.decode(names, type=frozenset[str]), done == b"1")
