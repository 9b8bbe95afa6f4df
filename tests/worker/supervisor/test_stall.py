"""Processes that stand still are ended, and their turns go on or fail for it (G1, G6, G7, G11)."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from support.ensemble import signal_process
from support.eventually import wait_until, wait_until_async
from support.processes import gone
from support.replacing import replace_here
from support.share import share_of_processor

from antiphon.errors import TurnFailed
from antiphon_worker.supervisor import watchdog
from antiphon_worker.supervisor.watchdog import Page, Patience, standing_still, waited_for_processor

pytestmark = pytest.mark.one_server  # signals and processes: no server has a part in that


async def hangs(ensemble, tool, times=1):
    """The notes of the processes that this tool has stopped."""
    return await wait_until_async(
        lambda: (found := ensemble.stage.notes("tool", tool=tool)) and len(found) >= times and found, 20
    )


@pytest.mark.main_path
@pytest.mark.parametrize("tool", ["spin", "freeze"])
async def test_a_turn_whose_tool_hangs_goes_on_elsewhere_and_the_log_names_it(tool, processes, ensemble):
    supervised = ensemble.supervisor(processes=2, stall_timeout=1, lease=30)
    supervised.ready(2)
    turn = await ensemble.submit("s", f"once tool:{tool}*1")
    response = await turn.result(60)
    await ensemble.whole("s")
    assert [call.is_error for call in response.tool_calls] == [False]
    (retrying,) = [event for event in await ensemble.events("s") if event.type == "turn_retrying"]
    assert retrying.code == "loop_stalled"
    assert await ensemble.field(turn, "crashes") == "1"
    (stopped,) = {note["pid"] for note in ensemble.stage.notes("tool")[:1]}
    assert gone(stopped)
    output = supervised.process.output
    assert f"Tool calls under way: {tool} in turn {turn.id}" in output
    assert "harmful_tools.py" in output, "the stack of the tool"
    assert await asyncio.to_thread(supervised.process.terminate) == 0


@pytest.mark.parametrize("tool", ["spin", "freeze"])
async def test_a_turn_that_always_hangs_fails_for_it_and_its_neighbours_go_on(tool, processes, ensemble):
    supervised = ensemble.supervisor(processes=3, stall_timeout=2, lease=30, crash_limit=3)
    supervised.ready(3)
    neighbours = [await ensemble.submit(f"n{i}", "go on gate:g") for i in range(3)]
    await ensemble.waits("g", 3)
    turn = await ensemble.submit("s", f"always tool:{tool}")
    after = await ensemble.submit("s", "after it")
    with share_of_processor(processes) as share:
        with pytest.raises(TurnFailed) as failed:
            await turn.result(60)
        given = share()
    assert failed.value.code == "loop_stalled"
    assert "3 crashes" in str(failed.value)
    assert "event loop" in str(failed.value)
    ensemble.stage.open("g")
    await after.result(60)
    for neighbour in neighbours:
        await neighbour.result(60)
    await ensemble.whole("s", *(f"n{i}" for i in range(3)))
    assert [int(await ensemble.field(one, "crashes")) <= 2 for one in neighbours] == [True] * 3
    assert len({note["pid"] for note in ensemble.stage.notes("tool", tool=tool)}) == 3
    for neighbour in neighbours:
        events = [e for e in await ensemble.events(neighbour.session_id) if e.turn_id == neighbour.id]
        started = [event for event in events if event.type == "turn_started"]
        retrying = [event for event in events if event.type == "turn_retrying"]
        assert all(one.code == "loop_stalled" for one in retrying)
        if retrying:  # the first time there is another process that works
            assert (started[1].at - retrying[0].at) * given < 1000


@pytest.mark.parametrize("tool", ["spin", "freeze"])
async def test_a_stop_ends_although_a_process_hangs(tool, processes, ensemble):
    supervised = ensemble.supervisor(stall_timeout=0, drain=0, lease=1)
    supervised.ready()
    turn = await ensemble.submit("s", f"once tool:{tool}*1")
    (hung,) = await hangs(ensemble, tool)
    supervised.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(supervised.process.terminate, 20) == 0
    assert gone(hung["pid"])
    assert "does not end and is killed" in supervised.process.output
    async with ensemble.worker():
        await turn.result(60)
    await ensemble.whole("s")


@pytest.mark.parametrize("tool", ["spin", "freeze"])
async def test_a_process_that_hangs_ends_when_its_supervisor_has_been_killed(tool, processes, ensemble):
    supervised = ensemble.supervisor(stall_timeout=2, drain=0)
    supervised.ready()
    turn = await ensemble.submit("s", f"once tool:{tool}*1")
    (hung,) = await hangs(ensemble, tool)
    supervised.process.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(hung["pid"]), 10, "the process that hangs is gone")
    ensemble.supervisor(lease=1)
    await turn.result(60)
    await ensemble.whole("s")


async def test_a_process_that_is_stopped_for_too_long_is_ended(processes, ensemble):
    supervised = ensemble.supervisor(processes=2, stall_timeout=1, lease=30)
    supervised.ready(2)
    turn = await ensemble.submit("s", "go on gate:g")
    stopped = await ensemble.waits("g")
    signal_process(stopped, signal.SIGSTOP)
    assert await ensemble.waits("g", 2) != stopped
    assert gone(stopped)
    ensemble.stage.open("g")
    await turn.result(60)
    await ensemble.whole("s")


class Watched:
    """A page, and a clock and a sleep that the test moves."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.pauses = []
        self.beats = lambda: None
        self.page = Page(descriptor := Page.new_descriptor())
        watchdog.os.close(descriptor)
        replace_here(monkeypatch, time, "monotonic", lambda: self.now)
        replace_here(monkeypatch, asyncio, "sleep", self.sleep)

    async def sleep(self, seconds):
        self.now += seconds + (self.pauses.pop() if self.pauses else 0.0)
        self.beats()


@pytest.mark.parametrize(("which", "seconds"), [(0, 60), (1, 7)])
async def test_the_loop_may_stand_still_for_longer_than_the_whole_process(which, seconds, monkeypatch):
    watched = Watched(monkeypatch)
    watched.page.count(0, 1)
    watched.page.count(1, 1)

    def beat():
        watched.page.count(1 - which, int(watched.now * 4) + 2)

    watched.beats = beat
    assert await standing_still(watched.page, Patience(60.0, 10.0)) == pytest.approx(seconds, abs=0.5)


async def test_a_pause_of_the_whole_machine_is_nobodys_fault(monkeypatch):
    watched = Watched(monkeypatch)
    watched.page.count(0, 1)
    watched.pauses = [3600.0]
    await standing_still(watched.page, Patience(60.0, 10.0))
    assert watched.now > 3600 + 59


async def test_a_process_without_a_processor_is_not_blocked(monkeypatch):
    watched = Watched(monkeypatch)
    watched.page.count(0, 1)
    watched.page.count(1, 1)
    await standing_still(watched.page, Patience(60.0, 10.0), lambda: 0.9 * watched.now)
    assert watched.now == pytest.approx(70, abs=3)


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="only Linux says how long a thread has waited"
)
def test_the_time_without_a_processor_is_that_of_processes_that_share_one(processes):
    """A process that runs alone does not wait."""
    spin = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwhile True: pass"
    both = [processes.python("-c", spin, name=f"spin{number}") for number in range(2)]
    wait_until(lambda: all(waited_for_processor(one.pid) > 0.1 for one in both))
    assert waited_for_processor(0) == 0


async def test_what_has_never_beaten_is_not_watched(monkeypatch):
    watched = Watched(monkeypatch)

    class Enough(Exception):
        pass

    def beat():
        if watched.now > 1000:
            raise Enough

    watched.beats = beat
    with pytest.raises(Enough):
        await standing_still(watched.page, Patience(60.0, 10.0))


def test_what_does_not_fit_into_the_page_is_left_out():
    descriptor = Page.new_descriptor()
    page = Page(descriptor)
    watchdog.os.close(descriptor)
    page.count(1, 7)
    page.write_calls(f"tool {number} in turn é" for number in range(1000))
    assert page.calls.startswith("tool 0 in turn é, tool 1 in")
    page.write_calls([])
    assert (page.calls, page.counters) == ("", (0, 7))
