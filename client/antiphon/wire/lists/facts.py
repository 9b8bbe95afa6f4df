"""The facts of a scope as Redis has them: one hash, which is changed as it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from antiphon.encryption.contents import open_fact, seal_fact
from antiphon.errors import CorruptRecord
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.records import readable

__all__ = [
    "NOT_HELD",
    "FactBook",
    "FactSource",
    "Held",
    "StoredFact",
    "Wording",
    "Written",
    "count_of",
    "read_book",
    "read_facts",
    "write_facts",
]


class FactSource(Struct, frozen=True, array_like=True):
    """A turn that says something. ``digest`` differs with what it says."""

    session_id: str
    turn_id: str
    digest: str = ""


class Wording(Struct, omit_defaults=True):
    """How a fact reads since ``at`` (ms since 1970), and who says so. Without a text, a person has deleted it."""

    text: str
    at: int
    by: Literal["model", "person"] = "model"
    sources: list[FactSource] = field(default_factory=list)


class StoredFact(Struct):
    """A fact with all its wordings, the newest one last: where a source goes, so does what it alone says."""

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
    """Count the facts. What stays of one that a person has deleted is none."""
    return sum(bool(one.wordings[-1].text) for one in facts.values())


async def read_facts(cell: Cell, scope: str) -> FactBook:
    """Read the facts of a scope. Raises ``StoreError``, and ``CorruptRecord`` if one of them cannot be read.

    For whoever needs all of them: one that cannot be read may be what keeps a turn from being distilled again.
    """
    book = await read_book(cell, scope)
    for error in book.damaged.values():
        raise error
    return book


async def read_book(cell: Cell, scope: str) -> FactBook:
    """Read the facts of a scope that can be read, and why others cannot. Raises ``StoreError``."""
    found: dict[bytes, bytes] = await asked(cell.redis.hgetall(cell.keys.facts(scope)))
    version = found.pop(b"@version", b"").decode()
    facts: list[StoredFact] = []
    damaged: dict[str, CorruptRecord] = {}
    for field_name, data in sorted(found.items()):
        name = field_name.decode(errors="replace")
        try:
            facts.append(_read(cell, scope, name, data))
        except CorruptRecord as exc:
            damaged[name] = exc
    known = {one.id: one for one in sorted(facts, key=lambda one: (one.created, one.id))}
    return FactBook(version, known, damaged)


def _read(cell: Cell, scope: str, name: str, data: bytes) -> StoredFact:
    with readable(f"The fact {name!r}"):
        fact = msgspec.json.decode(open_fact(cell.seal, scope, data), type=StoredFact)
        if fact.id != name or not fact.wordings:
            raise ValueError("it is not what was written there")
    return fact


async def write_facts(
    cell: Cell, scope: str, book: FactBook, changes: Mapping[str, StoredFact | None], held: Held = NOT_HELD
) -> Written:
    """Write facts, or None for one that goes.

    Returns ``CHANGED`` if others have changed them, and ``SUPERSEDED`` if the session is not ``held`` any more: then
    nothing was written. Raises ``StoreError``.
    """
    flat: Sequence[Any] = [
        value
        for name, one in changes.items()
        for value in (name, b"" if one is None else seal_fact(cell.seal, scope, msgspec.json.encode(one)))
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
