"""Many turns submitted and awaited at once: ``submit_many`` and ``results``, against RQ's ``enqueue_many``."""

import asyncio
import time

import rq
from redis import Redis

from antiphon.client import AsyncClient, Submission
from antiphon.redis.turn import AsyncTurn
from bench.load import AGENT, ONE_CHUNK, warm_up
from bench.peers.work import ONE_CHUNK as TEXT
from bench.peers.work import answer
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "a batch of turns, each of a session of its own"
NUMBER, AWAITED = 10_000, 1_000


async def measure(plan: Plan, result: Result) -> None:
    number, awaited = plan.pick(NUMBER, 500), plan.pick(AWAITED, 200)
    ours: list[float] = []
    theirs: list[float] = []
    ends: list[float] = []
    for _ in range(plan.rounds):
        with stand() as built:
            ours.append(await _submitted(built, number))
        with stand() as built:
            theirs.append(await asyncio.to_thread(_enqueued, built, number))
        with stand() as built:
            ends.append(await _awaited(built, awaited))
    result.add(f"submit_many of {number:,}", "handed in", ours, "a second")
    result.add(f"RQ's enqueue_many of {number:,}", "handed in", theirs, "a second")
    result.add(f"submit_many and results of {awaited:,}", "answered", ends, "a second")
    result.remarks.append(
        "Each call is one from a client process; nobody works meanwhile. The last row has one worker process, which "
        "begins when the batch is handed in. RQ's jobs have no sessions, no keys and no events."
    )


def _batch(number: int) -> list[Submission]:
    return [Submission(f"s{n}", "hi", agent=AGENT, params=ONE_CHUNK, key="1") for n in range(number)]


async def _submitted(built: Stand, number: int) -> float:
    async with AsyncClient(built.redis.url) as client:
        began = time.monotonic()
        told = await client.submit_many(_batch(number))
        took = time.monotonic() - began
    if not all(isinstance(one, AsyncTurn) for one in told):
        raise RuntimeError("turns of the batch were refused")
    return number / took


def _enqueued(built: Stand, number: int) -> float:
    with Redis.from_url(built.redis.url) as redis:
        queue = rq.Queue("bench", connection=redis)
        began = time.monotonic()
        jobs = queue.enqueue_many([rq.Queue.prepare_data(answer, (f"s{n}", TEXT)) for n in range(number)])
        took = time.monotonic() - began
    if len(jobs) != number:
        raise RuntimeError("jobs of the batch are missing")
    return number / took


async def _awaited(built: Stand, number: int) -> float:
    built.worker()
    async with AsyncClient(built.redis.url) as client:
        await warm_up(client, 50)
        began = time.monotonic()
        turns = await client.submit_many(_batch(number))
        texts = [outcome async for outcome in client.results(turns)]
        took = time.monotonic() - began
    if len({one.turn_id for one in texts}) != number:
        raise RuntimeError("turns of the batch were not answered")
    return number / took
