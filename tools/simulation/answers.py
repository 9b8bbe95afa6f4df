"""Messages of A2A callers that answer what a turn waits for: when repeated, each answers the same calls as at first.

A gateway may die between any two of its calls, and the caller repeats its message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from antiphon.errors import TurnNotFound
from antiphon.input.ids import TurnId
from antiphon.wire.answered import Answered, keep_answered
from simulation.direct import run
from simulation.state import require

if TYPE_CHECKING:
    from antiphon_worker.local.records import Turn
    from simulation.world import World

DIES = 0.2


@dataclass
class Answers:
    """The messages of a world, and what each of them answered first."""

    world: World
    first: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)  # by turn and message

    def act(self, random: Random) -> None:
        """Send a message to a turn, perhaps again."""
        turns = list(self.world.model.turns.values())
        waiting = [turn for turn in turns if turn.status == "suspended"]
        if turns:
            turn = random.choice(waiting if waiting and random.random() < 0.8 else turns)
            self._hear(turn, f"m{random.randint(1, 2)}", random)

    def _hear(self, turn: Turn, message: str, random: Random) -> None:
        names = frozenset(call.id for call in turn.calls if not call.decision and random.random() < 0.7)
        answered = self._keep(turn, message, Answered(names))
        if answered is None or answered.done:
            return
        for name in sorted(answered.names):
            if random.random() < DIES:
                return
            self.world.decide(turn.id, name, f"op-{message}", random.choice(["approve", "reject", "result"]))
        self._keep(turn, message, Answered(answered.names, done=True))

    def _keep(self, turn: Turn, message: str, answered: Answered) -> Answered | None:
        try:
            found = run(keep_answered(self.world.cell, TurnId(turn.id), message, answered))
        except TurnNotFound:
            return self.world.did(f"{message} to {turn.id}, which is gone")
        first = self.first.setdefault((turn.id, message), answered.names)
        require(
            found.names == first, "a message answers what it answered first", turn.id, message, found, first
        )
        return self.world.did(f"{message} to {turn.id} answers {sorted(answered.names)}", found)
