"""What is to be done for a session that an indexer has taken, and who does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from antiphon.wire.lists.memories import TakenSession
from antiphon_worker.memory.passages import TurnText

if TYPE_CHECKING:
    from antiphon.memory.declaration import Memory


class Plan(NamedTuple):
    """Turns with outdated documents, the texts to write now, and what Redis keeps of each turn.

    Nothing is kept of a turn that was forgotten.
    """

    taken: TakenSession
    replaced: list[str]
    texts: list[TurnText]
    indexed: dict[str, str]


class Work(Protocol):
    """What is made of finished turns. ``cursor`` is the name under which they wait in Redis.

    ``write`` and ``undo`` may be called again for the same turns: then they do nothing more.
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
