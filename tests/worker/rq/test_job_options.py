"""The options of a job do what they do in a turn that a client submits, or the job fails with the reason."""

import json

import pytest

from antiphon.input.ids import cell_hash
from antiphon.redis.cells import open_cells
from antiphon.wire.keys import rq_key
from antiphon.wire.records import ForeignJob
from antiphon_worker.rq.foreign_jobs import RUN_TURN, ForeignJobs

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:*")]


async def handled(cell, url: str, options: dict, number: int = 0, **fields: str) -> str:
    """The id of a job with these options, once a worker has taken it."""
    job = f"{cell_hash('s')}{number:022}"
    data = json.dumps([RUN_TURN, None, ["s", "Hello", options], {}]).encode()
    await cell.redis.hset(rq_key("rq_job", job), mapping={"data": data, **fields})
    await cell.redis.zadd(rq_key("rq_started", "antiphon"), {f"{job}:w": 1})
    await ForeignJobs(cell, "w", lambda: open_cells(url)).handle(ForeignJob(job, "antiphon", data))
    return job


async def test_its_options_are_those_of_the_turn(cell, redis_url):
    options = {
        "agent": "any",
        "tenant": "acme",
        "priority": "high",
        "delay": 60,
        "ttl": 100,
        "if_busy": "reject",
    }
    turn = await cell.redis.hgetall(cell.keys.turn(await handled(cell, redis_url, options)))
    assert (turn[b"tenant"], turn[b"priority"]) == (b"acme", b"high")
    assert await cell.redis.zcard(cell.keys.due) == 1
    assert int((await cell.redis.hgetall(cell.keys.session("s")))[b"ttl"]) == 100_000


REFUSED = [
    ({"if_busy": "reject"}, "is running the turn"),
    ({"cursor": 99}, "has gone on"),
    ({"timeout": -1}, "timeout"),
    ({"caller_tools": [{"name": "no name"}]}, "no name"),
    ({"tenant": "other"}, "tenant"),
    ({"retry_failed": True}, "remove 'retry_failed'"),
    ({"key": "k"}, "remove 'key'"),
    ({"queue": "slow"}, "remove 'queue'"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[str(options) for options, _ in REFUSED])
async def test_a_job_that_a_client_could_not_submit_fails_with_the_reason(options, reason, cell, redis_url):
    await handled(cell, redis_url, {"agent": "any", "tenant": "acme"})
    job = await handled(cell, redis_url, {"agent": "any"} | options, 1)
    status, why = await cell.redis.hmget(rq_key("rq_job", job), "status", "exc_info")
    assert (status, reason in why.decode()) == (b"failed", True), why
    assert not await cell.redis.exists(cell.keys.turn(job))


@pytest.mark.parametrize("options", [{}, {"key": "that would fail"}], ids=["a turn", "no turn"])
async def test_a_job_that_was_cancelled_after_it_was_taken_stays_cancelled(options, cell, redis_url):
    job = await handled(cell, redis_url, options, status="canceled")
    assert await cell.redis.hget(rq_key("rq_job", job), "status") == b"canceled"
    assert not await cell.redis.exists(cell.keys.turn(job), rq_key("rq_started", "antiphon"))
