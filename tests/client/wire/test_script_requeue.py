"""`requeue`: a failed turn is offered again, as RQ's own tools would do it."""

from __future__ import annotations

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer
from support.cells import open_cell

from antiphon.errors import TurnNotFound, UsageError


async def failed(cell):
    await cell.put("t1")
    await cell.end(await cell.take_one(), "failed")


async def test_the_one_that_claims_it_begins_a_new_run(redis_url):
    async with open_cell(redis_url) as cell:
        await failed(cell)
        await cell.redis.delete("ant:bell:antiphon", "rq:queues")
        await cell.requeue("t1")
        assert await cell.queue() == ["t1"]
        assert await cell.redis.zscore("rq:failed:antiphon", "t1") is None
        assert await cell.redis.exists("ant:bell:antiphon")
        assert await cell.redis.smembers("rq:queues") == {b"rq:queue:antiphon"}
        turn = await cell.take_one()
        assert (turn.run, turn.attempt) == (2, 1)
        await cell.end(turn)


async def test_asking_twice_runs_it_once(redis_url):
    async with open_cell(redis_url) as cell:
        await failed(cell)
        for _ in range(2):
            await cell.requeue("t1")
        turn = await cell.take_one()
        await cell.end(turn)
        assert (await cell.take()).turns == []
        assert (await cell.turn("t1")).run == 2


async def test_a_job_that_was_deleted_is_whole_again_and_goes_with_its_turn(redis_url):
    async with open_cell(redis_url) as cell:
        await failed(cell)
        await cell.redis.expire("ant:turn:t1", 500)
        await cell.redis.delete("rq:job:t1")
        await cell.requeue("t1")
        with Redis.from_url(redis_url) as redis:
            job = Job.fetch("t1", connection=redis, serializer=JSONSerializer)
            assert (job.get_status(), job.args) == ("queued", ["t1"])
            assert job.func_name == "antiphon_worker.jobs.run_turn"
        assert 0 < await cell.redis.ttl("rq:job:t1") <= 500


@pytest.mark.parametrize("status", ["finished", "cancelled", "queued", "running"])
async def test_a_turn_that_has_not_failed_is_refused_and_left_alone(redis_url, status):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = None if status == "queued" else await cell.take_one()
        if status in ("finished", "cancelled"):
            await cell.end(turn, status)
        before = await cell.contents()
        with pytest.raises(UsageError, match=f"is {status}: only failed turns"):
            await cell.requeue("t1")
        assert await cell.contents() == before
        if status == "running":
            await cell.end(turn)


async def test_a_turn_that_is_unknown_leaves_nothing(redis_url):
    async with open_cell(redis_url) as cell:
        before = await cell.contents()
        with pytest.raises(TurnNotFound):
            await cell.requeue("gone")
        assert await cell.contents() == before
