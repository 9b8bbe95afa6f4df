"""Variants: workers run ended turns again, and may die before they keep the result.

A worker is notified of a variant each time a client requests it, and nothing of a variant outlives its turn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from simulation.direct import run
from simulation.model import ENDED, is_deleted
from simulation.state import State, require

if TYPE_CHECKING:
    from redis.client import PubSub

    from simulation.world import World

MOST, WORKER = 2, "w1"
LASTS_MS = [60_000, 100 * 86_400_000]  # shorter and longer than turns are kept


class Told(NamedTuple):
    """A variant of which a worker was notified."""

    turn: str
    id: str


@dataclass
class Variants:
    """The variants of a world, and the notifications of its workers."""

    world: World
    kept: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # by turn
    told: list[Told] = field(default_factory=list)

    def act(self, random: Random) -> None:
        """Request a variant, perhaps again, or let a worker keep the result of one."""
        ended = [name for name, turn in self.world.model.turns.items() if turn.status in ENDED]
        if self.told and random.random() < 0.4:
            self._keep(random.choice(self.told), "finished", random)
        elif ended:
            asked = Told(random.choice(ended), f"v{random.randint(1, 3)}")
            self._ask(asked, random) if random.random() < 0.8 else self._keep(
                asked, "asked", random, tell=True
            )

    def _ask(self, asked: Told, random: Random) -> None:
        """Request a variant from a worker that listens."""
        with self.world.rq_redis.pubsub() as feed:
            feed.subscribe(self.world.cell.keys.control(WORKER))
            _next(feed, "subscribe")
            answer = self._keep(asked, "asked", random, tell=True, listens=True)
            feed.ping()
            heard = _next(feed, "pong")
        hears = [f'{{"command":"variant","turn_id":"{asked.turn}","job_id":"{asked.id}"}}'.encode()]
        expected = hears if answer == "KEPT" else []
        require(heard == expected, "a worker is told of a variant that is kept", heard, expected)
        self.told += [asked] if heard else []

    def _keep(
        self, asked: Told, variant: str, random: Random, *, tell: bool = False, listens: bool = False
    ) -> str:
        expected = self._expected(asked, tell=tell, listens=listens)
        answer = run(
            self.world.cell.run(
                "keep_variant", *asked, variant, MOST, random.choice(LASTS_MS), WORKER, "1" if tell else ""
            )
        )[0].decode()
        if answer == "KEPT" and not (tell and asked.id in self._of(asked.turn)):
            self.kept[asked.turn][asked.id] = variant
            self._lives(asked.turn)
        return self.world.done(f"keep {variant} {asked.id} of {asked.turn}", answer, expected)

    def _expected(self, asked: Told, *, tell: bool, listens: bool) -> str:
        known = self._of(asked.turn)
        if is_deleted(self.world.model.turns[asked.turn]):
            return "TURN_NOT_FOUND"
        if asked.id not in known and len(known) >= MOST:
            return "FULL"
        return "KEPT" if listens or not tell or asked.id in known else "NOT_LISTENING"

    def _lives(self, turn: str) -> None:
        keys = self.world.cell.keys
        most, life = self.world.redis.calls([("PTTL", keys.turn(turn)), ("PTTL", keys.variants(turn))])
        require(life >= 0, "variants have an end", turn, life)
        require(most < 0 or life <= most, "variants live no longer than their turn", turn, life, most)

    def _of(self, turn: str) -> dict[str, str]:
        return {} if is_deleted(self.world.model.turns[turn]) else self.kept[turn]

    def check(self, state: State) -> None:
        """Check that what was kept exists as long as its turn, and nothing of a deleted turn."""
        expected = {turn: found for turn in self.kept if (found := self._of(turn))}
        found = state.all("ant:variants")
        require(found == expected, "variants are what was kept of them", found, expected)


def _next(feed: PubSub, kind: str) -> list[Any]:
    """Return what a listener receives before a message of this kind."""
    heard: list[Any] = []
    while message := feed.get_message(timeout=20):
        if message["type"] == kind:
            return heard
        heard.append(message["data"])
    raise TimeoutError(f"Nothing like {kind} was heard.")
