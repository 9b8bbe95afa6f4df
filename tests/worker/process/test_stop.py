"""Workers that are stopped: they finish or give back, burn no attempt, and leave no process behind (G7)."""

import asyncio
import os
import signal

import pytest
from support.ensemble import signal_process
from support.eventually import wait_until, wait_until_async
from support.processes import gone

our_side = pytest.mark.one_server  # signals and processes: no server has a part in that


@pytest.mark.main_path
@our_side
async def test_a_drained_worker_finishes_its_turns_and_takes_no_new_one(processes, ensemble):
    supervised = ensemble.supervisor()
    supervised.ready()
    running = await ensemble.submit("s", "go on gate:g")
    await ensemble.waits("g")
    supervised.process.send_signal(signal.SIGTERM)
    supervised.process.wait_for_output("drains 1 turns")
    later = await ensemble.submit("later", "for the next worker")
    ensemble.stage.open("g")
    assert supervised.process.wait() == 0
    assert await running.status() == "finished"
    assert await later.status() == "queued"
    async with ensemble.worker():
        await later.result(60)
    await ensemble.whole("s", "later")
    assert await ensemble.field(running, "attempt") == "1"


@our_side
async def test_past_the_deadline_turns_are_given_back_and_no_attempt_is_counted(processes, ensemble):
    supervised = ensemble.supervisor(drain=0)
    supervised.ready()
    turn = await ensemble.submit("s", "go on gate:g")
    await ensemble.waits("g")
    assert supervised.process.terminate(10) == 0
    assert await turn.status() == "queued"
    assert [await ensemble.field(turn, name) for name in ("attempt", "crashes", "errors")] == ["0"] * 3
    ensemble.stage.open("g")
    async with ensemble.worker():
        await turn.result(60)
    await ensemble.whole("s")
    assert await ensemble.field(turn, "attempt") == "1"
    (retrying,) = [event for event in await ensemble.events("s") if event.type == "turn_retrying"]
    assert retrying.code == "drained"


@our_side
async def test_a_turn_stops_between_steps_when_the_deadline_has_passed(processes, ensemble):
    supervised = ensemble.supervisor(drain=0)
    supervised.ready()
    turn = await ensemble.submit("s", "wait for it tool:wait")
    await wait_until_async(lambda: ensemble.stage.notes("tool"), 20)
    supervised.process.send_signal(signal.SIGTERM)
    supervised.process.wait_for_output("drains 1 turns")
    ensemble.stage.open("tool")
    assert supervised.process.wait() == 0
    async with ensemble.worker():
        response = await turn.result(60)
    await ensemble.whole("s")
    assert [call.result for call in response.tool_calls] == ["waited"]
    assert len(ensemble.stage.notes("tool")) == 1


@our_side
async def test_a_second_signal_aborts_and_still_gives_back(processes, ensemble):
    supervised = ensemble.supervisor(drain=600)
    supervised.ready()
    turns = [await ensemble.submit(f"s{i}", "go on hang") for i in range(5)]
    await wait_until_async(lambda: len(ensemble.stage.notes("asked")) == 5)
    supervised.process.send_signal(signal.SIGTERM)
    supervised.process.wait_for_output("drains 5 turns")
    assert supervised.process.terminate(5) == 0
    for turn in turns:
        assert await turn.status() == "queued"
        assert await ensemble.field(turn, "attempt") == "0"
        await turn.cancel()


@pytest.mark.main_path
@our_side
async def test_interrupting_from_the_keyboard_drains(processes, ensemble):
    supervised = ensemble.supervisor()
    supervised.ready()
    turn = await ensemble.submit("s", "go on gate:g")
    await ensemble.waits("g")
    os.killpg(supervised.process.pid, signal.SIGINT)  # the terminal tells the whole group
    supervised.process.wait_for_output("drains 1 turns")
    ensemble.stage.open("g")
    assert supervised.process.wait() == 0
    assert (await turn.result(1)).text
    assert await ensemble.field(turn, "attempt") == "1"


@pytest.mark.main_path
@our_side
async def test_a_killed_supervisor_leaves_no_running_orphans(processes, ensemble):
    supervised = ensemble.supervisor(processes=2, drain=0)
    supervised.ready(2)
    turn = await ensemble.submit("s", "go on hang")
    await wait_until_async(lambda: ensemble.stage.notes("asked"))
    workers = supervised.workers
    supervised.process.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    wait_until(lambda: all(gone(pid) for pid in workers), 10, "the workers are gone")
    assert await turn.status() == "queued"
    assert await ensemble.field(turn, "attempt") == "0"
    await turn.cancel()


@our_side
@pytest.mark.parametrize("how", ["the worker drains", "the worker is killed", "the supervisor is killed"])
async def test_a_process_that_runs_one_turn_gives_it_back_when_its_worker_stops(how, processes, ensemble):
    supervised = ensemble.supervisor(drain=0)
    supervised.ready()
    turn = await ensemble.submit("s", "a bad start die*2 gate:g")
    alone = await ensemble.waits("g")
    (worker,) = supervised.workers
    assert await ensemble.field(turn, "crashes") == "2"
    match how:
        case "the worker drains":
            assert supervised.process.terminate(10) == 0
        case "the worker is killed":
            signal_process(worker, signal.SIGKILL)
            assert await ensemble.waits("g", 2) != alone
            ensemble.stage.open("g")
            await turn.result(60)
        case _:
            supervised.process.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(alone), 10, "the process is gone")
    assert await ensemble.field(turn, "crashes") == "2"
    ensemble.stage.open("g")
    ensemble.supervisor()
    await turn.result(60)
    await ensemble.whole("s")
    assert await ensemble.field(turn, "attempt") == "3"


@our_side
async def test_a_process_that_runs_one_turn_finishes_it_when_its_worker_dies(processes, ensemble):
    """As workers do whose supervisor is gone: by the drain's deadline, and then it ends."""
    supervised = ensemble.supervisor(drain=30)
    supervised.ready()
    turn = await ensemble.submit("s", "a bad start die*2 gate:g")
    alone = await ensemble.waits("g")
    (worker,) = supervised.workers
    signal_process(worker, signal.SIGKILL)
    wait_until(lambda: gone(worker), 10, "the worker is gone")
    ensemble.stage.open("g")
    await turn.result(60)
    wait_until(lambda: gone(alone), 10, "the process is gone")
    await ensemble.whole("s")
    assert [await ensemble.field(turn, name) for name in ("crashes", "attempt")] == ["2", "3"]
    assert len(ensemble.stage.notes("waits", gate="g")) == 1
    assert "Traceback" not in supervised.process.output


@pytest.mark.main_path
@our_side
async def test_a_rolling_restart_under_load_loses_nothing_and_burns_no_attempt(processes, ensemble):
    running = [ensemble.supervisor(drain=0.2) for _ in range(3)]
    for supervised in running:
        supervised.ready()
    turns = []
    done = asyncio.Event()

    async def load():
        number = 0
        while not done.is_set():
            said = f"{number} words:{number % 20}"
            turns.extend([await ensemble.submit(f"s{i}", said) for i in range(12)])
            number += 1
            await turns[-12].result(60)

    loading = asyncio.create_task(load())
    for number, supervised in enumerate(running):
        running[number] = ensemble.supervisor(drain=0.2)
        await asyncio.to_thread(running[number].ready)
        assert await asyncio.to_thread(supervised.process.terminate, 15) == 0
    done.set()
    await loading
    for turn in turns:
        await turn.result(60)
    await ensemble.whole(*(f"s{i}" for i in range(12)))
    for turn in turns:
        fields = (await turn._record()).fields
        assert (fields["attempt"], fields["crashes"], fields["errors"]) == (b"1", b"0", b"0")
