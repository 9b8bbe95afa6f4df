"""A lease as its holder sees it: frozen past its deadline, stopped in the right order."""

import asyncio
import time

import pytest
from support.eventually import wait_until_async

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
        await asyncio.wait_for(keeper.run(), 10)


def test_a_stop_signal_passes_a_tool_that_catches_every_exception():
    def tool():
        try:
            raise StopSignal(Stop.DRAINED)
        except Exception:  # noqa: BLE001
            return "eaten"

    with pytest.raises(StopSignal):
        tool()
