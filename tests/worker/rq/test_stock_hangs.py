"""Turns that hang in RQ's own worker: it ends their process, and they go on elsewhere (G6, G11)."""

import asyncio
import faulthandler

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer
from support.processes import COMMAND

from antiphon_worker.supervisor.watchdog import beating_under_rq

RQ = COMMAND.with_name("rq")


@pytest.fixture
def stock_worker(redis_url, processes):
    def start(ensemble, **settings):
        return processes.start(
            RQ, "worker", "-u", redis_url, "--serializer", "json", "antiphon",
            env={**ensemble.stage.env, **{f"ANTIPHON_{name.upper()}": str(value) for name, value in settings.items()}},
        )  # fmt: skip

    return start


@pytest.mark.parametrize(("tool", "line"), [("spin", "in _for_ever"), ("freeze", "in freeze")])
async def test_a_turn_that_hangs_in_a_stock_worker_goes_on_elsewhere(
    tool, line, stock_worker, ensemble, redis_url
):
    """The log of the stock worker shows where it hung; the worker itself goes on."""
    worker = stock_worker(ensemble, lease=1, stall_timeout=1)
    turn = await ensemble.submit("s", f"go on tool:{tool}*1")
    await asyncio.to_thread(worker.wait_for_output, "Timeout (0:00:01)!")
    await asyncio.to_thread(worker.wait_for_output, line)
    async with ensemble.worker(lease=1):
        assert (await turn.result(60)).text
    assert await ensemble.field(turn, "crashes") == "1"
    after = await ensemble.submit("t", "and you?")
    await after.result(60)
    await ensemble.whole("s", "t")
    with Redis.from_url(redis_url) as redis:
        assert Job.fetch(turn.id, connection=redis, serializer=JSONSerializer).get_status() == "finished"
        assert redis.zcard("rq:failed:antiphon") == 0
    await asyncio.to_thread(worker.terminate)


async def test_a_long_turn_in_a_stock_worker_is_no_hang(stock_worker, ensemble):
    worker = stock_worker(ensemble, stall_timeout=1)
    turn = await ensemble.submit("s", "take your time words:250")
    await turn.result(60)
    assert [await ensemble.field(turn, name) for name in ("attempt", "crashes")] == ["1", "0"]
    await asyncio.to_thread(worker.terminate)


@pytest.mark.parametrize(("seconds", "timers"), [(60.0, [60.0]), (0.0, [])])
async def test_the_timer_ends_with_the_turn(seconds, timers, monkeypatch):
    """A stock worker of one process waits for its next job for as long as it likes."""
    set_to, begun = [], asyncio.Event()

    def push(timeout, **_):
        set_to.append(timeout)
        begun.set()

    monkeypatch.setattr(faulthandler, "dump_traceback_later", push)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", set_to.clear)
    async with beating_under_rq(seconds):
        if seconds:
            await begun.wait()
        assert set_to[:1] == timers
    assert set_to == []
