"""``rq worker --worker-class antiphon_worker.rq.Worker``: turns alone, many at once, and a dead neighbour's too."""

import asyncio
import faulthandler
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from redis import Redis
from rq import Callback, Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import wait_until_async
from support.processes import COMMAND

from antiphon.errors import TurnCancelled
from antiphon.wire.connection.open import url_like
from antiphon_worker.supervisor.watchdog import beating_under_rq

RQ = Path(sys.executable).parent / "rq"
OURS = ("--worker-class", "antiphon_worker.rq.Worker")


def rq_worker(processes, ensemble, *arguments, env=None):
    return processes.start(
        RQ, "worker", "-u", ensemble.url, *arguments, "antiphon", env={**ensemble.stage.env, **(env or {})}
    )


@pytest.mark.main_path
@pytest.mark.one_server
async def test_it_runs_turns_and_nothing_else(redis_url, tmp_path, processes):
    """Not the function, not its callbacks, not what a pickle says, whatever the serializer of the command line."""
    marks = {name: tmp_path / name for name in ("function", "success", "failure", "pickle")}

    def touch(name):
        return f"open({str(marks[name])!r}, 'w').close()"

    (tmp_path / "evil.py").write_text(
        f"def job(*_):\n    {touch('function')}\ndef good(*_):\n    {touch('success')}\n"
        f"def bad(*_):\n    {touch('failure')}\ndef pickled(*_):\n    {touch('pickle')}\n"
    )
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        with Redis.from_url(redis_url) as redis:
            plain = Queue("antiphon", connection=redis, serializer=JSONSerializer)
            jobs = [
                plain.enqueue("evil.job", on_success=Callback("evil.good"), on_failure=Callback("evil.bad")),
                Queue("antiphon", connection=redis).enqueue("evil.pickled", on_failure=Callback("evil.bad")),
            ]
            turns = [await ensemble.submit(f"s{i}", "hello") for i in range(5)]
            redis.hset(f"rq:job:{turns[0].id}", "success_callback_name", "evil.good")
            path = os.pathsep.join([str(tmp_path), ensemble.stage.env["PYTHONPATH"]])
            worker = rq_worker(processes, ensemble, "--burst", *OURS, env={"PYTHONPATH": path})
            assert await asyncio.to_thread(worker.wait, 40) == 0, worker.output
            for turn in turns:
                assert (await turn.result(1)).text
            for job in jobs:
                assert redis.hget(f"rq:job:{job.id}", "status") == b"failed"
                assert redis.hget(f"rq:job:{job.id}", "exc_info")
            assert redis.zrange("rq:wip:antiphon", 0, -1) == []
        await ensemble.whole(*(f"s{i}" for i in range(5)))
    assert [name for name, mark in marks.items() if mark.exists()] == []


@pytest.mark.one_server
async def test_a_job_of_rqs_scheduler_becomes_a_turn_when_it_is_due(ensemble, redis_url, processes):
    with Redis.from_url(redis_url) as redis:
        queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
        options = {"agent": msgspec.to_builtins(agent_spec())}
        job = queue.enqueue_at(
            datetime(2020, 1, 1, tzinfo=UTC), "antiphon_worker.jobs.run_turn", "s", "hello", options
        )
        worker = rq_worker(processes, ensemble, "--burst", "--with-scheduler", "--serializer", "json", *OURS)
        assert await asyncio.to_thread(worker.wait, 40) == 0, worker.output
        assert (await (await ensemble.client.turn(job.id)).result(1)).text
    await ensemble.whole("s")


@pytest.mark.one_server
async def test_it_goes_on_with_the_turn_of_a_killed_neighbour(ensemble, redis_url, processes):
    """No worker but these: nobody else would find it."""
    env = {"ANTIPHON_LEASE": "1"}
    stock = processes.start(
        RQ,
        "worker",
        "-u",
        redis_url,
        "--serializer",
        "json",
        "antiphon",
        env={**ensemble.stage.env, **env},
    )
    turn = await ensemble.submit("s", "go on gate:g")
    horse = await ensemble.waits("g")
    ours = rq_worker(processes, ensemble, *OURS, env=env)
    stock.kill()
    signal_process(horse, signal.SIGKILL)
    assert await ensemble.waits("g", 2) != horse
    ensemble.stage.open("g")
    await turn.result(60)
    await ensemble.whole("s")
    ours.terminate()
    assert await asyncio.to_thread(ours.wait, 20) == 0


@pytest.mark.one_server
@pytest.mark.parametrize("tool", ["spin", "freeze"])
async def test_one_that_hangs_ends_and_its_turn_goes_on_elsewhere(tool, ensemble, processes):
    """It has no supervisor: it ends, and whoever started it starts it again."""
    limits = {"ANTIPHON_STALL_TIMEOUT": "1", "ANTIPHON_LEASE": "1"}
    worker = rq_worker(processes, ensemble, *OURS, env=limits)
    turn = await ensemble.submit("s", f"once tool:{tool}*1")
    assert await asyncio.to_thread(worker.wait, 30) == 1
    assert "Timeout (0:00:01)!" in worker.output
    assert "harmful_tools.py" in worker.output, "the stack of the tool"
    async with ensemble.worker(lease=1):
        await turn.result(30)
    await ensemble.whole("s")


@pytest.mark.one_server
async def test_a_stock_worker_records_a_cancelled_turn_as_cancelled(ensemble, redis_url, processes):
    turn = await ensemble.submit("s", "go on hang")
    worker = rq_worker(processes, ensemble, "--burst", "--serializer", "json", env={"ANTIPHON_LEASE": "1"})
    await wait_until_async(lambda: ensemble.stage.notes("asked"), 20)
    await turn.cancel("enough")
    with pytest.raises(TurnCancelled):
        await turn.result(60)
    assert await asyncio.to_thread(worker.wait, 20) == 0
    with Redis.from_url(redis_url) as redis:
        assert Job.fetch(turn.id, connection=redis, serializer=JSONSerializer).get_status() == "canceled"
        assert redis.zrange("rq:canceled:antiphon", 0, -1) == [turn.id.encode()]
        assert redis.zrange("rq:finished:antiphon", 0, -1) == []
        assert redis.ttl(f"rq:job:{turn.id}") > 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6379/0", "redis://user:p%40ss%2Fw%3Frd@example.org:7000/3",
        "rediss://:secret@example.org:6380/1?ssl_ca_certs=%2Fca.pem", "unix:///tmp/redis.sock?db=2",
    ],
)  # fmt: skip
def test_a_clients_url_leads_to_where_the_client_does(url):
    client = Redis.from_url(url)
    again = Redis.from_url(url_like(client))
    names = ("host", "port", "db", "username", "password", "path", "ssl_ca_certs")
    one, other = client.connection_pool, again.connection_pool
    assert {n: one.connection_kwargs.get(n) or None for n in names} == {
        n: other.connection_kwargs.get(n) or None for n in names
    }
    assert one.connection_class is other.connection_class


STOCK = COMMAND.with_name("rq")


@pytest.fixture
def stock_worker(redis_url, processes):
    def start(ensemble, **settings):
        return processes.start(
            STOCK, "worker", "-u", redis_url, "--serializer", "json", "antiphon",
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
