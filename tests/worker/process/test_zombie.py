"""Workers that lose their lease and do not know it yet: they change nothing any more (G3)."""

import asyncio
import signal
from pathlib import Path

import pytest
from redis import Redis
from support.ensemble import open_ensemble, signal_process
from support.eventually import wait_until, wait_until_async
from support.leaks import CORE, dumped, holds


@pytest.mark.main_path
async def test_a_stopped_worker_that_goes_on_changes_nothing(processes, ensemble):
    supervised = ensemble.supervisor(processes=2, lease=1)
    supervised.ready(2)
    turn = await ensemble.submit("s", "go on words:20 gate:g")
    after = await ensemble.submit("s", "after it")
    stopped = await ensemble.waits("g")
    signal_process(stopped, signal.SIGSTOP)
    assert await ensemble.waits("g", 2) != stopped
    ensemble.stage.open("g")
    await turn.result(60)
    await after.result(60)
    before = await ensemble.events("s"), await ensemble.texts("s")
    signal_process(stopped, signal.SIGCONT)
    wait_until(lambda: f"turn {turn.id} of session s: superseded" in supervised.process.output, 10)
    assert (await ensemble.events("s"), await ensemble.texts("s")) == before
    again = await ensemble.submit("s", "and again")
    await again.result(60)
    await ensemble.whole("s")


async def test_a_worker_that_goes_on_after_its_session_was_deleted_brings_no_word_back(
    redis_url, processes, ensemble
):
    supervised = ensemble.supervisor(processes=2, lease=1)
    supervised.ready(2)
    turn = await ensemble.submit("s", f"{CORE} go on tool:note words:20 gate:g words:20")
    stopped = await ensemble.waits("g")
    signal_process(stopped, signal.SIGSTOP)
    await ensemble.waits("g", 2)
    assert await ensemble.client.session("s").delete()
    with Redis.from_url(redis_url) as redis:

        def left():
            return [key for key, data in dumped(redis).items() if holds(data)]

        assert left() == []
        ensemble.stage.open("g")
        signal_process(stopped, signal.SIGCONT)
        wait_until(lambda: f"turn {turn.id} of session s: superseded" in supervised.process.output, 10)
        assert left() == []


async def test_a_worker_cut_off_from_redis_freezes_and_changes_nothing(redis_url, tmp_path, proxy):
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(url=proxy.url, lease=1) as cut_off,
    ):
        turn = await ensemble.submit("s", "go on gate:g words:5")
        await ensemble.waits("g")
        proxy.blackhole()
        async with ensemble.worker(lease=1):
            await ensemble.waits("g", 2)
            ensemble.stage.open("g")
            await turn.result(60)
            before = await ensemble.events("s")
            proxy.heal()
            later = [await ensemble.submit(f"s{i}", "later") for i in range(4)]
            for one in later:
                await one.result(60)
        taken = {
            e.worker for i in range(4) for e in await ensemble.events(f"s{i}") if e.type == "turn_started"
        }
        if cut_off.name not in taken:  # the other one was quicker each time: now it is alone
            last = await ensemble.submit("last", "for the one that was cut off")
            await last.result(60)
        assert await ensemble.events("s") == before
        await ensemble.whole("s", *(f"s{i}" for i in range(4)))


async def test_a_tool_in_a_thread_is_told_that_its_worker_has_lost_the_lease(redis_url, tmp_path, proxy):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        notes = ensemble.stage.notes
        async with ensemble.worker(url=proxy.url, lease=1):
            turn = await ensemble.submit("s", "go on tool:watch")
            await wait_until_async(lambda: notes("tool", tool="watch"), description="the tool runs")
            proxy.blackhole()
            async with ensemble.worker(lease=1):
                await turn.result(60)
                assert [note["attempt"] for note in notes("watched")] == [2]
                proxy.heal()
                await wait_until_async(
                    lambda: notes("watched", attempt=1), description="the first call is told"
                )
        await ensemble.whole("s")


async def test_a_tool_that_blocks_the_loop_does_not_look_like_a_death(ensemble):
    async with ensemble.worker(lease=0.8):
        turn = await ensemble.submit("s", "a clumsy one tool:block")
        await turn.result(60)
        await ensemble.whole("s")
        assert await ensemble.field(turn, "attempt") == "1"


@pytest.mark.one_server
async def test_forty_sessions_stay_whole_while_workers_are_killed_and_stopped(processes, ensemble):
    """Two workers die, two are stopped past their lease and go on, while 160 turns run."""
    supervised = ensemble.supervisor(processes=3, lease=1)
    supervised.ready(3)
    said = ["words:3", "words:20", "words:8 tool:note", "words:12"]
    turns = [
        await ensemble.submit(f"s{i}", f"turn {n} of {i} {said[n]}") for n in range(4) for i in range(40)
    ]

    async def answers(count):
        await wait_until_async(lambda: len(ensemble.stage.notes("said")) >= count, 30)

    for count, number in (
        (10, signal.SIGSTOP),
        (30, signal.SIGKILL),
        (60, signal.SIGSTOP),
        (90, signal.SIGKILL),
    ):
        await answers(count)
        victims = await wait_until_async(
            lambda: [pid for pid in supervised.workers if not is_stopped(pid)], 20, "a worker works"
        )
        signal_process(victims[0], number)
        if number == signal.SIGSTOP:
            asyncio.get_running_loop().call_later(2.5, signal_process, victims[0], signal.SIGCONT)
    for turn in turns:
        await turn.result(60)
    await ensemble.whole(*(f"s{i}" for i in range(40)))
    tools = [note["turn"] for note in ensemble.stage.notes("tool")]
    assert len(set(tools)) == 40
    assert await ensemble.client.connections.cell_of_session("s").redis.zcard("ant:active") == 0


def is_stopped(pid):
    """True where it does nothing, or has gone since it was listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "TZ"
    except (FileNotFoundError, ProcessLookupError):
        return True
