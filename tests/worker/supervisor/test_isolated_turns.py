"""Turns that run alone, when their worker, their process or both die in the wrong moment (G6, G7, G11)."""

import asyncio
import signal
import socket

import pytest
from support.ensemble import open_ensemble, signal_process
from support.eventually import wait_until
from support.processes import gone, worker_name
from support.stage import make_app

from antiphon import Agent, AsyncClient
from antiphon.testing import script
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon_worker.app import App
from antiphon_worker.process.figures import CountingRunner
from antiphon_worker.process.isolated_turn import run_isolated_turns, run_one_turn
from antiphon_worker.process.lease import LeaseKeeper
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.isolated_turns import IsolatedTurns
from antiphon_worker.supervisor.supervisor import KEPT

pytestmark = pytest.mark.one_server  # signals and processes: no server has a part in that

BAD_START = "a bad start die*2"


async def begun(ensemble, gate, opened=(), text=BAD_START, **settings):
    """A supervisor, its worker, a turn that must run alone, and the process that stands at this gate with it."""
    supervised = ensemble.supervisor(app="support.late_stage:app", **settings)
    supervised.ready()
    for name in opened:
        ensemble.stage.open(name)
    turn = await ensemble.submit("s", text)
    process = await ensemble.waits(gate)
    (worker,) = supervised.workers
    return supervised, worker, turn, process


async def ended_whole(ensemble, supervised, turn, *, attempt, crashes, asked):
    """The turn has ended once, and no process is left behind."""
    await turn.result(60)
    await ensemble.whole("s")
    fields = [await ensemble.field(turn, name) for name in ("attempt", "crashes")]
    assert fields == [str(attempt), str(crashes)]
    assert len(ensemble.stage.notes("asked")) == asked
    assert len(ensemble.stage.notes("said")) == 1
    children = supervised.process.children()
    assert await asyncio.to_thread(supervised.process.terminate) == 0
    assert [pid for pid in children if not gone(pid)] == []
    assert "Traceback" not in supervised.process.output


async def test_the_worker_dies_before_the_process_has_claimed_the_turn(processes, ensemble):
    """Both the old process and the one of the next worker go for the turn: one of them gets it."""
    supervised, worker, turn, first = await begun(ensemble, "alone", opened=["claimed"])
    name = worker_name(worker)
    signal_process(worker, signal.SIGKILL)
    supervised.process.wait_for_output(f"turns of worker {name} requeued: 1")
    second = await ensemble.waits("alone", 2)
    assert second != first
    ensemble.stage.open("alone")
    await ended_whole(ensemble, supervised, turn, attempt=3, crashes=2, asked=3)
    assert gone(first)


async def test_the_worker_dies_when_the_process_has_just_claimed_the_turn(processes, ensemble):
    """The process goes on with it, and ends afterwards."""
    supervised, worker, turn, process = await begun(ensemble, "claimed", opened=["alone"])
    name = worker_name(worker)
    signal_process(worker, signal.SIGKILL)
    supervised.process.wait_for_output(f"turns of worker {name} requeued: 0")
    ensemble.stage.open("claimed")
    await turn.result(60)
    wait_until(lambda: gone(process), 10, "the process is gone")
    assert len(ensemble.stage.notes("waits", gate="alone")) == 1
    await ended_whole(ensemble, supervised, turn, attempt=3, crashes=2, asked=3)


async def test_a_process_that_dies_before_it_has_claimed_the_turn_is_followed_by_another(processes, ensemble):
    """Nothing but the worker's own notice brings the turn back before ten seconds have passed."""
    supervised, _, turn, first = await begun(ensemble, "alone", opened=["claimed"])
    signal_process(first, signal.SIGKILL)
    assert await asyncio.wait_for(ensemble.waits("alone", 2), 8) != first
    ensemble.stage.open("alone")
    await ended_whole(ensemble, supervised, turn, attempt=3, crashes=2, asked=3)


async def test_a_process_that_died_while_it_had_nothing_to_do_is_followed_by_another(processes, ensemble):
    supervised, _, turn, idle = await begun(ensemble, "alone", opened=["alone", "claimed"])
    await turn.result(60)
    blocking = await ensemble.submit("t", "go on gate:g")
    turn = await ensemble.submit("t", "go on alone")
    await ensemble.waits("g")
    cell = ensemble.client.connections.cell_of_session("t")
    await cell.redis.hset(cell.keys.turn(turn.id), "crashes", 2)
    signal_process(idle, signal.SIGKILL)
    wait_until(lambda: gone(idle), 10, "the process is gone")
    ensemble.stage.open("g")
    await blocking.result(60)
    await asyncio.wait_for(turn.result(60), 8)
    await ensemble.whole("s", "t")
    assert ensemble.stage.notes("waits", gate="alone")[-1]["pid"] != idle
    assert await asyncio.to_thread(supervised.process.terminate) == 0
    assert "Traceback" not in supervised.process.output


@pytest.mark.main_path
async def test_a_process_and_its_worker_die_together(processes, ensemble):
    """The supervisor hands back what the process held: its worker cannot, and the lease is a minute."""
    supervised, worker, turn, process = await begun(ensemble, "claimed", opened=["alone"], lease=60)
    signal_process(worker, signal.SIGSTOP)
    signal_process(process, signal.SIGKILL)
    signal_process(worker, signal.SIGKILL)
    assert await ensemble.waits("claimed", 2) != process
    ensemble.stage.open("claimed")
    await ended_whole(ensemble, supervised, turn, attempt=4, crashes=3, asked=3)


async def test_a_grandchild_that_holds_the_lifeline_keeps_neither_the_turn_nor_its_place(processes, ensemble):
    """The lease is a minute and there is one place: only the supervisor's word brings both back."""
    supervised = ensemble.supervisor(lease=60, isolated_turns=1)
    supervised.ready()
    first = await ensemble.suspect("s", "go on tool:fork*1")
    response = await first.result(60)
    assert [call.result for call in response.tool_calls] == ["forked"]
    second = await ensemble.suspect("t", "and again tool:fork*1")
    await second.result(60)
    await ensemble.whole("s", "t")
    assert await ensemble.field(second, "crashes") == "3"
    assert await asyncio.to_thread(supervised.process.terminate) == 0


async def test_a_worker_leaves_a_turn_for_which_it_has_no_room_to_others(processes, ensemble):
    """The lease is a minute: what a full worker holds waits for that long."""
    full = ensemble.supervisor(lease=60, isolated_turns=1)
    full.ready()
    first = await ensemble.suspect("s", "go on gate:g")
    process = await ensemble.waits("g")
    second = await ensemble.suspect("t", "and again gate:g")
    await (await ensemble.submit("u", "beside them")).result(60)
    other = ensemble.supervisor(lease=60, isolated_turns=1)
    other.ready()
    assert await ensemble.waits("g", 2) != process
    ensemble.stage.open("g")
    for turn in (first, second):
        await turn.result(60)
    await ensemble.whole("s", "t", "u")
    assert "missing in its queue" not in full.process.output + other.process.output


async def test_a_turn_runs_alone_when_there_is_room_again(processes, ensemble):
    ensemble.supervisor(lease=60, isolated_turns=1).ready()
    turns = [await ensemble.suspect(f"s{number}", "go on") for number in range(3)]
    for turn in turns:
        await turn.result(60)


async def test_a_process_outlives_an_outage_of_redis(redis_url, tmp_path, processes, proxy):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        supervised, _, turn, process = await begun(ensemble, "alone", opened=["claimed"], url=proxy.url)
        proxy.refuse()
        ensemble.stage.open("alone")
        supervised.process.wait_for_output("a turn that runs alone cannot be claimed")
        proxy.heal()
        await turn.result(60)
        await ensemble.whole("s")
        assert ensemble.stage.notes("said")[0]["pid"] == process


async def test_a_keeper_that_ends_ends_the_turn_and_is_heard_of(redis_url, tmp_path, monkeypatch):
    """Nobody renews the lease any more: the process is to end, and what it held goes on elsewhere."""

    async def ends(self):
        raise RuntimeError("The lease keeper's thread has ended.")

    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        turn = await ensemble.submit("s", "go on gate:g")
        cell, app = ensemble.client.connections.cell_of_session("s"), make_app(ensemble.stage)
        monkeypatch.setattr(LeaseKeeper, "run", ends)
        with pytest.raises(RuntimeError, match="keeper's thread"):
            await run_one_turn(turn.id, Settings(), app, lambda: Cell(open_redis(redis_url)), "w")
        monkeypatch.undo()
        assert [act.what for act in await cell.reap(holder="w")] == ["recovered"]
        ensemble.stage.open("g")
        async with ensemble.worker():
            await turn.result(60)


async def test_an_error_of_the_run_itself_is_an_error_of_the_job(redis_url, tmp_path, monkeypatch):
    async def fails(self, turn, lease):
        raise RuntimeError("The run cannot go on.")

    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        turn = await ensemble.submit("s", "go on")
        app = make_app(ensemble.stage)
        monkeypatch.setattr(CountingRunner, "run", fails)
        with pytest.raises(RuntimeError, match="cannot go on"):
            await run_one_turn(turn.id, Settings(), app, lambda: Cell(open_redis(redis_url)), "w")
        monkeypatch.undo()
        cell = ensemble.client.connections.cell_of_session("s")
        assert [act.what for act in await cell.reap(holder="w")] == ["recovered"]
        async with ensemble.worker():
            await turn.result(60)


async def test_a_turn_that_is_offered_again_while_its_process_is_cleared_away_is_run_again():
    ran = []

    class Cleared(IsolatedTurns):
        async def _run_in_process(self, turn_id):
            ran.append(turn_id)
            if len(ran) == 1:
                await self.run(turn_id)  # the supervisor was quicker, and the worker has claimed it

    await Cleared(Settings(), "", "w", lambda: None).run("t")
    assert ran == ["t", "t"]


async def test_a_turn_for_which_no_process_can_be_started_is_tried_again_and_keeps_no_place(monkeypatch):
    tried = []

    class Full(IsolatedTurns):
        async def _start(self):
            tried.append(1)
            raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("antiphon_worker.supervisor.isolated_turns.START_PAUSE_SECONDS", 0)
    turns = Full(Settings(isolated_turns=1), "", "w", lambda: None)
    await turns.run("t")
    await turns.run("u")
    assert len(tried) == 6


async def test_a_process_that_works_alone_has_one_beside_it_that_is_ready(processes, ensemble):
    supervised = ensemble.supervisor()
    supervised.ready()
    worker = supervised.workers
    wait_until(lambda: len(supervised.process.children()) == 2, 20, "one is kept ready")
    kept = set(supervised.process.children()) - set(worker)
    assert not kept & set(supervised.workers)
    signal_process(worker[0], signal.SIGKILL)
    await (await ensemble.submit("s", "again")).result(60)
    assert set(supervised.workers) == kept
    assert await asyncio.to_thread(supervised.process.terminate) == 0


@pytest.mark.main_path
async def test_after_a_death_the_next_one_waits_for_no_start(processes, ensemble):
    supervised = ensemble.supervisor()
    supervised.ready()
    await (await ensemble.submit("s", "once die*1")).result(60)
    wait_until(lambda: len(supervised.process.children()) == 1 + KEPT, 20, "some are kept ready")
    (worker,) = supervised.workers
    kept = set(supervised.process.children()) - {worker}
    signal_process(worker, signal.SIGKILL)
    await (await ensemble.submit("s", "again")).result(60)
    assert set(supervised.workers) <= kept
    wait_until(lambda: len(supervised.process.children()) == 1 + KEPT, 20, "some are kept ready")
    children = supervised.process.children()
    assert await asyncio.to_thread(supervised.process.terminate) == 0
    assert [pid for pid in children if not gone(pid)] == []
    assert "Traceback" not in supervised.process.output


async def test_a_killed_supervisor_leaves_no_process_that_was_kept(processes, ensemble):
    supervised = ensemble.supervisor(drain=0)
    supervised.ready()
    await (await ensemble.submit("s", "once die*1")).result(60)
    wait_until(lambda: len(supervised.process.children()) == 1 + KEPT, 20, "some are kept ready")
    children = supervised.process.children()
    supervised.process.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(gone, children)), 10, "the processes are gone")


async def test_a_process_runs_the_turns_that_its_worker_names(redis_url):
    ours, theirs = socket.socketpair()
    app = App(agents=[Agent(script("One.", "Two."), "any", name="a")])
    settings = Settings(redis_url=redis_url)
    with ours:
        running = asyncio.create_task(run_isolated_turns(theirs, app, settings, "w", redis_url))
        async with AsyncClient(redis_url) as client:
            for expected in ("One.", "Two."):
                turn = await client.submit("s", "Hello", agent="a")
                ours.sendall(f"{turn.id}\n".encode())
                assert (await turn.result(20)).text == expected
        ours.sendall(b"\n")
        await running


async def test_a_process_without_a_turn_ends_as_soon_as_it_is_told_to():
    ours, theirs = socket.socketpair()
    with ours:
        running = asyncio.create_task(
            run_isolated_turns(theirs, App(), Settings(), "w", "redis://127.0.0.1:1/0")
        )
        ours.sendall(b"\n")
        async with asyncio.timeout(20):
            await running
