"""Thousands of schedules of clients, workers that die and stall, reapers and RQ's tools: every promise holds.

``make simulate SEEDS=20000`` runs as many as asked, ``--seed N`` replays one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from mutation.hook import SCRIPTS, scripts_from
from simulation import coverage
from simulation.actors import (
    FIRST_WEIGHTS,
    HOUR_MS,
    PAYING,
    PUSHED,
    READERS,
    RESUMED,
    RETRIED,
    ROUTED,
    STOCK,
    WEIGHTS,
    WORLDS,
    fewer_for,
)
from simulation.batches import GROUPS
from simulation.schedule import make, play, shrink
from simulation.seeds import FIRST_SEED, first_seed
from simulation.state import Broken
from simulation.stock import StockWorker
from simulation.world import World

from antiphon.model import Wait
from antiphon.redis import past
from antiphon.wire.batches import TakenBatch
from antiphon.wire.scripts import KEEP_JOB_SECONDS
from antiphon_worker.local.moves import EDIT_MS, unseen_ms

pytestmark = pytest.mark.main_path

CHUNK = 100
BY_CI = [pytest.mark.nightly, pytest.mark.short]
CHUNKS = [0, *(pytest.param(chunk, marks=BY_CI) for chunk in range(1, 5))]
STEPS = 30
STATES = Path(__file__).parents[2] / "docs" / "states.md"

# What long runs have found: the seed and the steps of its schedule.
FOUND = [(1855, 60), (2266, 60), (503672, 60), (505521, 60)]

# The actors that were there first: with fewer of them, each has more to say.
FEWER = {name: WEIGHTS[name] for name in (*FIRST_WEIGHTS, "clock", "life", "damage", "editor")}

# So many seeds are played in every world before what is missing is looked for. Ways that are rare are taken here.
EVERYWHERE = 20
WORLDS_OF_WAYS = [RETRIED, STOCK, PAYING, PUSHED, ROUTED]

# One statement less, and the promise that breaks.
SABOTAGE = [
    ("emit", "if f[1] ~= fence or fence == '' then return 'SUPERSEDED' end", "the answer of emit"),
    (
        "emit",
        "if tonumber(batch) > tonumber(f[2]) then publish(session, now, bodies, f[4], 'batch', batch) end",
        "G5",
    ),
    ("finish", "if not held then return {'SUPERSEDED'} end", "the answer of finish"),
    (
        "finish",
        "FREE[#FREE + 1], FREE[#FREE + 2], life[7] = 'events_ttl', events_ttl, events_ttl",
        "G1 a record",
    ),
    (
        "append_step",
        "if found == length + count then return {steered and 'STEER' or 'OK', stop} end",
        "the answer of append_step",
    ),
    ("include/inbox", "redis.call('ZADD', key_active(), now + LOOK_AGAIN_MS, session)", "G4"),
    (
        "include/life",
        "if name ~= 'seq' and name ~= 'first' and name ~= 'earlier' then redis.call('HDEL', fields, name) end",
        "G1 a record",
    ),
    ("include/damage", "redis.call('ZADD', key_active(), now + QUARANTINE_MS, session)", "G4"),
    (
        "include/clock_back",
        "if lease > 0 then redis.call('HSET', key_session(session), 'lease', moved(lease, back, now)) end",
        "G4",
    ),
    (
        "include/clock_back",
        "redis.call('ZADD', key, moved(tonumber(members[i + 1]), back, now), members[i])",
        "delayed turns alone are due",
    ),
    (
        "include/clock_back",
        "guarded(move_scores, key_deliveries(name), back, now, 'LIMIT', 0, MOST_DELIVERIES_MOVED)",
        "deliveries are what was noticed",
    ),
    (
        "editing/delete",
        "withdraw(session, outside, DELETED, now_ms(), KEPT_EVENTS)",
        "G15",
    ),
    ("editing/delete", "for _, ended in ipairs(turns) do erase_turn(session, ended, now_ms()) end", "G15"),
    ("editing/erase", "if erase_turn(f[1], turn, now) then erased = erased + 1 end", "G15"),
    ("editing/edit", "cut(session, keep)", "G1 a record is what was done to it"),
    ("claim", "if f then make_room(f, now) end", "G14"),
    (
        "claim",
        "redis.pcall('LPUSH', key_rq_queue(queue or f.queue), unpack(popped))",
        "the queues",
    ),
    ("include/damage", "if is_outage(problem) then error(problem, 0) end", "the answer of claim"),
    ("suspend", "if not held then return {'SUPERSEDED'} end", "the answer of suspend"),
    (
        "decide",
        "if first then return {'ALREADY', first} end",
        "the answer of decide",
    ),
    ("decide", "if not soonest then resume(session, turn, now, told) end", "G5"),
    ("include/resumed", "redis.call('HINCRBY', key_session(session), 'aside', -1)", "G12"),
    ("include/watch", "write_decision(turn, n, 'limit', json, now)", "G12"),
    (
        "schedules/advance",
        "if redis.call('ZSCORE', key_schedules(), id) ~= due then return {'MOVED'} end",
        "the answer of advance",
    ),
    ("include/scheduled", "redis.call('ZREM', key_schedules(), id)", "schedules are due"),
    ("limits/admit", "if promised > now + LASTS_MS then promised = open end", "the answer of admit"),
    (
        "limits/limit",
        "open = math.min(math.max(open, now + wait), now + MOST_WAIT_MS)",
        "the answer of limit",
    ),
    (
        "claim",
        (
            "if only == '' and app ~= '' and string.find(f.lacking or '', app, 1, true) "
            "then return table.insert(left, turn) end"
        ),
        "the answer of claim",
    ),
    (
        "give_back",
        "for _, worker in ipairs(workers) do ring(worker) end",
        "who has what a turn needs is woken",
    ),
    (
        "append_step",
        "if usage ~= '' then redis.call('HSET', key_turn(turn), 'session_usage', usage) end",
        "what a session has used",
    ),
    (
        "webhooks/take",
        "redis.call('ZADD', key_webhooks(), now + (free and lease_ms or pause_ms), name)",
        "webhooks are looked at",
    ),
    (
        "webhooks/take",
        "redis.call('HSET', key_webhook(name), 'held', free and '1' or '')",
        "who holds a webhook",
    ),
    (
        "include/requeue",
        "if status ~= 'running' and (said == 'queued' or said == 'started') then rq_view(turn, status, now) end",
        "RQ's",
    ),
    (
        "include/conclude",
        "notice('turn_' .. status, session, turn, seq, f.tenant)",
        "G1 each end is noticed once",
    ),
    ("budgets/reserve", "redis.call('HINCRBY', one.key, 'held_tokens', tokens)", "G22 ledgers"),
    ("budgets/reserve", "bury(one, turn, one.call)", "G22 ledgers"),
    ("budgets/capture", "settle(key, turn, call, cost, tokens, estimated == '1')", "G22 ledgers"),
    ("budgets/note", "redis.call('ZADD', key_unfunded(), now, turn)", "G22 who waits"),
    ("budgets/wake", "redis.call('ZREM', key_unfunded(), turn)", "G22 who waits"),
    ("route", "if redis.call('HGET', key_turn(turn), 'routed') == fence then return {'OK', stop} end", "G5"),
    ("route", "redis.call('HDEL', key_turn(turn), 'offered_at')", "G1 a record"),
    ("route", "rq_forget(turn, f.queue, f.execution)", "RQ's started jobs"),
    ("include/retry", "if delay <= 0 then ready(session, now) end", "G1 a record"),
    (
        "keep_variant",
        "if known then return {'KEPT'} end",
        "variants are what was kept of them",
    ),
    ("include/erase", "key_variants(turn), ", "variants are what was kept"),
    ("keep_answered", "if f[3] then names = string.sub(f[3], 3) end", "the answer of keep_answered"),
    ("pushes/set", "redis.call('SET', key_push_cursor(), newest, 'NX')", "what was handed to its turns"),
    ("pushes/settle", "redis.call('ZREM', key_pushes(), delivery)", "notifications are"),
    ("pushes/take", "redis.call('ZADD', key_pushes(), now + lease_ms, delivery)", "notifications are"),
    ("include/pushes", " and behind(id, since)", "the answer of take notifications"),
]


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    world = World(redis_url)
    yield world
    world.redis.due = None
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
        assert world.state.ways <= chart, "docs/states.md shows every way that a turn can take"


@pytest.mark.one_server
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_schedules_reach_every_answer_of_the_scripts_and_every_way_of_a_turn(world):
    """But those for which `coverage.UNREACHED` has a reason. What is rare is looked for where it is least rare."""
    ways, worlds = set[tuple[str, str]](), WORLDS
    for seed in range(500):
        for weights in worlds:
            assert play(world, make(seed, 60, weights)) is None
            ways |= world.state.ways
        missing = coverage.wrong(world.cell.answers, ways)
        if not missing:
            break
        if seed >= EVERYWHERE:
            own = [fewer_for(one) or WEIGHTS for one in missing if " --> " not in one]
            worlds = [*own, *(WORLDS_OF_WAYS if len(own) < len(missing) else [])]
    print(coverage.table(world.cell.answers, ways))
    assert coverage.wrong(world.cell.answers, ways) == []


@pytest.mark.one_server
def test_a_worker_may_hold_a_batch_that_is_over(world):
    batch = TakenBatch("b", 1, GROUPS[0], "", 0, 0, 0, 1, frozenset(), frozenset({"step"}), ["step"])
    world.batches._send(batch, Random(1))
    assert "batches/note SUPERSEDED" in world.cell.answers


def test_an_answer_without_a_reason_and_a_reason_without_an_answer_are_both_named(monkeypatch):
    answers, ways = coverage.declared(), coverage.chart()
    assert ("[*]", "queued") in ways
    found = {one for one in answers if not coverage.reason(one)}
    assert coverage.wrong(found, ways) == []
    assert coverage.wrong(found - {"finish OK"}, ways) == ["finish OK is not reached"]
    assert coverage.wrong(found, ways - {("running", "finished")}) == ["running --> finished is not reached"]
    assert coverage.wrong(found | {"fail_job OK"}, ways) == ["fail_job OK is reached, or is not there"]
    monkeypatch.setitem(coverage.UNREACHED, "no_script", "it is gone")
    assert coverage.wrong(found, ways) == ["no_script is reached, or is not there"]


@pytest.mark.one_server
@pytest.mark.parametrize(("seed", "steps"), FOUND)
def test_what_a_long_run_has_found_stays_mended(world, seed, steps):
    assert play(world, make(seed, steps, FIRST_WEIGHTS)) is None


@pytest.mark.one_server
def test_rqs_record_that_was_rewritten_by_an_earlier_clock_is_removed_by_that_clock(world):
    """An hour after RQ's own worker has ended its job, not after the end of the turn."""
    half, stock = KEEP_JOB_SECONDS * 500, StockWorker(world, "stock", [], "app-a")
    world.submit("s1", "t1", "antiphon")
    world.rq_does("a stock worker takes a job", stock._take)
    assert stock._taken
    world.cancel("t1", "enough")
    world.jump(-half)
    world.rq_does("a stock worker ends it", partial(stock._whole_end, stock._taken, ""))
    world.wait(2 * half - 1)
    world.reap()
    world.check_now()
    assert "t1" in world.state.at("rq:canceled", "antiphon", {})
    world.wait(62_000)
    world.reap()
    world.check_now()
    assert "t1" not in world.state.at("rq:canceled", "antiphon", {})


@pytest.mark.one_server
def test_a_record_of_rq_that_is_kept_for_another_time_is_noticed(world, tmp_path):
    with scripts_from(sabotage(tmp_path, "include/rq_view", " + kept * 1000")):
        failures = (play(world, make(seed, STEPS)) for seed in range(20))
        assert any(failure and "RQ's records of ended turns" in str(failure.error) for failure in failures)


@pytest.mark.one_server
def test_an_edit_goes_before_a_turn_that_moves_to_another_queue(world):
    world.submit("s1", "t1", "antiphon")
    [first] = world.claim("w1", "w1-1", 1, 0).turns
    world.finish(first, "finished", [b"said"])
    world.submit("s1", "t2", "antiphon")
    [turn] = world.claim("w1", "w1-2", 1, 0).turns
    world.rewind("s1", "op", "between", 0)
    assert world.route(turn, "other", b"routed", 1)
    assert world.give_back(turn, "drain", 0)
    world.check_now()
    head = world.model.sessions["s1"]
    assert (head.look_at or 0) == head.inbox[0].record.number("retry_at") + EDIT_MS


@pytest.mark.one_server
def test_a_look_at_a_suspended_turn_moves_back_with_the_clock(world):
    """It is as far off as it was, although the turn has now been suspended for a shorter time."""
    world.submit("s1", "t1", "antiphon")
    [turn] = world.claim("w1", "w1-1", 1, 0).turns
    assert world.suspend(turn, [Wait("c", "event paid", "event", 86_400.0, event="paid")], aside=False) == ""
    for jump in (HOUR_MS, -HOUR_MS):
        world.jump(jump)
        world.reap()
        world.check_now()
    session = world.model.sessions["s1"]
    assert (session.look_at or 0) - world.model.now == unseen_ms(session.inbox[0], world.model.now + HOUR_MS)


@pytest.mark.one_server
def test_high_priority_goes_behind_the_next_entry_while_a_claim_takes_several(world):
    for seed in (4110030132, 4110030021):
        assert play(world, make(seed, 60)) is None


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
@pytest.mark.nightly
@pytest.mark.short
@pytest.mark.parametrize(("file", "statement", "promise"), SABOTAGE)
def test_a_script_without_one_statement_breaks_a_promise(world, tmp_path, file, statement, promise):
    folder = sabotage(tmp_path, file, statement)
    with scripts_from(folder):
        actors = (few,) if (few := fewer_for(file)) else (WEIGHTS, FEWER)
        schedules = (make(seed, STEPS, weights) for weights in actors for seed in range(500))
        failures = (play(world, schedule) for schedule in schedules)
        assert any(failure and promise in str(failure.error) for failure in failures)


@pytest.mark.one_server
def test_a_call_that_starts_too_early_breaks_a_promise(world):
    """Whatever the model of a bucket thinks of it."""
    beside = world.beside
    beside.limit("p/m/1", 5_000, 100)
    beside._starts(beside.buckets["p/m/1"], "p/m/1", world.model.now + 5_000)
    with pytest.raises(Broken, match="no call starts while a limit lasts"):
        beside._starts(beside.buckets["p/m/1"], "p/m/1", world.model.now + 4_999)
    beside.buckets["p/m/1"].last_gap = 1_102
    beside._starts(beside.buckets["p/m/1"], "p/m/1", world.model.now + 5_000)
    with pytest.raises(Broken, match="calls keep to the pace"):
        beside._starts(beside.buckets["p/m/1"], "p/m/1", world.model.now + 5_100)


@pytest.mark.one_server
def test_calls_beyond_a_budget_break_a_promise(world, tmp_path, monkeypatch):
    """Even if the script and the model of a memory cell both let them start."""
    monkeypatch.setattr("antiphon_worker.local.ledgers._refusal", lambda *_: (None, None))
    with scripts_from(sabotage(tmp_path, "budgets/reserve", "if no then return no end")):
        failures = (play(world, make(seed, 2 * STEPS, PAYING)) for seed in range(200))
        assert any(failure and "G22 calls exceed" in str(failure.error) for failure in failures)


@pytest.mark.one_server
def test_a_notification_that_is_forgotten_breaks_a_promise(world, tmp_path, monkeypatch):
    """Even if the script and the model both hand it to nobody."""
    monkeypatch.setattr("simulation.pushes.Pushes._dispatch", lambda pushes: pushes._newest())
    with scripts_from(sabotage(tmp_path, "pushes/take", "dispatch_pushes(now, keep_ms)", "''")):
        failures = (play(world, make(seed, STEPS, PUSHED)) for seed in range(100))
        assert any(failure and "who asked is told" in str(failure.error) for failure in failures)


@pytest.mark.one_server
def test_a_failing_schedule_is_made_short_and_still_fails(world, tmp_path):
    with scripts_from(sabotage(tmp_path, "finish", "ready(session, now, false, head, life)")):
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
    world.cancel("t1", "enough")
    with pytest.raises(Broken, match="G2"):
        world.check_now()


@pytest.mark.one_server
def test_a_memory_cell_that_does_something_else_is_noticed(world, monkeypatch):
    monkeypatch.setattr("antiphon_worker.local.records.Turn.end_run", lambda turn, most: None)
    weights = {"client": 10, "w1": 20, "rq": 20, "time": 4}  # turns fail and are requeued
    assert any(play(world, make(seed, 2 * STEPS, weights)) for seed in range(30))


def sabotage(tmp_path: Path, file: str, statement: str, instead: str = "") -> Path:
    folder = tmp_path / "lua"
    shutil.copytree(SCRIPTS, folder)
    script = folder / f"{file}.lua"
    assert statement in script.read_text()
    script.write_text(script.read_text().replace(statement, instead))
    return folder


def test_readers_see_one_session_of_its_id(world):
    failures = [play(world, make(seed, STEPS, READERS)) for seed in range(200)]
    assert [str(failure.error) for failure in failures if failure] == []


def test_a_reader_that_goes_on_with_a_later_session_is_noticed(world, monkeypatch):
    monkeypatch.setattr("antiphon.redis.subscription.Subscription._check_life", _any_life)
    failures = (
        play(world, make(seed, STEPS, READERS)) for seed in range(150, 450)
    )  # the first is soon among these
    assert any(failure and "G15 a reader sees one session" in str(failure.error) for failure in failures)


def test_readers_with_old_cursors_get_every_message_once(world):
    failures = [play(world, make(seed, 4 * STEPS, RESUMED)) for seed in range(28113000, 28113020)]
    assert [str(failure.error) for failure in failures if failure] == []


def test_a_message_that_is_left_out_is_noticed(world, monkeypatch):
    missed = past.missed

    def less(*given, **more):
        found = missed(*given, **more)
        return found and found._replace(pieces=found.pieces[1:])

    monkeypatch.setattr(past, "missed", less)
    failures = (play(world, make(seed, 4 * STEPS, RESUMED)) for seed in range(28113000, 28113100))
    assert any(failure and "G5" in str(failure.error) for failure in failures)


def _any_life(events, created, life, tenant):
    events._life = b"any"
