"""The cost of a turn in a session of 10 to 10,000 messages, when the model is sent the last 20."""

import time

import msgspec
from redis import Redis

from antiphon.client import AsyncClient
from antiphon.model import Message
from bench.gauges import cpu_seconds, percentile, redis_counters
from bench.load import AGENT, ONE_CHUNK, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "a turn against the length of its session, the model is sent the last 20 messages"
LENGTHS = (10, 100, 1_000, 10_000)
WINDOWED = msgspec.structs.replace(AGENT, window=20)


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(200, 20)
    with stand() as built:
        worker = built.worker()
        (pid,) = worker.workers()
        async with AsyncClient(built.redis.url) as client:
            await warm_up(client, 50)
            for length in plan.pick(LENGTHS, (10, 1_000)):
                await _turns(result, built, client, pid, length, number)


async def _turns(
    result: Result, built: Stand, client: AsyncClient, pid: int, length: int, number: int
) -> None:
    session = f"long-{length}"
    with Redis.from_url(built.redis.url) as redis:
        turn = await client.submit(session, "hi", agent=WINDOWED, params=ONE_CHUNK)
        await turn.result(30)
        _fill(redis, session, length)
        before = redis_counters(redis), cpu_seconds(pid)
        times = [await _turn(client, session) for _ in range(number)]
        counted, cpu = redis_counters(redis).since(before[0]), cpu_seconds(pid) - before[1]
    name = f"{length:,} messages"
    figures = {
        "a turn, p50": percentile(times, 0.5),
        "CPU of the worker": cpu / number * 1e3,
        "CPU of Redis": counted.cpu_seconds / number * 1e3,
    }
    for what, value in figures.items():
        result.point(what, length, result.add(name, what, value, "ms"))


async def _turn(client: AsyncClient, session: str) -> float:
    began = time.perf_counter()
    turn = await client.submit(session, "hi", agent=WINDOWED, params=ONE_CHUNK)
    await turn.result(30)
    return (time.perf_counter() - began) * 1000


def _fill(redis: Redis, session: str, length: int) -> None:
    """Prepend messages to a history, up to this length."""
    pair = [Message.assistant("Said. " * 20).to_json(), Message.user("Asked. " * 20).to_json()]
    for start in range(0, length, 1000):
        redis.lpush(f"ant:history:{session}", *(pair * (min(1000, length - start) // 2)))
