"""Schedules of the simulation on a cell of Redis and a memory cell at once: both make the same of every transition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulation.schedule import make, play, shrink
from simulation.seeds import FIRST_SEED, first_seed
from simulation.world import World

pytestmark = [pytest.mark.main_path, pytest.mark.one_server]

SEEDS = 30
STEPS = 60
# The actors without those whose scripts a memory cell does not have, and without damage, moved clocks and RQ's tools.
WEIGHTS = {
    "client": 22, "w1": 18, "w2": 18, "w3": 8, "time": 12, "reaper": 11, "supervisor": 4, "editor": 14, "people": 22,
    "talker": 10, "apps": 4, "spare": 2,
}  # fmt: skip


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    world = World(redis_url, twin=True)
    yield world
    world.redis.due = None
    world.redis.call("FLUSHDB")
    world.close()


def test_a_memory_cell_does_what_the_scripts_do(world):
    first = first_seed()
    for seed in range(first, first + SEEDS):
        schedule = make(seed, STEPS, WEIGHTS)
        if failure := play(world, schedule):
            shorter, failure = shrink(world, schedule, failure)
            pytest.fail(
                f"Seed {seed} ({len(shorter)} of {STEPS} steps are enough; {FIRST_SEED}={first_seed()} repeats the "
                f"run): {failure}"
            )
    assert world.cell.transitions.turns, "turns have ended in memory too"


def test_a_memory_cell_that_does_something_else_is_noticed(world, monkeypatch):
    monkeypatch.setattr("antiphon_worker.local.records.Turn.end_run", lambda turn, most: None)
    failures = (play(world, make(seed, STEPS, WEIGHTS)) for seed in range(10))
    assert any(failures)
