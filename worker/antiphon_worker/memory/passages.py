"""The text of a turn for an index: chunks of its question and its answer, with ids that never change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from antiphon.memory.declaration import Memory
from antiphon.model import Message
from antiphon.wire.lists.memories import TakenSession

if TYPE_CHECKING:
    from antiphon.memory.declaration import Memory


PASSAGE_CHARACTERS = 2000
MOST_PASSAGES = 16
_SAYS = {"user": "User", "assistant": "Assistant"}


class TurnText(Struct, frozen=True):
    """The text of a turn, split into chunks. ``created`` is in ms since 1970. ``digest`` changes with the chunks.

    Without a ``tenant``, its tenant is that of its session.
    """

    turn_id: str
    agent: str | None
    created: int
    passages: list[str]
    tenant: str | None = None

    @property
    def digest(self) -> str:
        text = "\0".join(self.passages)
        return f"{len(self.passages)}:{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"


def document_id(prefix: str, memory: Memory, session_id: str, turn_id: str, number: int) -> str:
    """Return the id of a chunk's document, which is the same each time that the chunk is written."""
    whole = msgspec.json.encode([prefix, memory.name, session_id, turn_id, number])
    return hashlib.sha256(whole).hexdigest()[:40]


def texts_of_turn(turn_id: str, messages: Sequence[Message]) -> TurnText | None:
    """Return the text of users and models in a turn, or None if no model has answered."""
    lines = [
        f"{_SAYS[one.role]}: {text}" for one in messages if one.role in _SAYS and (text := one.text.strip())
    ]
    answers = [one for one in messages if one.role == "assistant" and one.text.strip()]
    if not answers:
        return None
    passages = list(_cut("\n".join(lines)))[:MOST_PASSAGES]
    return TurnText(turn_id, answers[-1].agent, answers[-1].created or 0, passages)


def texts_of_history(history: Sequence[Message]) -> dict[str, TurnText]:
    """Return the texts of all turns of a history. A question from an earlier turn is included with its answer."""
    found: dict[str, TurnText] = {}
    asked: list[Message] = []
    for turn_id, group in groupby(history, lambda message: message.turn_id):
        messages = list(group)
        if not any(one.role == "user" for one in messages):
            messages = [*asked, *messages]
        text = texts_of_turn(turn_id or "", messages)
        if text is not None and turn_id:
            found[turn_id] = text
        asked = [one for one in messages if one.role == "user"]
    return found


def _cut(text: str) -> Iterator[str]:
    """Split a text into chunks, at the end of a line or a word if there is one."""
    while len(text) > PASSAGE_CHARACTERS:
        part = text[:PASSAGE_CHARACTERS]
        end = (
            max(part.rfind("\n"), part.rfind(" "))
            if part.rfind("\n") < PASSAGE_CHARACTERS // 2
            else part.rfind("\n")
        )
        end = end if end > PASSAGE_CHARACTERS // 2 else PASSAGE_CHARACTERS
        yield text[:end].strip()
        text = text[end:].strip()
    if text:
        yield text


class Plan(NamedTuple):
    """Turns with outdated documents, the texts to write now, and what Redis keeps of each turn.

    Nothing is kept of a turn that was forgotten.
    """

    taken: TakenSession
    replaced: list[str]
    texts: list[TurnText]
    indexed: dict[str, str]


class Work(Protocol):
    """The work of an ``Indexer`` on finished turns. ``cursor`` is the name under which they wait in Redis.

    ``write`` and ``undo`` may be called again for the same turns, without further effect.
    """

    cursor: str
    at_once: int
    lease_seconds: float
    most_turns: int | None
    replaces: Memory | None

    def value(self, taken: TakenSession, text: TurnText) -> str: ...
    async def write(self, plans: Sequence[Plan]) -> None: ...
    async def undo(self, plan: Plan, turns: Sequence[str]) -> None: ...
    async def former(self, taken: TakenSession, turn: str) -> TurnText | None: ...
