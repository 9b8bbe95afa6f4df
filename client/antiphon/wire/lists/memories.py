"""What memories hold in a cell: indexed sessions and facts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct, field
from redis.exceptions import ResponseError

from antiphon.errors import CorruptRecord
from antiphon.input.ids import SessionId, TurnId
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.records import pairs, readable


class FactSource(Struct, frozen=True, array_like=True):
    """A turn with output. ``digest`` depends on its text."""

    session_id: str
    turn_id: str
    digest: str = ""


class Wording(Struct, omit_defaults=True):
    """The text of a fact since ``at`` (ms since 1970), and its sources. Without a text, a person has deleted it."""

    text: str
    at: int
    by: Literal["model", "person"] = "model"
    sources: list[FactSource] = field(default_factory=list)


class StoredFact(Struct):
    """A fact with all its revisions, newest last; a revision is removed with its last source."""

    id: str
    created: int
    wordings: list[Wording]


class FactBook(Struct):
    """The facts of a scope at one moment, by their ids, and why others cannot be read."""

    version: str
    facts: dict[str, StoredFact]
    damaged: dict[str, CorruptRecord]


class Held(NamedTuple):
    """A session of the same cell that a worker holds for a memory. Facts without a session belong to people."""

    session_id: str = ""
    memory: str = ""
    fence: str = ""


NOT_HELD = Held()
Written = Literal["OK", "CHANGED", "SUPERSEDED"]


def count_of(facts: Mapping[str, StoredFact]) -> int:
    """Count the facts, except those that a person has deleted."""
    return sum(bool(one.wordings[-1].text) for one in facts.values())


async def read_facts(cell: Cell, scope: str) -> FactBook:
    """Read the facts of a scope. Raises ``StoreError``, and ``CorruptRecord`` if one of them cannot be read.

    For callers that need all of them: an unreadable fact may be what prevents a second extraction from a turn.
    """
    book = await read_book(cell, scope)
    for error in book.damaged.values():
        raise error
    return book


async def read_book(cell: Cell, scope: str) -> FactBook:
    """Read the readable facts of a scope, and the errors of the others. Raises ``StoreError``."""
    found: dict[bytes, bytes] = await asked(cell.redis.hgetall(cell.keys.facts(scope)))
    version = text_of(found.pop(b"@version", None))
    facts: list[StoredFact] = []
    damaged: dict[str, CorruptRecord] = {}
    for field_name, data in sorted(found.items()):
        name = text_of(field_name)
        try:
            facts.append(_read(cell, scope, name, data))
        except CorruptRecord as exc:
            damaged[name] = exc
    known = {one.id: one for one in sorted(facts, key=lambda one: (one.created, one.id))}
    return FactBook(version, known, damaged)


def _read(cell: Cell, scope: str, name: str, data: bytes) -> StoredFact:
    with readable(f"The fact {name!r}"):
        fact = msgspec.json.decode(cell.seal.open(scope, "fact", data), type=StoredFact)
        if fact.id != name or not fact.wordings:
            raise ValueError("it has an unexpected form")
    return fact


async def write_facts(
    cell: Cell, scope: str, book: FactBook, changes: Mapping[str, StoredFact | None], held: Held = NOT_HELD
) -> Written:
    """Write facts, or delete those that are None.

    Returns ``CHANGED`` if they have changed since they were read, and ``SUPERSEDED`` if the session is no longer
    ``held``: then nothing was written. Raises ``StoreError``.
    """
    flat: Sequence[Any] = [
        value
        for name, one in changes.items()
        for value in (name, b"" if one is None else cell.seal.seal(scope, "fact", msgspec.json.encode(one)))
    ]
    match await cell.run("memories/write_facts", scope, book.version, *held, *flat):
        case [b"OK"]:
            return "OK"
        case [b"CHANGED"]:
            return "CHANGED"
        case [b"SUPERSEDED"]:
            return "SUPERSEDED"
        case answer:
            raise unexpected("memories/write_facts", answer)


class TakenSession(Struct, frozen=True):
    """A session that this worker holds to index it: its new turns, and those that the index has if it was cut.

    ``new`` and ``cut`` are as Redis has them. With ``damage``, its key cannot be read.
    """

    session_id: SessionId
    fence: str
    tenant: str | None = None
    new: str = ""
    cut: str = ""
    known: dict[str, str] = field(default_factory=dict)
    damage: str = ""
    child: bool = False


class Remembered(NamedTuple):
    """Where a document comes from."""

    session_id: str
    turn_id: str


async def take_sessions(cell: Cell, memory: str, lease_ms: int, count: int) -> list[TakenSession]:
    """Take up to ``count`` sessions that a memory is to index or to forget. Raises ``StoreError``."""
    fence, *found = await cell.run_for(b"TAKEN", "memories/take", memory, lease_ms, count)
    return [_taken(memory, text_of(fence), each) for each in found]


async def announce_turns(cell: Cell, memory: str, taken: TakenSession, places: Mapping[str, str]) -> bool:
    """Announce a write to the documents of these turns. Returns False if another worker has the session.

    Raises ``StoreError``.
    """
    flat = [value for pair in places.items() for value in pair]
    return await cell.run_held(b"OK", "memories/announce", memory, taken.session_id, taken.fence, *flat)


async def settle_session(
    cell: Cell, memory: str, taken: TakenSession, indexed: Mapping[str, str]
) -> list[str] | None:
    """Store which turns are in the index, with '' for a forgotten turn.

    Returns the turns whose documents must be removed, because another worker has taken the session and does not know
    them; None until that worker has settled it: ask again. Raises ``StoreError``.
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
            return [text_of(turn) for turn in unknown]
        case answer:
            raise unexpected("memories/settle", answer)


async def put_off(cell: Cell, memory: str, taken: TakenSession, ms: int) -> None:
    """Release a session that cannot be indexed now; any worker may take it after this time. Raises ``StoreError``."""
    await cell.run_held(b"OK", "memories/put_off", memory, taken.session_id, taken.fence, ms)


async def which_known(cell: Cell, memory: str, found: Sequence[Remembered]) -> list[bool]:
    """Return for each document whether its turn is remembered: not deleted, cut off or unknown. Raises
    ``StoreError``.
    """
    turns: dict[str, list[str]] = {}
    for one in found:
        turns.setdefault(one.session_id, []).append(one.turn_id)
    asking = (_read_known(cell, memory, session_id, names) for session_id, names in turns.items())
    known = {one for each in await asked(asyncio.gather(*asking)) for one in each}
    return [one in known for one in found]


async def _read_known(cell: Cell, memory: str, session_id: str, turns: Sequence[str]) -> list[Remembered]:
    """Return those turns of a session that are remembered. Reads of many sessions share one round trip."""
    fields = [f"{memory}/{turn}" for turn in turns]
    try:
        answer: Any = await cell.redis.hmget(cell.keys.remembered(session_id), f"@cut/{memory}", *fields)
    except ResponseError:  # the key has another type
        return []
    cut, *values = cast("list[bytes | None]", answer)
    if cut is not None:
        return []
    return [
        Remembered(session_id, turn) for turn, value in zip(turns, values, strict=True) if value is not None
    ]


async def tenant_of(cell: Cell, session_id: SessionId, turn: TurnId) -> str | None:
    """Return the tenant of a turn, or that of its session if it was restored after it had accepted the turn."""
    pipe = cell.redis.pipeline(transaction=False)
    pipe.hget(cell.keys.turn(turn), "tenant")
    pipe.hget(cell.keys.session(session_id), "tenant")
    own, of_session = await asked(pipe.execute())
    return text_of(own or of_session) or None


async def tenant_of_session(cell: Cell, session_id: SessionId) -> tuple[bool, str | None]:
    """Return whether a session exists or is remembered, and its tenant. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    pipe.hmget(cell.keys.session(session_id), "created", "tenant")
    pipe.hmget(cell.keys.remembered(session_id), "@names", "@tenant")
    answers: list[Any] = await asked(pipe.execute(raise_on_error=False))
    found: list[Any] = [
        value or b"" for raw in answers for value in (raw if isinstance(raw, list) else [b"", b""])
    ]
    created, tenant, names, kept = found
    return bool(created or names), text_of(tenant or kept) or None


async def take_over(cell: Cell, memory: str, replaced: str, count: int) -> bool:
    """Let a memory index a part of what another one has. Returns True once it has everything. Raises ``StoreError``."""
    match await cell.run("memories/take_over", memory, replaced, count):
        case [b"READY"]:
            return True
        case [b"MORE"]:
            return False
        case answer:
            raise unexpected("memories/take_over", answer)


async def has_taken_over(cell: Cell, memory: str) -> bool:
    """Return whether a memory has everything of the one that it replaces. Raises ``StoreError``."""
    return bool(await asked(cell.redis.hexists(cell.keys.taking_over(memory), "ready")))


async def waiting_sessions(cell: Cell, memory: str) -> int:
    """Return how many sessions a memory has yet to index or to forget. Raises ``StoreError``."""
    return int(await asked(cell.redis.zcard(cell.keys.unindexed(memory))))


def _taken(memory: str, fence: str, raw: Any) -> TakenSession:
    session = SessionId(text_of(raw[0]))
    if len(raw) == 2:
        return TakenSession(session, fence, damage=text_of(raw[1]))
    _, tenant, parent, new, cut, fields = raw
    known = {
        name.removeprefix(f"{memory}/"): text_of(value)
        for name, value in pairs(fields).items()
        if name.startswith(f"{memory}/")
    }
    return TakenSession(
        session, fence, text_of(tenant) or None, text_of(new), text_of(cut), known, child=bool(parent)
    )
