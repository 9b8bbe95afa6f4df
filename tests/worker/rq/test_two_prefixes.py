"""Two deployments, each with a prefix of its own, on one RQ queue of one database: neither disturbs the other."""

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from support.ensemble import agent_spec
from support.eventually import wait_until_async
from support.stage import make_app

from antiphon.client import AsyncClient
from antiphon.wire.lists.inspection import work_left
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings


@asynccontextmanager
async def deployment(url, stage, prefix, *, works=True):
    """A client of this prefix, and a worker beside it."""
    app = make_app(stage)
    worker = Worker(Settings(prefix=prefix), app, url=url)
    running = asyncio.create_task(worker.run()) if works else None
    async with AsyncClient(url, prefix=prefix) as client:
        yield client
    if running is not None:
        worker.abort()
        await running
    await app.aclose()


@pytest.fixture
def said(caplog):
    """What the workers have said, by the name of what has happened."""

    def find(action):
        return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == action]

    with caplog.at_level(logging.INFO):
        yield find


async def test_a_turn_waits_for_its_own_worker_beside_one_of_another_prefix(ensemble, redis_url, said):
    stage = ensemble.stage
    async with (
        deployment(redis_url, stage, "a"),
        deployment(redis_url, stage, "b", works=False) as theirs,
    ):
        turn = await theirs.submit("s", "hello", agent=agent_spec())
        await wait_until_async(lambda: said("other_prefix"), 20)
        assert await turn.status() == "queued"
        async with deployment(redis_url, stage, "b"):
            assert (await turn.result(60)).text
            assert not said("reaped_repaired"), "it never left its queue"
    (warning,) = said("other_prefix")
    assert "queue antiphon holds turns of the prefix 'b'" in warning
    assert "ANTIPHON_QUEUES" in warning


@pytest.mark.parametrize("prefixes", [("a", "b"), ("ant", "b")], ids=str)
async def test_the_same_key_in_the_same_session_is_a_turn_of_each(ensemble, redis_url, prefixes):
    stage = ensemble.stage
    async with (
        deployment(redis_url, stage, prefixes[0]) as one,
        deployment(redis_url, stage, prefixes[1]) as two,
    ):
        turns = [
            await client.submit("s", f"hello {n}", agent=agent_spec(), key="order-1")
            for n, client in enumerate((one, two))
        ]
        assert turns[0].id != turns[1].id
        for n, (turn, client) in enumerate(zip(turns, (one, two), strict=True)):
            assert (await turn.result(60)).text
            again = await client.submit("s", f"hello {n}", agent=agent_spec(), key="order-1")
            assert again.id == turn.id


@pytest.mark.one_server
async def test_a_burst_ends_when_only_another_prefix_has_work(redis_url, processes, ensemble):
    async with deployment(redis_url, ensemble.stage, "b", works=False) as theirs:
        waiting = [await theirs.submit(f"s{n}", "hello", agent=agent_spec()) for n in range(3)]
        own = await ensemble.submit("s", "hello")
        rq = Path(sys.executable).parent / "rq"
        ours = ("--worker-class", "antiphon_worker.rq.Worker")
        worker = processes.start(
            rq, "worker", "-u", redis_url, "--burst", *ours, "antiphon", env=ensemble.stage.env
        )
        assert await asyncio.to_thread(worker.wait, 40) == 0, worker.output
        assert (await own.result(1)).text
        assert [await turn.status() for turn in waiting] == ["queued"] * 3
        async with deployment(redis_url, ensemble.stage, "b"):
            for turn in waiting:
                assert (await turn.result(60)).text


async def test_a_job_of_nobody_and_one_that_is_no_hash_are_work(cell):
    assert not await work_left(cell, "w1", ["antiphon"])
    for job, write in (
        ("plain", {"data": "x"}),
        ("theirs", {"ant_prefix": "b"}),
        ("own", {"ant_prefix": "ant"}),
    ):
        await cell.redis.hset(f"rq:job:{job}", mapping=write)
    await cell.redis.set("rq:job:text", "x")
    for job, left in (("plain", True), ("theirs", False), ("own", True), ("text", True), ("gone", True)):
        await cell.redis.lpush("rq:queue:antiphon", job)
        assert await work_left(cell, "w1", ["antiphon"]) == left, job
        await cell.redis.delete("rq:queue:antiphon")


async def test_two_prefixes_work_on_one_queue(ensemble, redis_url, said):
    stage = ensemble.stage
    async with deployment(redis_url, stage, "a") as one, deployment(redis_url, stage, "b") as two:
        turns = [
            await client.submit(f"s{number}", "hello", agent=agent_spec())
            for number in range(60)
            for client in (one, two)
        ]
        for turn in turns:
            assert (await turn.result(60)).text
    with Redis.from_url(redis_url) as redis:
        assert redis.zcard("rq:failed:antiphon") == 0
        assert redis.llen("rq:queue:antiphon") == 0
        attempts = {
            redis.hget(key, "attempt") for prefix in ("a", "b") for key in redis.scan_iter(f"{prefix}:turn:*")
        }
    assert attempts == {b"1"}
    assert not said("reaped_repaired")
