"""What Redis counts: turns of a tenant that have not ended, and sessions."""

from dataclasses import replace

import pytest
from redis.asyncio import Redis
from support.here import running_worker

from antiphon.client import AsyncClient
from antiphon.errors import AgentError, LimitReached
from antiphon.input.limits import LIMITS
from antiphon.input.request import AgentSpec

AGENT = AgentSpec(provider="scripted", model="any")


@pytest.fixture
def small_limits(monkeypatch):
    small = replace(LIMITS, tenant_turns=2, sessions=3, delayed_turns=1)
    for module in ("wire.cell", "wire.editing", "wire.errors"):
        monkeypatch.setattr(f"antiphon.{module}.LIMITS", small)


async def test_a_tenant_has_so_many_turns_that_have_not_ended(redis_url, small_limits):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        first = await client.submit("s1", "Hello", agent=AGENT, tenant="acme")
        await client.submit("s1", "whose session it is, is known", agent=AGENT)
        for options in ({"tenant": "acme"}, {"tenant": "acme", "delay": 60}):
            with pytest.raises(LimitReached, match="has 2 turns that have not ended") as refused:
                await client.submit("s2", "one too many", agent=AGENT, **options)
            assert refused.value.limit == "tenant_turns"
        with pytest.raises(LimitReached):
            await client.submit("s1", "one too many", agent=AGENT)
        await client.submit("s3", "of another", agent=AGENT, tenant="other")
        await client.submit("s4", "of nobody", agent=AGENT)
        await first.cancel()
        await client.submit("s1", "in its place", agent=AGENT)
        await redis.flushdb()


async def test_what_a_tenant_has_is_counted_until_it_ends(redis_url, small_limits):
    failing = AgentSpec(provider="scripted", model="m", params={"script": 1})
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        async with running_worker(redis_url):
            for _ in range(3):
                await (await client.submit("s1", "Hello", agent=AGENT, tenant="acme")).result(60)
            with pytest.raises(AgentError):
                await (await client.submit("s1", "fails", agent=failing, key="again")).result(60)
        assert not await redis.exists("ant:tenant:acme")
        delayed = await client.submit("s1", "later", agent=AGENT, delay=60)
        assert await redis.zrange("ant:tenant:acme", 0, -1) == [delayed.id.encode()]
        await redis.flushdb()


async def test_what_has_gone_without_an_end_counts_for_a_tenant_no_longer(redis_url, small_limits):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        turns = [await client.submit("s1", "Hello", agent=AGENT, tenant="acme") for _ in range(2)]
        await redis.delete(f"ant:turn:{turns[0].id}")
        await client.submit("s1", "in its place", agent=AGENT)
        assert await redis.zcard("ant:tenant:acme") == 2
        await redis.flushdb()


async def test_a_failed_turn_that_runs_again_counts_again(redis_url):
    failing = AgentSpec(provider="scripted", model="m", params={"script": 1})
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        async with running_worker(redis_url):
            turn = await client.submit("s1", "fails", agent=failing, tenant="acme")
            with pytest.raises(AgentError):
                await turn.result(60)
        await turn.requeue()
        assert await redis.zrange("ant:tenant:acme", 0, -1) == [turn.id.encode()]
        await redis.flushdb()


async def test_so_many_turns_may_be_delayed(redis_url, small_limits):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        await client.submit("s1", "later", agent=AGENT, delay=60)
        with pytest.raises(LimitReached, match="has 1 delayed") as refused:
            await client.submit("s2", "one too many", agent=AGENT, delay=60)
        assert refused.value.limit == "delayed_turns"
        assert not await redis.exists("ant:session:s2")
        await client.submit("s2", "now", agent=AGENT)
        await redis.flushdb()


async def test_one_redis_holds_so_many_sessions(redis_url, small_limits):
    hi = {"role": "user", "content": "Hi"}
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        await client.submit("s1", "Hello", agent=AGENT)
        second = client.session("s2", agent="any")
        await second.add_message(hi)
        await second.fork("s3")
        for one_too_many in (
            client.submit("s4", "Hello", agent=AGENT),
            client.session("s4", agent="any").add_message(hi),
            second.fork("s4"),
        ):
            with pytest.raises(LimitReached, match="has 3 sessions") as refused:
                await one_too_many
            assert refused.value.limit == "sessions"
        await client.submit("s1", "of one that is there", agent=AGENT)
        await second.add_message(hi)
        await redis.flushdb()


async def test_a_damaged_count_of_a_tenant_keeps_no_turn_from_its_end(redis_url):
    async with Redis.from_url(redis_url) as redis, AsyncClient(redis_url) as client:
        turn = await client.submit("s1", "Hello", agent=AGENT, tenant="acme")
        await redis.set("ant:tenant:acme", "no set")
        async with running_worker(redis_url):
            assert (await turn.result(60)).text
        await redis.delete("ant:tenant:acme")
