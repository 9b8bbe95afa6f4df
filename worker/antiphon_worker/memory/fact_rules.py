"""What becomes of the facts of a scope: when a model says what turns add to them, and when a source goes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from antiphon.redis.many.facts import LONGEST_FACT
from antiphon.wire.lists.facts import FactSource, StoredFact, Wording, count_of

__all__ = ["Distilled", "SaidFact", "Told", "differences", "is_applied", "learned", "without_sources"]

MOST_WORDINGS = 8
MOST_SOURCES = 20


class SaidFact(Struct):
    """A fact as a model says it. ``id`` is empty for a new one. ``turn`` is the number of the turn that says it."""

    id: str
    text: str
    turn: int


class Distilled(Struct):
    """What a model says about some turns: facts that are new or read differently now, and ids of those that go."""

    facts: list[SaidFact]
    forgotten: list[str]


class Told(NamedTuple):
    """A turn that facts are distilled from, and when it was said, in ms since 1970."""

    source: FactSource
    at: int


def is_applied(facts: Mapping[str, StoredFact], source: FactSource) -> bool:
    """Whether a turn was distilled already and left a fact, whatever a person has made of that since."""
    return any(source in wording.sources for fact in facts.values() for wording in fact.wordings)


def without_sources(
    facts: Mapping[str, StoredFact], gone: Collection[tuple[str, str]]
) -> dict[str, StoredFact]:
    """Return the facts without what only these turns of sessions say. What a person wrote stays."""
    return {name: left for name, fact in facts.items() if (left := _without(fact, gone)) is not None}


def _without(fact: StoredFact, gone: Collection[tuple[str, str]]) -> StoredFact | None:
    wordings: list[Wording] = []
    for one in fact.wordings:
        sources = [source for source in one.sources if (source.session_id, source.turn_id) not in gone]
        if sources or (one.by == "person" and one.text):
            wordings.append(Wording(one.text, one.at, one.by, sources))
    return StoredFact(fact.id, fact.created, wordings) if wordings else None


def learned(
    facts: Mapping[str, StoredFact],
    shown: Mapping[str, str],
    said: Distilled,
    turns: Sequence[Told],
    most: int,
) -> dict[str, StoredFact]:
    """Return the facts with what a model says about these turns.

    ``shown`` are the texts that it was shown, by their ids: it can change no others. What was said or written after a
    turn stands: that turn does not change it. A turn that another worker has distilled meanwhile adds nothing more.
    """
    after = dict(facts)
    last = max(turn.at for turn in turns)
    for name in said.forgotten:
        if name in shown and name in after and after[name].wordings[-1].at < last:
            del after[name]
    for number, one in enumerate(said.facts):
        text = one.text.strip()
        if not 1 <= one.turn <= len(turns) or not 1 <= len(text) <= LONGEST_FACT:
            continue
        turn = turns[one.turn - 1]
        if is_applied(facts, turn.source):
            continue
        known = one.id if one.id in shown else _same(shown, text)
        if known is None:
            name = _new_id(turn.source, number)
            if name not in after and count_of(after) < most:
                after[name] = StoredFact(name, turn.at, [Wording(text, turn.at, "model", [turn.source])])
        elif known in after:
            after[known] = _reworded(after[known], text, turn)
    return after


def differences(
    before: Mapping[str, StoredFact], after: Mapping[str, StoredFact]
) -> dict[str, StoredFact | None]:
    """Return what is to be written: None for a fact that goes."""
    changed: dict[str, StoredFact | None] = {
        name: fact for name, fact in after.items() if before.get(name) != fact
    }
    return changed | dict.fromkeys(before.keys() - after.keys())


def _reworded(fact: StoredFact, text: str, turn: Told) -> StoredFact:
    newest = fact.wordings[-1]
    if newest.at > turn.at:
        return fact
    if _folded(newest.text) != _folded(text):
        new = Wording(text, turn.at, "model", [turn.source])
        return StoredFact(fact.id, fact.created, [*fact.wordings, new][-MOST_WORDINGS:])
    if newest.by == "person" or turn.source in newest.sources:
        return fact
    again = Wording(newest.text, turn.at, "model", [*newest.sources, turn.source][-MOST_SOURCES:])
    return StoredFact(fact.id, fact.created, [*fact.wordings[:-1], again])


def _same(shown: Mapping[str, str], text: str) -> str | None:
    return next((name for name, known in shown.items() if _folded(known) == _folded(text)), None)


def _folded(text: str) -> str:
    return text.casefold().strip(" .")


def _new_id(source: FactSource, number: int) -> str:
    """The same for whoever distils the same turn again."""
    whole = "\0".join([source.session_id, source.turn_id, source.digest, str(number)])
    return hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:12]
