"""The benchmark's own arithmetic: a figure that is computed wrongly is worse than none."""

import math
import sys
from pathlib import Path

import msgspec
import pytest
from bench.gauges import Counters, cpu_seconds, percentile, pss_bytes, rss_bytes, spread
from bench.kept import QUIET_LOAD, Kept, Machine, Record
from bench.live import Stage
from bench.load import steady_rate
from bench.parts import FULL_SECONDS, PARTS, QUICK_SECONDS, Part, expected_seconds, named, run_parts
from bench.peers.catalogue import missing
from bench.results import Plan, Result, grids, number, table
from bench.stand import MODULES
from bench.streams import knee_of
from bench.sums import GATEWAY, HEAD, Costs, costs_of, needs, row
from bench.turns import ENCRYPTED, WHOLE, compare_keys, most_of_two

MACHINE = Machine(
    "2026-01-02 03:04 UTC", 2, "Chip", "Linux", 0.1, "3.11.7", "Valkey 9.1.2", {"redis": "8.1.0"}
)


def record(result: Result | None = None, failed: str = "", machine: Machine = MACHINE) -> Record:
    return Record(machine, rounds=3, quick=False, seconds=1.0, result=result, failed=failed)


def test_a_percentile_is_one_of_the_values():
    values = [float(value) for value in range(101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (50, 99, 100)
    assert percentile([7.0], 0.99) == 7
    assert percentile([], 0.5) == 0


def test_a_spread_keeps_the_extremes_beside_the_median():
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)


def test_the_rate_does_not_count_how_long_the_first_and_the_last_took():
    ends = [100.0, *[200 + number / 100 for number in range(100)], 300.0]
    assert steady_rate(ends) == pytest.approx(100, rel=0.05)


def test_counters_say_what_happened_between_two_readings():
    before = Counters({"get": 5, "evalsha": 1}, 1.0, 1000)
    after = Counters({"get": 7, "evalsha": 4, "set": 1, "eval": 1}, 1.5, 1500)
    since = after.since(before)
    assert since.commands == {"get": 2, "evalsha": 3, "set": 1, "eval": 1}
    assert (since.scripts, since.cpu_seconds, since.memory_bytes) == (4, 0.5, 500)


def test_the_cpu_time_of_another_process_is_finer_than_a_tick(processes):
    busy = processes.python("-c", "for _ in range(10**6): pass\nprint('done')\nimport time; time.sleep(60)")
    busy.wait_for_output("done")
    spent = cpu_seconds(busy.pid)
    ticks = Path(f"/proc/{busy.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    assert spent == pytest.approx(sum(map(int, ticks)) / 100, abs=0.1)
    assert spent * 100 != int(spent * 100)


def test_memory_that_is_shared_is_counted_in_part(processes):
    idle = processes.python("-c", "import time; print('ready'); time.sleep(60)")
    idle.wait_for_output("ready")
    assert 0 < pss_bytes(idle.pid) < rss_bytes(idle.pid)


def test_turns_with_keys_are_compared_with_those_of_the_same_round():
    result = Result("turns", "")
    plain = {"worker": 400.0, "redis_all": 200.0, "caller": 100.0}
    keys = {"worker": 440.0, "redis_all": 210.0, "caller": 120.0}
    rounds = [
        {
            f"{name}, keys {on}": times * value
            for on, one in ((False, plain), (True, keys))
            for name, value in one.items()
        }
        for times in (1, 3)
    ]
    compare_keys(result, rounds)
    assert result.value(ENCRYPTED, "CPU of the worker") == pytest.approx(1.1)
    assert result.value(ENCRYPTED, WHOLE) == pytest.approx(1.1)


def test_two_processes_run_what_the_cores_allow():
    one = {"worker": 400.0, "redis": 200.0, "model": 100.0}
    assert most_of_two(one, 1) == 1, "even one process waits for the core"
    assert most_of_two(one, 2) == pytest.approx(2 / 700 * 400)
    assert most_of_two(one, 4) == pytest.approx(2), "each worker process has a core"
    assert most_of_two(one | {"redis": 250.0}, 8) == pytest.approx(1.6), "and so has Redis"


def test_a_quick_plan_takes_the_small_figures():
    assert Plan(1, quick=True).pick(1000, 10) == 10
    assert Plan().pick(1000, 10) == 1000


def test_a_table_has_a_line_for_each_subject_and_shows_the_spread_of_several_rounds():
    result = Result("turns", "turns & more")
    result.add("one worker", "turns", [900.0, 1000.0, 1100.0], "a second")
    result.add("one worker", "CPU", 12.5, "µs")
    result.add("two workers", "turns", 1500.0, "a second")
    result.add("something else", "memory", 7.0, "KiB")
    result.add("three workers", "turns", 1600.0, "a second")
    result.add("three workers", "CPU", 13.0, "µs")
    first, second = grids(result)
    assert first.head == ["turns, a second", "CPU, µs"]
    assert [(line.subject, line.cells) for line in first.lines] == [
        ("one worker", ["1,000 (900 to 1,100)", "12.5"]),
        ("two workers", ["1,500"]),
        ("three workers", ["1,600", "13"]),
    ]
    assert (second.head, second.lines[0].subject) == (["memory, KiB"], "something else")
    assert "1,000 (900 to 1,100)   12.5" in " ".join(table(result).split()).replace(" 12.5", "   12.5")


def test_who_could_not_be_measured_stands_in_the_table_with_the_reason():
    result = Result("peers", "others")
    result.add("arq", "turns", 200.0, "a second")
    result.fail("docket", "bench.peers.docket wait 40 failed:\nTraceback\n  …\nKeyError: 'x'\n")
    result.add("SAQ", "turns", 300.0, "a second")
    (grid,) = grids(result)
    assert grid.lines[1].cells == []
    assert grid.lines[1].note == "failed: bench.peers.docket wait 40 failed: … KeyError: 'x'"
    assert "docket   failed: bench.peers.docket" in table(result)
    assert result.value("docket", "turns") is None
    assert result.value("SAQ", "turns") == 300


def test_a_run_replaces_the_parts_that_it_measured_and_no_other(tmp_path):
    file = tmp_path / "new" / "bench.json"
    for name, turns in (("turns", 1.0), ("floor", 2.0)):
        result = Result(name, name)
        result.add("one", "turns", turns, "")
        Kept(file).put(name, record(result))
    early = Kept(file)  # a run that began before the next one had written
    again = Result("turns", "turns")
    again.add("one", "turns", [3.0, 5.0], "")
    Kept(file).put("turns", record(again))
    early.put("cells", record(failed="it broke"))
    known = Kept(file)
    assert (known.value("turns", "one", "turns"), known.value("floor", "one", "turns")) == (4, 2)
    assert known.value("turns", "two", "turns") is None
    assert (known.result("cells"), known.parts["cells"].failed) == (None, "it broke")
    assert known.parts["turns"].machine == MACHINE
    assert [path.name for path in file.parent.iterdir()] == ["bench.json"]


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text('{"results": []}')
    with pytest.raises(ValueError, match="holds no figures of this benchmark"):
        Kept(file)


def test_the_load_of_others_is_noticed():
    assert not msgspec.structs.replace(MACHINE, load=QUIET_LOAD).busy
    assert msgspec.structs.replace(MACHINE, load=QUIET_LOAD + 0.1).busy


def test_all_parts_together_keep_to_the_time_that_is_promised():
    assert expected_seconds(list(PARTS), quick=False) <= FULL_SECONDS
    assert expected_seconds(list(PARTS), quick=True) <= QUICK_SECONDS
    assert named(["cells", "floor"]) == [PARTS[0], PARTS[-1]]
    assert named([]) == list(PARTS)


def test_a_part_that_breaks_or_hangs_is_named_and_the_next_one_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", MODULES)
    monkeypatch.setattr("bench.parts.RESULTS", tmp_path / "results")
    missing, hanging = Part("no_such_part", 1, 1), Part("floor", 1, 1)
    monkeypatch.setattr(Part, "limit", lambda self, _quick, _rounds: 0.3 if self is hanging else 20)
    found = {part.name: one for part, one in run_parts([missing, hanging], Plan(1, quick=False), MACHINE)}
    assert found["no_such_part"].failed.startswith(
        "ModuleNotFoundError: No module named 'bench.no_such_part'"
    )
    assert found["floor"].failed.startswith("not measured within its limit of 0 s")
    assert found["floor"].result is None
    assert "Traceback" in (tmp_path / "results" / "no_such_part.log").read_text()


def test_a_figure_has_three_digits_or_is_a_whole_number():
    assert [number(one) for one in (0, 0.01234, 99.96, 999.4, 999.6, 12345.6)] == [
        "0", "0.0123", "100", "999", "1,000", "12,346",
    ]  # fmt: skip


def test_a_peer_that_is_not_installed_is_named_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for module, state in (
        ("arq", "arq>=0.26"),
        ("saq", "not installed: no network"),
        ("docket", "pydocket>=0.1"),
    ):
        folder = tmp_path / "peers" / module
        folder.mkdir(parents=True)
        (folder / "installed").write_text(state)
    assert missing() == {
        "saq": "not installed: no network",
        "docket": "pydocket>=0.1",  # an older wish: it is installed anew
        **dict.fromkeys(("celery", "dbos", "temporal", "agno", "langgraph"), "not installed"),
    }


def stage(streams: int, lag: float, share: float = 1.0) -> Stage:
    return Stage(streams, 50, streams * 50 * share, streams * 40, lag / 2, lag, 40, 12)


def test_the_knee_is_the_largest_number_of_streams_that_was_within_limits():
    assert knee_of([stage(100, 20), stage(200, 60), stage(400, 45), stage(600, 300)]) == stage(400, 45)
    assert knee_of([stage(100, 20), stage(200, 20, share=0.9)]) == stage(100, 20)
    assert knee_of([stage(100, 80)]) is None


def test_what_larger_deployments_need_follows_from_the_costs():
    costs = Costs(35, 12, 700, 300, 5, 100, 7, 70, 2000, 500, 200, 300)
    found = needs(costs, 30_000)
    assert (found.chunks, found.turns) == (600_000, 1_000)
    assert found.worker_cores == pytest.approx((600_000 * 35 + 1_000 * 700) / 1e6 / 0.7)
    assert found.cells == 13  # (7.2 + 0.3) / 0.6 is 12.5
    assert found.processes == 31  # a core each; a thousand streams each would be 30
    assert needs(Costs(*[1.0] * 12), 30_000).processes == 30
    assert found.gib == pytest.approx(30_000 * (5 * 1024 + 300 * 100) / 2**30)
    assert found.gateways == math.ceil(600_000 * 70 / 1e6 / 0.7)
    assert found.redis_gbits == pytest.approx(8 * (600_000 * 500 + 1_000 * 2_500) / 1e9)
    assert found.gateway_gbits == pytest.approx(8 * 600_000 * 600 / 1e9)
    assert needs(costs, 30_000, pace=10, turn_seconds=60).chunks == 300_000
    assert len(row(found)) == len(HEAD)


def test_costs_are_there_when_all_of_them_were_measured(tmp_path):
    kept = Kept(tmp_path / "bench.json")
    streams, turns, memory = Result("streams", ""), Result("turns", ""), Result("memory", "")
    streams.add("the knee at 20/s", "CPU of the worker, a chunk", 35.0, "µs")
    streams.add("the knee at 20/s", "CPU of Redis, a chunk", 12.0, "µs")
    turns.add("one worker process", "CPU of the worker, a turn", 700.0, "µs")
    turns.add("one worker process", "CPU of Redis, a turn", 300.0, "µs")
    memory.add("a turn in flight", "in Redis", 5.0, "KiB")
    memory.add("a delta that it has said", "in Redis", 100.0, "B")
    gateway, network = Result("gateway", ""), Result("network", "")
    gateway.add(GATEWAY, "CPU of the gateway, an event", 70.0, "µs")
    for subject, read, written in (("a turn", 2000.0, 500.0), ("a chunk with one reader", 200.0, 300.0)):
        network.add(subject, "into Redis", read, "B")
        network.add(subject, "out of Redis", written, "B")
    for result in (streams, turns, memory, gateway, network):
        kept.put(result.name, record(result))
    assert costs_of(kept) == ["`memory` (an idle session with one turn of 40 tokens, in Redis)"]
    memory.add("an idle session with one turn of 40 tokens", "in Redis", 7.0, "KiB")
    kept.put("memory", record(memory))
    assert costs_of(kept) == Costs(35, 12, 700, 300, 5, 100, 7, 70, 2000, 500, 200, 300)
