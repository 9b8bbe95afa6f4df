"""Many subscribers: 1 to 1,000 of one session, and 10,000 sessions over the one connection of a client."""

import asyncio

from support.processes import Process

from antiphon.client import AsyncClient
from bench.following import Report, begin, follow, report
from bench.gauges import cpu_seconds
from bench.load import AGENT
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "subscribers of one session, and sessions followed over one connection"
PACE = 50


async def measure(plan: Plan, result: Result) -> None:
    seconds = plan.pick(3.0, 1.0)
    for number in plan.pick((1, 10, 100, 1_000), (50,)):
        with stand() as built:
            seen, redis_cpu = await _speak(built, follow(built, *["live-0"] * number), 1, seconds)
        _add(result, f"{number:,} subscribers of one session", seen, redis_cpu)
    number, live = plan.pick(10_000, 1_000), 100
    with stand() as built:
        seen, redis_cpu = await _speak(built, follow(built, f"live-:{number}"), live, seconds)
    _add(result, f"{number:,} sessions over one connection, {live} of them speak", seen, redis_cpu)
    result.remarks.append(
        f"Each speaks at {PACE}/s. All subscribers are in one process, whose client has one connection for all."
    )


def _add(result: Result, name: str, seen: Report, redis_cpu: float) -> None:
    result.add(name, "delivered", seen.events / seen.seconds, "events/s")
    result.add(name, "lag p50", seen.lag_p50_ms, "ms")
    result.add(name, "lag p99", seen.lag_p99_ms, "ms")
    result.add(name, "CPU of their process, an event", seen.cpu_seconds / max(seen.events, 1) * 1e6, "µs")
    result.add(name, "CPU of Redis", redis_cpu / seen.seconds * 100, "% of a core")


async def _speak(built: Stand, listener: Process, live: int, seconds: float) -> tuple[Report, float]:
    """Return what the listener saw, and the CPU time of Redis during that."""
    length = int(PACE * (seconds + 6))
    model = built.new_model("--stamp", "--pace", str(PACE), "--length", str(length))
    built.worker(concurrency=200, model=model)
    async with AsyncClient(built.redis.url) as client:
        await (await client.submit("first", "hi length:4 pace:1000", agent=AGENT)).result(60)
        for index in range(live):
            await client.submit(f"live-{index}", "hi", agent=AGENT)
        await asyncio.sleep(1)
        before = cpu_seconds(built.redis.pid)
        begin(listener)
        await asyncio.sleep(seconds)
        redis_cpu = cpu_seconds(built.redis.pid) - before
    return report(listener), redis_cpu
