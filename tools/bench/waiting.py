"""Turns that wait for a decision or sleep: their memory in Redis and in a worker, and how late sleepers wake up."""

import asyncio

from redis import Redis
from support.eventually import wait_until_async

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.input.request import WAITS, AgentSpec
from antiphon.model import CallerTool
from antiphon.redis.turn import AsyncTurn
from antiphon.testing import script, tool_call
from antiphon.wire.keys import Keys
from antiphon_worker.app import App
from bench.asleep import measure_sleepers
from bench.gauges import redis_counters, rss_bytes
from bench.load import all_ended
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "turns that wait or sleep"
FIRST = 100
SETTLE_SECONDS = 2.0
SUSPENDED = Keys().suspended
ASKS = AgentSpec(
    provider="scripted", model="bench", caller_tools=[CallerTool("ask")], version=WAITS,
    params={
        "script": [
            [{"type": "tool_call", "call_id": "call_1", "name": "ask", "arguments": {"amount": 30}}], "Paid.",
        ]
    },
)  # fmt: skip
"""An agent with a client-side tool: each turn waits for the result of one call."""
APP = App(
    agents=[
        Agent(
            script(tool_call("ask", amount=30), repeat=True), "bench", name="asks", caller_tools=ASKS.caller_tools
        )
    ]
)  # fmt: skip
"""An App with the same agent, so that turns only name it."""


async def measure(plan: Plan, result: Result) -> None:
    with stand() as built:
        await _waiting(result, built, plan.pick(1_000, 200))
    with stand() as built:
        await _naming(result, built, plan.pick(1_000, 200))
    with stand() as built:
        await measure_sleepers(result, built, plan.pick(100_000, 1_000), plan.pick(1_000, 50))


async def _waiting(result: Result, built: Stand, number: int) -> None:
    """Have all of them wait at once in one Redis. Then each gets its result, and finishes."""
    (pid,) = built.worker().workers()
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url) as redis:
            await _suspended(client, redis, "first-", FIRST)  # what a worker keeps after its first turns
            before, stored = rss_bytes(pid), redis_counters(redis).memory_bytes
            turns = await _suspended(client, redis, "waiting-", number)
            await asyncio.sleep(SETTLE_SECONDS)
            each = f"each of {number:,} turns that wait"
            result.add(each, "in the worker", max(rss_bytes(pid) - before, 0) / number / 1024, "KiB")
            memory = redis_counters(redis).memory_bytes - stored
            result.add(each, "in Redis", memory / number / 1024, "KiB")
            for turn in turns:
                await turn.tool_result("call_1", "30")
            await all_ended(turns)


async def _naming(result: Result, built: Stand, number: int) -> None:
    """Measure the same with an agent of the workers, so that turns contain only its name."""
    built.worker(app="bench.waiting:APP")
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url) as redis:
            await _suspended(client, redis, "first-", FIRST, "asks")
            stored = redis_counters(redis).memory_bytes
            turns = await _suspended(client, redis, "waiting-", number, "asks")
            memory = redis_counters(redis).memory_bytes - stored
            result.add(
                f"each of {number:,} turns that wait, of an agent of the workers",
                "in Redis",
                memory / number / 1024,
                "KiB",
            )
            for turn in turns:
                await turn.cancel()


async def _suspended(
    client: AsyncClient, redis: Redis, prefix: str, number: int, agent: str | AgentSpec = ASKS
) -> list[AsyncTurn]:
    """Submit ``number`` turns, and return them when all of them wait."""
    wanted = redis.zcard(SUSPENDED) + number
    turns = [await client.submit(f"{prefix}{index}", "Pay 30.", agent=agent) for index in range(number)]
    await wait_until_async(
        lambda: redis.zcard(SUSPENDED) >= wanted, 120, f"{number} turns wait", interval=0.05
    )
    return turns
