"""Model batches: steps of turns are collected, sent and answered; workers may die between any two of these calls.

The service identifies each order by its label, as OpenAI does. The model has the turns; this module tracks the steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from antiphon.model import Decision, Wait, encode
from antiphon.wire.batches import ANSWER, UNSURE, Group, TakenBatch, collect, leave, note, take_batch
from antiphon.wire.records import ClaimedTurn
from simulation.direct import run
from simulation.model import Asked
from simulation.state import require

if TYPE_CHECKING:
    from simulation.world import World

GROUPS = [Group("p", "/x", model) for model in ("m", "m", "n")]
LEASE_MS, DIES = 20_000, 0.2


@dataclass
class Known:
    """What was noted about a batch."""

    service_id: str = ""
    sending: int = 0
    round: int = 0
    unread: int = 0
    others: frozenset[str] = frozenset()


@dataclass
class Batches:
    """The steps of a world that go into batches, and its model service."""

    world: World
    orders: dict[str, list[str]] = field(default_factory=dict)  # the steps sent to the service, by label
    fences: dict[str, int] = field(default_factory=dict)  # of the last worker that took each batch
    held: list[TakenBatch] = field(default_factory=list)  # by workers; some have lost the lease
    known: dict[str, Known] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    groups: dict[str, Group] = field(default_factory=dict)
    asks: int = 0

    def ask(self, turn: ClaimedTurn, random: Random) -> Wait:
        """Collect the request of a turn that is about to wait for a batch, perhaps twice, and return the wait."""
        wait, group = Wait("", f"batch#{random.randint(1, 9)}", "batch", 50.0), random.choice(GROUPS)
        self.asks += 1
        step = f"{turn.turn_id}_{self.asks}"
        for _ in range(2 if random.random() < DIES else 1):
            holds = self.world.model.holds(turn)
            kept = run(
                collect(
                    self.world.cell, turn, step, wait.id, group, b"{}",
                    seconds=random.choice([0.0, 5.0]), size=3, lasts=wait.seconds,
                )
            )  # fmt: skip
            if kept and step not in self.answered:
                self.world.model.asked.setdefault(step, Asked(turn.turn_id, turn.run, wait.id))
                self.groups.setdefault(step, group)
            self.world.done(f"collect {step} for {wait.id}", kept, holds)
        return wait

    def act(self, random: Random) -> None:
        """Let workers look for batches, or continue with batches they hold."""
        for _ in range(random.choice([1, 1, 2, 8])):
            self._act_once(random)

    def _act_once(self, random: Random) -> None:
        if self.world.model.asked and random.random() < 0.1:
            self._leave(random.choice(sorted(self.world.model.asked)))
        elif not self.held or random.random() < 0.4:
            self._take(f"batch-{len(self.fences) + 1}")
        else:
            self._work(self.held.pop(random.randrange(len(self.held))), random)

    def _take(self, label: str) -> None:
        found, _ = run(take_batch(self.world.cell, label, ["p"], lease_ms=LEASE_MS, size=3))
        if found is not None:
            self.world.model.fences += 1
            self.fences[found.name] = found.fence
            self.held.append(found)
            needed = {step for step in found.steps if self.world.model.needs(step)}
            require(needed == {*found.steps}, "G27 no step is sent that no turn needs", found, needed)
            known = Known(found.service_id, found.sending, found.round, found.unread, found.others)
            wanted = self.known.setdefault(found.name, Known())
            require(known == wanted, "G27 the next worker knows what became of a batch", found, wanted)
        self.world.did(f"take a batch as {label}", found)

    def _work(self, batch: TakenBatch, random: Random) -> None:
        if not batch.service_id:
            self._send(batch, random)
        elif batch.sent_as not in self.orders:
            self._note(batch, "another", random, batch.sent_as)
        elif random.random() < 0.1:
            self._note(batch, random.choice(["later", "unread", "again", "running"]), random)
        else:
            self._answer(batch, random)

    def _send(self, batch: TakenBatch, random: Random) -> None:
        """Send a batch that is unknown to the service. A worker that was stopped before may send it twice."""
        if self.fences.get(batch.name) != batch.fence:
            self._note(batch, "later", random)
            return
        if batch.sending and random.random() < 0.2:  # it is mistaken for a batch of another deployment
            self._note(batch, "sent", random, f"{UNSURE}other-{len(batch.others)}")
            return
        if batch.label not in self.orders:
            if not batch.steps:
                self._note(batch, "over", random)
                return
            self._note(batch, "sending", random, len(batch.steps))
            if random.random() < DIES:
                return
            sent = [
                step for label, steps in self.orders.items() if _name(label) != batch.name for step in steps
            ]
            require(not {*sent} & {*batch.steps}, "G27 a step is in one batch", batch, sent)
            self.orders[batch.label] = batch.steps
        if random.random() >= DIES:
            self._note(batch, "sent", random, batch.label)

    def _note(self, batch: TakenBatch, what: str, random: Random, said: str | int = "") -> None:
        for _ in range(2 if random.random() < DIES else 1):  # perhaps the answer is lost
            self._note_once(batch, what, random, said)

    def _note_once(self, batch: TakenBatch, what: str, random: Random, said: str | int) -> None:
        holds = self.fences.get(batch.name) == batch.fence
        noted = run(note(self.world.cell, batch, what, said, seconds=random.choice([0.0, 5.0])))  # type: ignore[arg-type]
        if noted:
            self._noted(batch, what, said)
        self.world.done(f"note {batch.name} of {batch.fence}: {what} {said}", noted, holds)

    def _noted(self, batch: TakenBatch, what: str, said: str | int) -> None:
        """Note what the next worker that takes the batch must know about it."""
        known = self.known.setdefault(batch.name, Known())
        match what:
            case "sending":
                known.sending = int(said)
            case "sent":
                known.service_id = str(said)
            case "unread":
                known.unread += 1
            case "another" if known.service_id:
                known.service_id, known.others = "", known.others | {str(said)}
            case "again" if known.service_id:
                known.service_id, known.sending, known.round = "", 0, known.round + 1
            case "over":
                del self.fences[batch.name], self.known[batch.name]
                for step in batch.steps:
                    self.world.model.asked.pop(step, None)
            case _:
                pass

    def _answer(self, batch: TakenBatch, random: Random) -> None:
        """Deliver the answers of a batch, in any order, and end it once all turns have their answers."""
        later = False
        for step in random.sample(batch.steps, len(batch.steps)):
            if random.random() < DIES:
                return
            later |= self._deliver(step) == b"LATER"
        self._note(batch, "later" if later else "over", random)

    def _deliver(self, step: str) -> bytes:
        asked = self.world.model.asked.get(step)
        decision = encode(Decision(asked.wait if asked else "", "approve", arguments={ANSWER: "{}"}))
        [answer] = run(self.world.cell.run("batches/deliver", step, decision))
        self.answered[step] += answer == b"DELIVERED"
        require(self.answered[step] <= 1, "G27 a step is answered once", step)
        return self.world.did(f"deliver {step}", answer)

    def _leave(self, step: str) -> None:
        """Send a turn that has waited too long to the usual endpoint."""
        asked = self.world.model.asked.pop(step)
        self.world.did(f"leave {step} of {asked}", run(leave(self.world.cell, step, self.groups[step])))


def _name(label: str) -> str:
    return label.rpartition(".")[0]
