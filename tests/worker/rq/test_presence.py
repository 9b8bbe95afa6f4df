"""What RQ's tools show of a worker is current, however seldom it would be written anyway."""

from redis.asyncio import Redis
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.input.request import AgentSpec
from antiphon_worker.rq import presence

AGENT = AgentSpec(provider="scripted", model="any")


async def test_counts_and_state_are_shown_when_they_change(redis_url, monkeypatch):
    monkeypatch.setattr(presence, "HEARTBEAT_SECONDS", 3600.0)
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.01)
    async with (
        running_worker(redis_url) as worker,
        AsyncClient(redis_url) as client,
        Redis.from_url(redis_url) as redis,
    ):

        async def shown(*values):
            names = ("state", "successful_job_count", "failed_job_count")
            return await redis.hmget(f"rq:worker:{worker.name}", *names) == [str(v).encode() for v in values]

        await wait_until_async(lambda: shown("idle", 0, 0), description="it is there")
        await (await client.submit("s", "hello", agent=AGENT)).result(60)
        await wait_until_async(lambda: shown("idle", 1, 0), description="the turn is counted")
        try:
            await (await client.submit("s", "hello", agent="nobody")).result(60)
        except AgentError:
            await wait_until_async(lambda: shown("idle", 1, 1), description="the failed turn is counted")
        pause = {"script": ["one two three"], "pause": 60}
        slow = await client.submit("slow", "hello", agent=AGENT, params=pause)
        await wait_until_async(lambda: shown("busy", 1, 1), description="it is busy")
        await slow.cancel()
        await wait_until_async(lambda: shown("idle", 1, 1), description="it is idle again")
