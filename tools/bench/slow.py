"""A subscriber that stops reading: its effect on other subscribers, the worker and Redis, and how it catches up."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from bench.following import begin, follow, report
from bench.gauges import redis_counters, rss_bytes
from bench.live import LiveStreams, live_streams
from bench.results import Plan, Result

TITLE = "a subscriber that stops reading while others go on"
PACE = 50
BUFFER = "4mb"
"""Redis's limit for one subscriber's backlog in this measurement; the default is 32mb."""
LOOK_SECONDS = 0.25
BACK_MS = 250.0
BACK_SECONDS = 30.0


@dataclass(slots=True)
class Seen:
    """The largest values seen during a phase, in bytes."""

    backlog: int = 0
    worker: int = 0
    redis: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)


async def measure(plan: Plan, result: Result) -> None:
    streams, seconds = plan.pick(200, 50), plan.pick(10.0, 2.0)
    async with live_streams(PACE, 3 * seconds + 40, plan.pick(200, 50)) as live:
        await live.grow(streams)
        with Redis.from_url(live.built.redis.url) as redis:
            redis.config_set("client-output-buffer-limit", f"pubsub {BUFFER} 0 0")
            slow = follow(live.built, f"live-:{streams}")
            begin(slow)
            await _phase(result, live, redis, "all read", seconds / 2)
            slow.freeze()
            await _phase(result, live, redis, "one has stopped reading", seconds)
            slow.thaw()
            back = await _back(slow)
            await _phase(result, live, redis, "it reads again", seconds / 2)
        missed = report(slow).missed
    result.add("the slow one", "has caught up after", back, "s")
    result.add("the slow one", "events missed", missed, "")
    result.remarks.append(
        f"{streams} streams at {PACE}/s, all followed by two processes. Redis cuts off a subscriber with more than "
        f"{BUFFER} unread; it connects again and reads the log from its cursor."
    )


async def _phase(result: Result, live: LiveStreams, redis: Redis, name: str, seconds: float) -> None:
    """Measure the lag of the reading subscriber, and the peak memory."""
    seen = Seen()
    watching = asyncio.create_task(_watch(seen, live, redis))
    stage = await live.stage(seconds)
    seen.over.set()
    await watching
    result.add(name, "lag of the others p50", stage.lag_p50, "ms")
    result.add(name, "p99", stage.lag_p99, "ms")
    result.add(name, "the largest backlog in Redis", seen.backlog / 2**20, "MiB")
    result.add(name, "memory of Redis", seen.redis / 2**20, "MiB")
    result.add(name, "of the worker", seen.worker / 2**20, "MiB")


async def _watch(seen: Seen, live: LiveStreams, redis: Redis) -> None:
    while not seen.over.is_set():
        clients: list[dict[str, Any]] = redis.client_list()
        seen.backlog = max(seen.backlog, *[int(one["omem"]) for one in clients])
        seen.redis = max(seen.redis, redis_counters(redis).memory_bytes)
        seen.worker = max(seen.worker, rss_bytes(live.worker_pid))
        await asyncio.sleep(LOOK_SECONDS)


async def _back(slow: Any) -> float:
    """Return the seconds until the newest event it has seen is recent."""
    began = time.monotonic()
    while report(slow).newest_ms > BACK_MS:
        if time.monotonic() - began > BACK_SECONDS:
            raise RuntimeError(f"the slow subscriber did not catch up within {BACK_SECONDS:g} s")
        await asyncio.sleep(0.05)
    return time.monotonic() - began
