"""What memories hold of the sessions of a cell, and what they are still to index or to forget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from antiphon.errors import CorruptRecord
from antiphon.input.ids import SessionId, TurnId
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.records import pairs

__all__ = [
    "Remembered",
    "TakenSession",
    "announce_turns",
    "has_taken_over",
    "put_off",
    "settle_session",
    "take_over",
    "take_sessions",
    "tenant_of",
    "tenant_of_session",
    "waiting_sessions",
    "which_known",
]


class TakenSession(Struct, frozen=True):
    """A session that this worker holds to index it: the turns that are new, and those that the index has if it was cut.

    ``new`` and ``cut`` are as Redis has them. With ``damage``, its key cannot be read.
    """

    session_id: SessionId
    fence: str
    tenant: str | None = None
    new: str = ""
    cut: str = ""
    known: dict[str, str] = field(default_factory=dict)
    damage: str = ""


class Remembered(NamedTuple):
    """Where a document comes from."""

    session_id: str
    turn_id: str


async def take_sessions(cell: Cell, memory: str, lease_ms: int, count: int) -> list[TakenSession]:
    """Take up to ``count`` sessions that a memory is to look at. Raises ``StoreError``."""
    match await cell.run("memories/take", memory, lease_ms, count):
        case [b"TAKEN", fence, *found]:
            return [_taken(memory, fence.decode(), each) for each in found]
        case answer:
            raise _unknown("take", answer)


async def announce_turns(cell: Cell, memory: str, taken: TakenSession, places: Mapping[str, str]) -> bool:
    """Tell where something is about to be written of which turns. Returns False if another worker has the session.

    Raises ``StoreError``.
    """
    flat = [value for pair in places.items() for value in pair]
    match await cell.run("memories/announce", memory, taken.session_id, taken.fence, *flat):
        case [b"OK"]:
            return True
        case [b"SUPERSEDED"]:
            return False
        case answer:
            raise _unknown("announce", answer)


async def settle_session(
    cell: Cell, memory: str, taken: TakenSession, indexed: Mapping[str, str]
) -> list[str] | None:
    """Write what stands in the index of which turns now, '' for a turn that was forgotten.

    Returns the turns whose documents must go, because another worker has taken the session and does not know them; and
    None while that one has not settled it: ask again. Raises ``StoreError``.
    """
    flat = [value for pair in indexed.items() for value in pair]
    match await cell.run(
        "memories/settle", memory, taken.session_id, taken.fence, taken.new, taken.cut, *flat
    ):
        case [b"OK"]:
            return []
        case [b"UNDECIDED"]:
            return None
        case [b"SUPERSEDED", *unknown]:
            return [turn.decode() for turn in unknown]
        case answer:
            raise _unknown("settle", answer)


async def put_off(cell: Cell, memory: str, taken: TakenSession, ms: int) -> None:
    """Leave a session that cannot be indexed now to whoever takes it after this time. Raises ``StoreError``."""
    match await cell.run("memories/put_off", memory, taken.session_id, taken.fence, ms):
        case [b"OK"] | [b"SUPERSEDED"]:
            return
        case answer:
            raise _unknown("put_off", answer)


async def which_known(cell: Cell, memory: str, found: Sequence[Remembered]) -> list[bool]:
    """Say of each document whether its turn is remembered: not deleted, cut off or unknown. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    for one in found:
        pipe.hmget(cell.keys.remembered(one.session_id), f"@cut/{memory}", f"{memory}/{one.turn_id}")
    answers: list[Any] = await asked(pipe.execute(raise_on_error=False)) if found else []
    return [isinstance(raw, list) and raw[0] is None and raw[1] is not None for raw in answers]


async def tenant_of(cell: Cell, session_id: SessionId, turn: TurnId) -> str | None:
    """Return the tenant of a turn, or of its session, which was restored after it had taken the turn."""
    pipe = cell.redis.pipeline(transaction=False)
    pipe.hget(cell.keys.turn(turn), "tenant")
    pipe.hget(cell.keys.session(session_id), "tenant")
    own, of_session = await asked(pipe.execute())
    return (own or of_session or b"").decode() or None


async def tenant_of_session(cell: Cell, session_id: SessionId) -> tuple[bool, str | None]:
    """Return whether a session lives or is remembered, and its tenant. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    pipe.hmget(cell.keys.session(session_id), "created", "tenant")
    pipe.hmget(cell.keys.remembered(session_id), "@names", "@tenant")
    answers: list[Any] = await asked(pipe.execute(raise_on_error=False))
    found: list[Any] = [
        value or b"" for raw in answers for value in (raw if isinstance(raw, list) else [b"", b""])
    ]
    created, tenant, names, kept = found
    return bool(created or names), (tenant or kept).decode(errors="replace") or None


async def take_over(cell: Cell, memory: str, replaced: str, count: int) -> bool:
    """Let a memory index some of what another one has. Returns True once it has it all. Raises ``StoreError``."""
    match await cell.run("memories/take_over", memory, replaced, count):
        case [b"READY"]:
            return True
        case [b"MORE"]:
            return False
        case answer:
            raise _unknown("take_over", answer)


async def has_taken_over(cell: Cell, memory: str) -> bool:
    """Return whether a memory has all of the one that it replaces. Raises ``StoreError``."""
    return bool(await asked(cell.redis.hexists(cell.keys.taking_over(memory), "ready")))


async def waiting_sessions(cell: Cell, memory: str) -> int:
    """Return how many sessions a memory is still to index or to forget. Raises ``StoreError``."""
    return int(await asked(cell.redis.zcard(cell.keys.unindexed(memory))))


def _taken(memory: str, fence: str, raw: Any) -> TakenSession:
    session = SessionId(raw[0].decode())
    if len(raw) == 2:
        return TakenSession(session, fence, damage=raw[1].decode(errors="replace"))
    _, tenant, new, cut, fields = raw
    known = {
        name.removeprefix(f"{memory}/"): value.decode(errors="replace")
        for name, value in pairs(fields).items()
        if name.startswith(f"{memory}/")
    }
    return TakenSession(session, fence, tenant.decode() or None, new.decode(), cut.decode(), known)


def _unknown(name: str, answer: Any) -> CorruptRecord:
    return CorruptRecord(f"The script 'memories/{name}' returned an unknown answer: {answer!r:.80}.")
