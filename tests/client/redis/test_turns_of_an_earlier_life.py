"""A turn is kept longer than its session. A later one of its name, perhaps another tenant's, is not its session."""

import pytest
from redis.asyncio import Redis
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent
from antiphon.testing import script
from antiphon_worker import Allow, App

pytestmark = pytest.mark.one_server
SUPPORT = Agent(script("Hello.", repeat=True), "any", name="support")


async def expire(redis, session):
    await redis.delete(*[key async for key in redis.scan_iter(f"ant:*:{session}")])
    await redis.zrem("ant:sessions", session)


@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_neither_recordings_nor_feedback_show_a_later_session_of_the_name(redis_url, tenant):
    async with (
        client_of(redis_url) as client,
        running_worker(redis_url, App([SUPPORT], travelling=Allow(system=True))),
    ):
        old = client.session("old", tenant=tenant, agent="support", system="A secret", variables={"x": 1})
        await old.run("The secret of the later one")
        turn = await client.submit("s", "Hello", agent="support", tenant="a")
        await turn.result(30)
        await turn.feedback(1)
        async with Redis.from_url(redis_url) as redis:
            await expire(redis, "s")
        await old.fork("s")
        recording = await turn.recording()
        assert (recording.history, recording.system, recording.variables) == ([], None, {})
        (rated,) = [one async for one in client.agents().feedback(tenant="a", conversation=True)]
        assert rated.conversation == []


@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_a_turn_without_an_agent_is_not_of_that_of_a_later_session(redis_url, tenant):
    async with client_of(redis_url) as client:
        async with running_worker(redis_url, App([SUPPORT])):
            turn = await client.submit("s", "Hello", tenant="a")
            await turn.result(30)
            assert (await turn.recording()).agent == "support"
        async with Redis.from_url(redis_url) as redis:
            await expire(redis, "s")
        later = await client.session("s", tenant=tenant, agent="another").submit("Hello")
        assert (await turn.recording()).agent == "support"
        await later.cancel()
