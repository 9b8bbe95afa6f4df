"""Thousands of schedules of clients, workers that die and stall, reapers and RQ's tools: every promise holds.

``make simulate SEEDS=20000`` runs as many as asked, ``--seed N`` replays one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutation.hook import SCRIPTS, scripts_from

from simulation.actors import FIRST_WEIGHTS
from simulation.checks import Broken
from simulation.schedule import make, play, shrink
from simulation.seeds import FIRST_SEED, first_seed
from simulation.world import World

CHUNK = 100
CHUNKS = range(10)
STEPS = 30
STATES = Path(__file__).parents[2] / "docs" / "states.md"

# What long runs have found: the seed and the steps of its schedule.
FOUND = [(1855, 60), (2266, 60), (503672, 60), (505521, 60)]

# One statement less, and the promise that breaks.
SABOTAGE = [
    ("emit", "if f[1] ~= fence or fence == '' then return 'SUPERSEDED' end", "the answer of emit"),
    ("emit", "if tonumber(batch) > tonumber(f[2]) then publish(session, now, bodies, f[4], batch) end", "G5"),
    ("finish", "if not holds(session, fence) then return {'SUPERSEDED'} end", "the answer of finish"),
    ("append_step", "if found == length + count then return {'OK', stop} end", "the answer of append_step"),
    ("include/inbox", "redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)", "G4"),
    (
        "include/life",
        "if name ~= 'seq' and name ~= 'first' then redis.call('HDEL', fields, name) end",
        "G2 a life",
    ),
    ("include/damage", "redis.call('ZADD', key_active(), now + QUARANTINE_MS, session)", "G4"),
    ("include/clock_back", "redis.call('HINCRBY', key_session(session), 'lease', -ms)", "G4"),
    ("include/clock_back", "redis.call('ZINCRBY', key, -back, member)", "G4"),
    ("editing/delete", "withdraw(session, delayed, 'The session was deleted.', now_ms(), KEPT_EVENTS)", "G1"),
]


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    world = World(redis_url)
    yield world
    world.redis.call("FLUSHDB")  # what a broken script leaves behind
    world.close()


@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_promise_holds_whatever_happens_in_which_order(world, chunk):
    chart = set(re.findall(r"^\s+(\S+) --> (\w+)", STATES.read_text(), re.MULTILINE))
    first = first_seed() + chunk * CHUNK
    for seed in range(first, first + CHUNK):
        schedule = make(seed, STEPS)
        if failure := play(world, schedule):
            shorter, failure = shrink(world, schedule, failure)
            pytest.fail(
                f"Seed {seed} ({len(shorter)} of {STEPS} steps are enough; {FIRST_SEED}={first_seed()} repeats the "
                f"run, `make simulate ARGS='--seed {seed} --steps {STEPS}'` the schedule): {failure}"
            )
        assert world.ways <= chart, "docs/states.md shows every way that a turn can take"


@pytest.mark.one_server
@pytest.mark.parametrize(("seed", "steps"), FOUND)
def test_what_a_long_run_has_found_stays_mended(world, seed, steps):
    assert play(world, make(seed, steps, FIRST_WEIGHTS)) is None


def test_each_commit_has_schedules_of_its_own_and_a_run_can_be_repeated(monkeypatch):
    monkeypatch.delenv(FIRST_SEED, raising=False)
    by_commit = first_seed()
    assert by_commit == first_seed()
    monkeypatch.setattr("simulation.seeds._commit", lambda: "1f" * 20)
    assert first_seed() != by_commit
    monkeypatch.setenv(FIRST_SEED, "41")
    assert first_seed() == 41


@pytest.mark.one_server
def test_a_schedule_replays_exactly(world):
    logs = []
    for _ in range(2):
        assert play(world, make(7, 80)) is None
        logs.append(world.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 40


@pytest.mark.one_server
@pytest.mark.parametrize(("file", "statement", "promise"), SABOTAGE)
def test_a_script_without_one_statement_breaks_a_promise(world, tmp_path, file, statement, promise):
    folder = sabotage(tmp_path, file, statement)
    with scripts_from(folder):
        failures = (play(world, make(seed, STEPS)) for seed in range(200))
        failure = next(failure for failure in failures if failure)
    assert promise in str(failure.error), failure


@pytest.mark.one_server
def test_a_failing_schedule_is_made_short_and_still_fails(world, tmp_path):
    with scripts_from(sabotage(tmp_path, "finish", "let_go(session)")):
        seed = next(seed for seed in range(50) if play(world, make(seed, STEPS)))
        schedule = make(seed, STEPS)
        first = play(world, schedule)
        assert first
        shorter, failure = shrink(world, schedule, first)
        assert failure.kind == first.kind
        assert len(shorter) <= 5
        again = play(world, shorter)
        assert again
        assert (again.kind, again.log) == (failure.kind, failure.log)
    assert play(world, shorter) is None, "with the whole script it holds"


@pytest.mark.one_server
def test_what_the_model_does_not_know_is_noticed(world):
    world.submit("s1", "t1", "antiphon")
    world.redis.call("RPUSH", "ant:history:s1", "a message of nobody")
    with pytest.raises(Broken, match="G2"):
        world.cancel("t1", "enough")


def sabotage(tmp_path: Path, file: str, statement: str) -> Path:
    folder = tmp_path / "lua"
    shutil.copytree(SCRIPTS, folder)
    script = folder / f"{file}.lua"
    assert statement in script.read_text()
    script.write_text(script.read_text().replace(statement, ""))
    return folder
