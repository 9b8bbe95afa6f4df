"""Memory of turns in flight and of idle sessions, in the worker and in Redis."""

import asyncio
import time
from collections.abc import Sequence

from redis import Redis

from antiphon.client import AsyncClient
from bench.gauges import pss_bytes, redis_counters, rss_bytes
from bench.load import AGENT, all_ended, all_run, submit_turns, warm_up
from bench.results import Plan, Result
from bench.sessions import clone_session
from bench.stand import Stand, stand

TITLE = "memory of turns in flight and of idle sessions"
FLYING = "a turn in flight"
IDLE = "an idle session with one turn of 40 tokens"
ABSENT = ("aiohttp", "opentelemetry")
"""Packages not in ``antiphon[worker]``. If they are installed, the OpenAI SDK and redis-py import them."""
SETTLE_SECONDS = 2.0
SAID = "a delta that it has said"
PACE = 50
TEXT = "hi pace:2 length:200"


async def measure(plan: Plan, result: Result) -> None:
    for name, absent in (("", ()), (f", without {' and '.join(ABSENT)}", ABSENT)):
        with stand() as built:
            await _started(result, built, f"a worker process after a few turns{name}", absent)
    with stand() as built:
        await _in_flight(result, built, plan.pick(800, 200))
    with stand() as built:
        await _saying(result, built, plan.pick(100, 20), plan.pick(4.0, 1.0))
    with stand() as built:
        await _idle(result, built, plan.pick(20_000, 2_000))


async def _started(result: Result, built: Stand, name: str, absent: Sequence[str]) -> None:
    (pid,) = built.worker(without=absent).workers()
    async with AsyncClient(built.redis.url) as client:
        await warm_up(client, 50)
    result.add(name, "resident", rss_bytes(pid) / 2**20, "MiB")
    result.add(name, "its part of shared memory, and its own", pss_bytes(pid) / 2**20, "MiB")


async def _in_flight(result: Result, built: Stand, number: int) -> None:
    worker = built.worker(concurrency=1000)
    (pid,) = worker.workers()
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url) as redis:
            await warm_up(client, 50)
            before, stored = rss_bytes(pid), redis_counters(redis).memory_bytes
            await submit_turns(client, number, "flying-", TEXT, {})
            await all_run([built.redis.url], number)
            await asyncio.sleep(SETTLE_SECONDS)
            result.add(FLYING, "in the worker", (rss_bytes(pid) - before) / number / 1024, "KiB")
            memory = redis_counters(redis).memory_bytes - stored
            result.add(FLYING, "in Redis", memory / number / 1024, "KiB")


async def _saying(result: Result, built: Stand, number: int, seconds: float) -> None:
    """Measure what each delta adds while its turn runs: the text in the worker, the log in Redis."""
    worker = built.worker()
    (pid,) = worker.workers()
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url) as redis:
            await warm_up(client, 50)
            await submit_turns(client, number, "saying-", f"hi pace:{PACE} length:10000", {})
            await all_run([built.redis.url], number)
            await asyncio.sleep(SETTLE_SECONDS)
            seen: list[tuple[float, int, int]] = []
            for _ in range(2):
                seen.append((time.monotonic(), rss_bytes(pid), redis_counters(redis).memory_bytes))
                await asyncio.sleep(seconds)
    (began, worker_then, redis_then), (ended, worker_now, redis_now) = seen
    deltas = number * PACE * (ended - began)
    result.add(SAID, "in the worker", (worker_now - worker_then) / deltas, "B")
    result.add(SAID, "in Redis", (redis_now - redis_then) / deltas, "B")


async def _idle(result: Result, built: Stand, number: int) -> None:
    worker = built.worker()
    (pid,) = worker.workers()
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url) as redis:
            await warm_up(client, 50)
            turn = await client.submit("idle-session", "hi length:40", agent=AGENT)
            await all_ended([turn])
            before, stored = rss_bytes(pid), redis_counters(redis).memory_bytes
            clone_session(redis, "idle-session", turn.id, number, "idle-")
            memory = redis_counters(redis).memory_bytes - stored
            await asyncio.sleep(SETTLE_SECONDS)
            result.add(IDLE, "in the worker", (rss_bytes(pid) - before) / number / 1024, "KiB")
            result.add(IDLE, "in Redis", memory / number / 1024, "KiB")
