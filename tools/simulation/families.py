"""Child turns as workers run them: a turn submits one, waits for its end as for an event, and is woken by it.

A worker may die between any two of these calls. The record of the child is always authoritative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon.model import Wait
from antiphon.wire.records import ClaimedTurn
from simulation.model import ENDED
from simulation.state import require

if TYPE_CHECKING:
    from simulation.world import World

BEGUN, RESULT = b"child ", b"result of "
FIRST_WAIT, MOST_DEEP = 30.0, 2


def child_of(turn: ClaimedTurn, call: int) -> str:
    """Return the id of a child, the same in every attempt at its call."""
    return f"{turn.turn_id}_{turn.run}_{call}"


def event_of(child: str) -> str:
    return f"child:{child}"


@dataclass
class Families:
    """All children of a world."""

    world: World
    parents: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # by child: the waiting turn, and its run

    def open(self, journal: list[bytes]) -> str:
        """Return the child of a journal that has no result yet, or ''."""
        begun = [entry for entry in journal if entry.startswith(BEGUN)]
        child = begun[-1].removeprefix(BEGUN).decode() if begun else ""
        return "" if RESULT + child.encode() in journal else child

    def begin(self, turn: ClaimedTurn, journal: list[bytes]) -> str:
        """Submit the next child of a turn; repeats are harmless. Return '' if a limit refuses it."""
        child = child_of(turn, sum(entry.startswith(BEGUN) for entry in journal) + 1)
        queue = self.world.model.turns[turn.turn_id].record.text("queue")
        if isinstance(self.world.submit(f"of {child}", child, queue, tenant=turn.tenant), str):
            return ""
        self.parents[child] = turn.turn_id, turn.run
        return child

    def may_begin(self, turn: ClaimedTurn) -> bool:
        return turn.turn_id.count("_") < 2 * MOST_DEEP

    def is_child(self, turn: str) -> bool:
        return turn in self.parents

    def has_ended(self, child: str) -> bool:
        """Return whether a child has ended, from its record in Redis, as a worker reads it."""
        status = self.world.redis.call("HGET", f"ant:turn:{child}", "status")
        return status is not None and status.decode() in ENDED

    def wait(self, child: str) -> Wait:
        return Wait("c", f"event {event_of(child)}", "event", FIRST_WAIT, event=event_of(child))

    def tell(self, turn: ClaimedTurn) -> None:
        """Notify the parent of an ended child, as the worker that ended it does unless it dies before."""
        if self.is_child(turn.turn_id):
            self.world.send(event_of(turn.turn_id), f"{turn.turn_id}:{turn.run}", turn.tenant)

    def look(self, turn: ClaimedTurn) -> None:
        """Cancel a running child whose parent no longer waits."""
        if not self.is_child(turn.turn_id):
            return
        parent, run = self.parents[turn.turn_id]
        status, found = self.world.redis.call("HMGET", f"ant:turn:{parent}", "status", "run")
        if found != b"%d" % run or status.decode() in ENDED:
            self.world.cancel(turn.turn_id, "its parent has ended", "nothing")

    def stop(self, journal: list[bytes]) -> None:
        """Cancel the child of a turn that is about to end."""
        if child := self.open(journal):
            self.world.cancel(child, "its parent was stopped", "nothing")

    def check(self) -> None:
        """Check that a child has at most one result in its parent's journal and history."""
        for child, (parent, _) in self.parents.items():
            turn, entry = self.world.model.turns[parent], RESULT + child.encode()
            times = turn.journal.count(entry) + turn.session.history.count(entry)
            require(times <= 1, "G21 a child has one result", child, times)
