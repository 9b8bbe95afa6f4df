"""For how long a turn is tried again whose model service fails."""

from itertools import pairwise

import pytest

from antiphon.errors import ProviderOverloaded, ProviderRateLimited, ProviderRejected
from antiphon.model import Retry
from antiphon_worker.process.outcomes import seconds_until_retry
from antiphon_worker.settings import Settings


class Turn:
    """What is asked of a claimed turn."""

    def __init__(self, errors=0, failing_ms=None):
        self.errors = errors
        self.failing_ms = failing_ms


def tries(error, retry=None, took=0.1, **settings):
    """The moments of all tries after the first, until the turn fails; each takes ``took`` seconds."""
    began, now, errors, moments = None, took, 0, []
    while True:
        turn = Turn(errors, None if began is None else (now - took - began) * 1000)
        delay = seconds_until_retry(turn, error, took, Settings(**settings), retry)
        if delay is None:
            return moments
        began = now if began is None else began
        moments.append(now + delay)
        now, errors = now + delay + took, errors + 1


@pytest.mark.parametrize(
    "error",
    [ProviderOverloaded(status=500), ProviderRateLimited(retry_after=1), ProviderOverloaded(retry_after=0)],
)
def test_a_service_that_fails_for_minutes_does_not_fail_a_turn(error):
    moments = tries(error)
    assert 600 - 73 < moments[-1] < 601
    assert 10 < len(moments) < 99
    pauses = [after - before for before, after in pairwise(moments)]
    assert max(pauses) < 73  # a minute, give or take a fifth


@pytest.mark.parametrize(("seconds", "least"), [(30, 10), (3600, 3500)])
def test_an_agent_says_for_how_long(seconds, least):
    moments = tries(ProviderOverloaded(), Retry(seconds=seconds))
    assert least < moments[-1] < seconds + 1


def test_a_worker_says_so_for_agents_that_do_not():
    assert tries(ProviderOverloaded(), retry_seconds=20)[-1] < 21
    assert tries(ProviderOverloaded(), Retry(seconds=20), retry_seconds=2000)[-1] < 21


def test_with_no_time_at_all_the_first_error_fails_the_turn():
    assert tries(ProviderOverloaded(), Retry(seconds=0)) == []
    assert tries(ProviderOverloaded(retry_after=0.01), Retry(seconds=0)) == []


def test_the_time_that_a_try_takes_counts():
    assert len(tries(ProviderOverloaded(), Retry(seconds=100), took=60)) == 2


def test_what_no_other_try_can_mend_is_not_tried_again():
    assert tries(ProviderRejected()) == []
    assert len(tries(ProviderOverloaded(retry_after=0), error_limit=3)) == 2


async def test_the_time_counts_from_the_first_error_of_a_step(cell):
    turn = await cell.started("t1")
    assert turn.failing_ms is None
    await cell.wait(7)
    await cell.give_back(turn, "error")
    for waited in (1_000, 3_000):
        await cell.wait(waited)
        turn = await cell.take_one()
        assert turn.failing_ms == {1_000: 1_000, 3_000: 4_000}[waited]
        await cell.give_back(turn, "error")
    turn = await cell.take_one()
    await cell.give_back(turn, "drain")
    turn = await cell.take_one(token="again")
    assert turn.failing_ms == 4_000
    assert (await cell.take_one(token="again")).failing_ms == 4_000
    await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[])
    await cell.wait(500)
    await cell.give_back(turn, "drain")
    turn = await cell.take_one()
    assert turn.failing_ms is None  # it has made progress
    await cell.give_back(turn, "error")
    await cell.wait(20)
    turn = await cell.take_one()
    assert turn.failing_ms == 20
    await cell.end(turn, "failed")
    await cell.requeue("t1")
    assert (await cell.take_one()).failing_ms is None
    await cell.settle()


async def test_a_damaged_time_is_none(cell):
    await cell.give_back(await cell.started("t1"), "error")
    for damage in ("", "1", "1 x", "x 1", "1 -5"):
        await cell.redis.hset("ant:turn:t1", mapping={"failing": damage, "started_at": damage})
        turn = await cell.take_one()
        assert turn.failing_ms is None
        assert turn.spent_ms == 0 or damage == "1"
        await cell.give_back(turn, "drain")
    await cell.settle()


async def test_a_turn_says_how_long_it_has_taken_since_its_first_start(cell):
    await cell.put("t1")
    await cell.wait(50)
    turn, started = await cell.take_one(), await cell.now()
    assert turn.spent_ms == 0
    await cell.give_back(turn, "error", delay_ms=5_000)
    await cell.reap_after(6_000)
    turn = await cell.take_one()
    assert turn.spent_ms == 6_000
    assert (await cell.turn("t1")).fields["started_at"] == str(started).encode()
    await cell.end(turn, "failed")
    await cell.wait(1_000)
    await cell.requeue("t1")
    turn = await cell.take_one()
    assert turn.spent_ms == 0
    assert (await cell.turn("t1")).fields["started_at"] == str(await cell.now()).encode()
    await cell.settle()
