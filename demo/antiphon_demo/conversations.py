"""The conversations of the demo: built-in or from a file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import UsageError

OWN = "conversations.jsonl"
NAMES = ("name", "question_id", "id")


class Conversation(Struct, frozen=True):
    """The messages of one user, turn by turn, in the session with this name."""

    name: str
    turns: list[str]


def read_conversations(path: Path | None, most: int | None = None) -> list[Conversation]:
    """Read at most ``most`` conversations of a file, or return the built-in ones.

    A line is a JSON object with ``turns``, a list of texts; ``name``, ``question_id`` or ``id`` names the session.
    Raises ``UsageError``, which names the line.
    """
    source = path or resources.files("antiphon_demo") / OWN
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"The conversations in {path} cannot be read: {exc}.") from exc
    found: list[Conversation] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_read(line, f"{path or OWN}, line {number}", number))
    if not found:
        raise UsageError(f"There are no conversations in {path}.")
    if most is not None and path is None:
        found = _repeated(found, most)
    return _with_distinct_names(found[:most])


def _read(line: str, where: str, number: int) -> Conversation:
    try:
        fields: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        turns = msgspec.convert(fields.get("turns"), list[str])
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise UsageError(f'{where}: write each line as {{"turns": ["…", "…"]}}: {exc}.') from exc
    if not turns or not all(text.strip() for text in turns):
        raise UsageError(f"{where}: a conversation needs at least one turn, and no turn may be empty.")
    name = next((str(fields[key]) for key in NAMES if fields.get(key) is not None), str(number))
    return Conversation(name, turns)


def _repeated(own: list[Conversation], count: int) -> list[Conversation]:
    """Return the requested number of built-in conversations, repeating them if needed."""
    return [own[index % len(own)] for index in range(count)]


def _with_distinct_names(conversations: list[Conversation]) -> list[Conversation]:
    taken: dict[str, int] = {}
    distinct: list[Conversation] = []
    for one in conversations:
        taken[one.name] = taken.get(one.name, 0) + 1
        suffix = f"-{taken[one.name]}" if taken[one.name] > 1 else ""
        distinct.append(Conversation(one.name + suffix, one.turns))
    return distinct
