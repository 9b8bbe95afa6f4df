"""Limits of tenants and priorities, as callers set and meet them."""

import pytest
from redis.asyncio import Redis
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient, Client, Submission, TenantLimits
from antiphon.errors import LimitReached, TenantLimit, UsageError
from antiphon.input.request import AgentSpec

AGENT = AgentSpec(provider="scripted", model="any")


async def test_a_limit_is_set_read_and_taken_back(client):
    await client.set_tenant_limits(None, in_flight=10, waiting=100)
    await client.set_tenant_limits("acme", per_minute=7)
    assert await client.tenant_limits("acme") == TenantLimits(10, 100, 7)
    assert await client.tenant_limits("other") == TenantLimits(10, 100, None)
    await client.set_tenant_limits("acme", in_flight=2)
    assert await client.tenant_limits("acme") == TenantLimits(2, 100, None)
    await client.set_tenant_limits("acme")
    await client.set_tenant_limits(None)
    assert await client.tenant_limits("acme") == TenantLimits()


def test_threads_set_them_too(redis_url):
    with Client(redis_url) as client:
        client.set_tenant_limits("acme", in_flight=2)
        assert client.tenant_limits("acme") == TenantLimits(in_flight=2)
        client.set_tenant_limits("acme")


@pytest.mark.parametrize(
    "wrong",
    [
        {"in_flight": 0},
        {"waiting": -1},
        {"per_minute": 10_001},
        {"in_flight": "5"},
        {"waiting": True},
        {"user_turns": 1_001},
        {"user_per_minute": 0},
        {"user_in_flight": 1_001},
    ],
)
async def test_a_limit_is_a_number_that_can_be_kept(wrong, client):
    with pytest.raises(UsageError, match=r"^\w+= must be a number from 1 to"):
        await client.set_tenant_limits("acme", **wrong)


async def test_limits_hold_in_every_cell(redis_url):
    second = redis_url.removesuffix("/0") + "/1"
    async with AsyncClient([redis_url, second]) as client:
        await client.set_tenant_limits("acme", waiting=3)
        for url in (redis_url, second):
            async with Redis.from_url(url) as redis:
                assert await redis.hget("ant:limits", "waiting:acme") == b"3"
                await redis.flushdb()


async def test_a_refusal_says_which_limit_and_when_to_come_back(client, redis_url):
    async with Redis.from_url(redis_url) as redis:
        await client.set_tenant_limits("acme", per_minute=1)
        await client.submit("s1", "Hello", agent=AGENT, tenant="acme")
        with pytest.raises(TenantLimit, match=r"\(limit per_minute\)") as refused:
            await client.submit("s2", "Hello", agent=AGENT, tenant="acme")
        error = refused.value
        assert isinstance(error, LimitReached)
        assert (error.code, error.limit, error.retryable, error.session_id) == (
            "tenant_limit",
            "per_minute",
            True,
            "s2",
        )
        assert 55 < error.retry_after <= 60
        assert not await redis.exists("ant:session:s2")
        await redis.flushdb()


async def test_a_turn_beyond_the_limit_in_flight_waits_and_then_runs(client, redis_url):
    await client.set_tenant_limits("acme", in_flight=1)
    first = await client.submit("s1", "Hello", agent=AGENT, tenant="acme")
    second = await client.submit("s2", "Hello", agent=AGENT, tenant="acme")
    assert [await turn.status() for turn in (first, second)] == ["queued", "waiting"]
    assert (await second.info()).status == "waiting"
    async with running_worker(redis_url):
        assert (await second.result(10)).text


async def test_of_a_batch_each_turn_meets_the_limit_by_itself_and_keeps_its_priority(client, redis_url):
    async with Redis.from_url(redis_url) as redis:
        await client.set_tenant_limits("acme", in_flight=1, waiting=3)
        told = await client.submit_many(
            Submission(
                f"s{n}", "Hello", agent=AGENT, tenant="acme", priority=("low", "normal", "high")[n % 3]
            )
            for n in range(6)
        )
        refused = [one for one in told if isinstance(one, TenantLimit)]
        assert [isinstance(one, TenantLimit) for one in told] == [False] * 4 + [True] * 2
        assert {(one.limit, one.retry_after) for one in refused} == {("waiting", 1.0)}
        assert [one.session_id for one in refused] == ["s4", "s5"]
        line = [one.decode() for one in await redis.zrange("ant:line:antiphon:@acme", 0, -1)]
        assert line == [told[2].id, told[1].id, told[3].id], "high before normal before low"
        outcomes = [one async for one in client.results(refused)]
        assert outcomes == refused
        await redis.flushdb()


async def test_a_priority_is_an_option_of_every_turn(client, redis_url):
    async with Redis.from_url(redis_url) as redis:
        for number in range(3):
            await client.submit(f"n{number}", "Hello", agent=AGENT)
        high = await client.submit("s1", "Hello", agent=AGENT, priority="high")
        await client.submit_many([Submission("s2", "Hello", agent=AGENT, priority="low")])
        session = client.session("s3", agent=Agent(provider="scripted", model="any", name="parrot"))
        waits = await session.submit("Hello", priority="high")
        queue = await redis.lrange("rq:queue:antiphon", 0, -1)
        assert queue.index(high.id.encode()) == 1
        assert await redis.zrange("ant:line:antiphon:high", 0, -1) == [waits.id.encode()]
        with pytest.raises(UsageError, match="priority= must be 'high', 'normal' or 'low', not 'urgent'"):
            await client.submit("s1", "Hello", agent=AGENT, priority="urgent")  # type: ignore[arg-type]
        await redis.flushdb()


async def test_a_turn_in_this_process_takes_a_priority_and_has_no_queue_to_use_it_in():
    session = Agent(provider="scripted", model="any").session()
    assert (await session.run_async("Hello", priority="high")).text


async def test_each_user_of_a_tenant_has_limits(client, redis_url):
    await client.set_tenant_limits(None, user_turns=2)
    await client.set_tenant_limits("acme", user_per_minute=3)
    assert await client.tenant_limits("acme") == TenantLimits(user_turns=2, user_per_minute=3)

    async def submit(user, tenant="acme"):
        submit.count += 1
        return await client.submit(f"s{submit.count}", "Hello", agent=AGENT, tenant=tenant, user=user)

    submit.count = 0
    turns = [await submit("ann") for _ in range(2)]
    with pytest.raises(TenantLimit, match=r"The user has 2 turns that have not ended") as refused:
        await submit("ann")
    assert (refused.value.limit, refused.value.retry_after) == ("user_turns", 1)
    await submit("bob")
    await submit("ann", "other")
    await submit(None)
    await turns[0].cancel()
    await submit("ann")
    await turns[1].cancel()
    with pytest.raises(TenantLimit, match="in a minute") as refused:
        await submit("ann")
    assert refused.value.limit == "user_per_minute"
    async with Redis.from_url(redis_url) as redis:
        for kind in ("user_turns", "user_pace"):
            keys = await redis.keys(f"ant:{kind}:*")
            assert keys
            for key in keys:
                assert b"acme" not in key
                assert await redis.pttl(key) > 0
        await redis.flushdb()
