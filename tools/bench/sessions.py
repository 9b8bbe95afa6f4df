"""What a turn costs beside 10 to 100,000 idle sessions."""

from __future__ import annotations

from redis import Redis

from antiphon.client import AsyncClient
from bench.clone import clone_session
from bench.gauges import redis_counters
from bench.load import AGENT, all_ended, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import stand

TITLE = "turns beside idle sessions"
NUMBERS = (10, 1_000, 100_000)


async def measure(plan: Plan) -> Result:
    result = Result("sessions", TITLE)
    turns_each = plan.pick(1000, 200)
    with stand() as built:
        worker = built.worker()
        async with AsyncClient(built.redis.url) as client:
            with Redis.from_url(built.redis.url) as redis:
                await warm_up(client, 100)
                turn = await client.submit("idle-session", "hi length:40", agent=AGENT)
                await all_ended([turn])
                for number in plan.pick(NUMBERS, (10, 2_000)):
                    clone_session(redis, "idle-session", turn.id, number, "idle-")
                    before = redis_counters(redis)
                    with frozen(worker):
                        turns = await submit_turns(client, turns_each, f"beside-{number}-")
                    await all_ended(turns)
                    counted = redis_counters(redis).since(before)
                    name = f"beside {number:,} idle sessions"
                    result.add(name, "turns", rate(built.redis.url, turns), "a second")
                    result.add(name, "CPU of Redis, a turn", counted.cpu_seconds / turns_each * 1e6, "µs")
    return result
