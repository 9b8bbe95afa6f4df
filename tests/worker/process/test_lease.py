"""A lease as its holder sees it: frozen past its deadline, stopped in the right order."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from redis import Redis
from support.ensemble import open_ensemble, signal_process
from support.eventually import patience, wait_until, wait_until_async
from support.leaks import CORE, dumped, holds

from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon_worker.process.lease import Lease, LeaseKeeper, Stop, StopSignal


def lease_of(seconds: float) -> Lease:
    return Lease(SessionId("s"), TurnId("t"), Fence("1-a"), time.monotonic() + seconds)


async def test_a_held_lease_lets_work_go_on():
    await lease_of(60).checkpoint()


async def test_a_holder_past_its_deadline_waits_until_a_renewal_says_that_it_still_holds():
    lease = lease_of(-1)
    assert lease.frozen
    waiting = asyncio.ensure_future(lease.checkpoint())
    await asyncio.sleep(0)
    assert not waiting.done()
    lease.mono_deadline = time.monotonic() + 60
    lease.answered()
    await waiting


async def test_a_frozen_holder_that_is_superseded_stops():
    lease = lease_of(-1)
    waiting = asyncio.ensure_future(lease.checkpoint())
    await asyncio.sleep(0)
    lease.end(Stop.SUPERSEDED)
    with pytest.raises(StopSignal) as caught:
        await waiting
    assert caught.value.stop is Stop.SUPERSEDED


async def test_a_drain_waits_for_a_safe_point_and_a_second_one_does_not():
    lease, interrupted = lease_of(60), []
    lease.on_stop(lambda: interrupted.append(True))
    lease.end(Stop.DRAINED, at_once=False)
    assert not interrupted
    with pytest.raises(StopSignal):
        await lease.checkpoint()
    lease.end(Stop.DRAINED)
    assert interrupted


def test_nothing_brings_a_superseded_lease_back_and_a_cancelled_turn_is_not_given_back_at_a_safe_point():
    lease = lease_of(60)
    lease.end(Stop.CANCELLED, "no longer wanted")
    lease.end(Stop.DRAINED, at_once=False)
    assert (lease.stop, lease.stop_reason) == (Stop.CANCELLED, "no longer wanted")
    lease.end(Stop.SUPERSEDED)
    lease.end(Stop.CANCELLED, "again")
    assert lease.stop is Stop.SUPERSEDED


class Renews:
    """A cell that answers to each renewal what the test says, and raises what is an exception."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.redis = self

    async def renew(self, worker, pairs, *, lease_ms):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return [answer] * len(pairs)

    async def aclose(self):
        return


async def test_a_keeper_that_meets_an_error_of_its_own_says_so_and_goes_on(caplog):
    caplog.set_level("DEBUG", "antiphon")
    cell = Renews(ValueError("odd"), RecursionError(), "")
    keeper, lease = LeaseKeeper(lambda: cell, "w", 0.5), lease_of(0.5)
    keeper.add(lease)
    before = lease.mono_deadline
    keeping = asyncio.create_task(keeper.run())
    await wait_until_async(lambda: lease.mono_deadline > before)
    keeping.cancel()
    await asyncio.wait([keeping])
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert ["keeper failed and starts again: ValueError\n" in errors[0], "odd" in errors[0], len(errors)] == [
        True,
        False,
        2,
    ]
    assert "in _keep\n" in errors[0]
    assert "ValueError: odd" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_keeper_whose_thread_ends_does_not_pass_in_silence():
    keeper = LeaseKeeper(lambda: Renews(SystemExit()), "w", 0.5)
    keeper.add(lease_of(0.5))
    with pytest.raises(RuntimeError, match="thread has ended"):
        await asyncio.wait_for(keeper.run(), patience(10))


def test_a_stop_signal_passes_a_tool_that_catches_every_exception():
    def tool():
        try:
            raise StopSignal(Stop.DRAINED)
        except Exception:  # noqa: BLE001
            return "eaten"

    with pytest.raises(StopSignal):
        tool()


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
