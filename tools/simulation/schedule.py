"""Schedules: made from a seed, run, replayed, and shrunk while they still fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from simulation.actors import WEIGHTS, Actors
from simulation.world import World

Step = tuple[str, int]
SETTLE: Step = ("settle", 0)


@dataclass
class Failure:
    """What broke, and the schedule up to there."""

    error: Exception
    log: list[str]
    steps: int

    @property
    def kind(self) -> str:
        return str(self.error).split(":", 1)[0]

    def __str__(self) -> str:
        lines = "\n".join(f"  {line}" for line in self.log)
        return f"{type(self.error).__name__}: {self.error}\nafter\n{lines}"


def make(seed: int, steps: int, weights: Mapping[str, int] = WEIGHTS) -> list[Step]:
    """Return the schedule of a seed, always the same; ``weights`` determine how often each actor acts."""
    random = Random(seed)
    names = random.choices(list(weights), list(weights.values()), k=steps)
    return [(name, random.getrandbits(32)) for name in names]


def play(world: World, schedule: list[Step]) -> Failure | None:
    """Run a schedule from the beginning to the last turn's end. Return None if every promise held."""
    try:
        world.reset()
    except Exception as error:  # noqa: BLE001
        return Failure(error, world.log, 0)
    actors = Actors(world)
    for done, (actor, number) in enumerate([*schedule, SETTLE], 1):
        try:
            world.settle() if actor == "settle" else actors.step(actor, number)
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            return Failure(error, world.log, done)
    return None


def shrink(world: World, schedule: list[Step], failure: Failure) -> tuple[list[Step], Failure]:
    """Leave out steps, many at once and then one by one, as long as the same promise breaks."""
    schedule = schedule[: failure.steps]
    size = max(1, len(schedule) // 2)
    while True:
        start, before = 0, len(schedule)
        while start < len(schedule):
            shorter = schedule[:start] + schedule[start + size :]
            found = play(world, shorter)
            if found and found.kind == failure.kind:
                schedule, failure = shorter[: found.steps], found
            else:
                start += size
        if size == 1 and len(schedule) == before:
            return schedule, failure
        size = max(1, size // 2)
