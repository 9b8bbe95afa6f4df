"""A rate limit that one worker meets slows all workers that share provider, model and key."""

import asyncio

import pytest
from support.cells import open_cell
from support.eventually import wait_until_async
from support.here import running_worker
from support.models import ModelProcess

from antiphon import Agent, Message
from antiphon.client import AsyncClient
from antiphon.errors import ProviderRateLimited
from antiphon.input.request import AgentSpec
from antiphon.model import FallbackModel, Retry
from antiphon.window import Summary
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.rate_limits import limit
from antiphon_demo.modelserver.directives import Behaviour
from antiphon_demo.modelserver.server import ModelServer
from antiphon_worker.app import App
from antiphon_worker.process.isolated_turn import run_one_turn
from antiphon_worker.providers.http.limits import HeldBack, Pressure
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.resilience import AskedLimits, RateLimits
from antiphon_worker.settings import Settings


async def scripts_of(cell):
    return (await cell.redis.info("commandstats")).get("cmdstat_evalsha", {}).get("calls", 0)


async def test_a_call_that_was_never_limited_asks_nobody(cell):
    gate = RateLimits(cell)
    before = await scripts_of(cell)
    await gate.enter("p/m/1")
    assert await scripts_of(cell) == before


async def test_a_short_wait_is_waited_and_a_long_one_is_told(cell):
    gate = RateLimits(cell)
    await gate.heard("p/m/1", Pressure(30.0, 0.1))
    with pytest.raises(HeldBack, match=r"limits the rate of calls of p/m; .* wait 30\.0 s") as caught:
        await gate.enter("p/m/1")
    assert caught.value.retry_after == 30.0
    await gate.enter("p/m/2")
    await cell.wait(29_900)
    entering = asyncio.create_task(gate.enter("p/m/1"))
    await wait_until_async(
        lambda: cell.redis.hget(cell.keys.bucket("p/m/1"), "promised"), description="it is told to wait"
    )
    await cell.wait(10_000)
    await entering


async def test_a_bucket_that_is_gone_is_asked_once(cell):
    gate = RateLimits(cell)
    await gate.heard("p/m/1", Pressure(30.0))
    await cell.redis.delete(cell.keys.bucket("p/m/1"))
    await gate.enter("p/m/1")
    before = await scripts_of(cell)
    await gate.enter("p/m/1")
    assert await scripts_of(cell) == before


async def test_what_others_meet_is_heard_and_nonsense_is_not(cell):
    feed = LiveFeed(cell.redis)
    gate = RateLimits(cell)
    listening = asyncio.create_task(gate.run(feed))
    channel = cell.keys.buckets(cell.database)
    await wait_until_async(lambda: _listens(cell, channel), description="it listens")
    for nonsense in (b"", b"x", b"x p/m/1", b"\xff \xff", b"nan"):
        await cell.redis.publish(channel, nonsense)
    await limit(cell, "p/m/1", 30_000, 0)

    async def held():
        try:
            await gate.enter("p/m/1")
        except HeldBack:
            return True
        return False

    await wait_until_async(held, description="the limit is known here")
    listening.cancel()
    await feed.aclose()


async def _listens(cell, channel):
    return dict(await cell.redis.pubsub_numsub(channel)).get(channel.encode())


async def test_without_redis_a_call_is_not_held_up(cell):
    gate = RateLimits(cell)
    await gate.heard("p/m/1", Pressure(30.0))
    gate._cell = Cell(open_redis("redis://127.0.0.1:1"))
    await gate.enter("p/m/1")
    await gate.heard("p/m/1", Pressure(30.0))
    await gate._cell.redis.aclose()


async def test_a_process_that_runs_one_turn_asks_the_bucket_of_the_others(cell):
    gate = AskedLimits(cell)
    await gate.enter("p/m/1")
    await RateLimits(cell).heard("p/m/1", Pressure(30.0))
    assert "p/m/1" in gate.known
    with pytest.raises(HeldBack):
        await gate.enter("p/m/1")
    await gate.heard("p/m/2", Pressure(30.0))
    with pytest.raises(HeldBack):
        await AskedLimits(cell).enter("p/m/2")


async def test_an_isolated_turn_waits_for_a_limit_that_a_worker_has_met(redis_url, limited):
    async with ModelServer(Behaviour(length=2, limit=1, limit_seconds=30.0)) as server:
        app = limited(server)
        async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
            async with running_worker(redis_url, app):
                await (await client.submit("a", "Hello", agent="a")).result(20)
            turn = await client.submit("b", "Hello", agent="a")
            settings = Settings(redis_url=redis_url)
            await run_one_turn(turn.id, settings, app, lambda: Cell(open_redis(redis_url)), "alone")
            assert (await turn.info()).code == "provider_rate_limited"
            assert server.statistics.requests == 1, "the service was not asked"
            await turn.cancel()
            await cell.redis.flushdb()
        await app.aclose()


async def test_a_summary_waits_for_a_limit_too_and_the_turn_keeps_its_older_messages(redis_url, limited):
    async with ModelServer(Behaviour(length=2, limit=1, limit_seconds=30.0)) as server:
        app = limited(server, window=Summary(turns=2))
        async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
            await (await client.submit("a", "Hello", agent="a")).result(20)
            session = client.session("s")
            for number in range(4):
                await session.add_message(Message.user(f"Q{number}"), Message.assistant(f"A{number}"))
            turn = await client.submit("s", "Hello", agent="a")
            await wait_until_async(lambda: _is(turn, "retrying"), description="the turn waits")
            assert (await turn.info()).code == "provider_rate_limited"
            assert server.statistics.requests == 1, "the service was not asked for the summary"
            await turn.cancel()
        await app.aclose()


@pytest.fixture
def limited(redis_url):
    """An App whose model answers one call in half a minute."""

    def make(server, **agent):
        provider = OpenAIChat(base_url=server.openai_url, api_key="any")
        others = {"models": provider, "other": ScriptedProvider()}
        return App([Agent("models", "m", name="a", **agent)], providers=others)

    return make


async def test_a_turn_that_must_wait_is_given_back_and_counts_no_attempt(redis_url, limited):
    async with ModelServer(Behaviour(length=2, limit=1, limit_seconds=30.0)) as server:
        app = limited(server)
        async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
            await (await client.submit("a", "Hello", agent="a")).result(20)
            turn = await client.submit("b", "Hello", agent="a")
            await wait_until_async(lambda: _is(turn, "retrying"), description="the turn waits")
            info, record = await turn.info(), await turn._record()
            assert (info.code, info.attempt) == ("provider_rate_limited", 0)
            assert "limits the rate of calls of models/m" in info.error
            assert 15 < info.service.retry_after <= 30
            assert (record.fields["errors"], server.statistics.requests) == (b"0", 1), (
                "the service was not asked"
            )
            assert await turn.cancel() == "cancelled"
        await app.aclose()


async def test_a_fallback_answers_while_a_model_is_limited(redis_url, limited):
    async with ModelServer(Behaviour(length=2, limit=1, limit_seconds=30.0)) as server:
        app = limited(server, fallback=[FallbackModel("other", "m2")])
        async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
            await (await client.submit("a", "Hello", agent="a")).result(20)
            turn = await client.submit("b", "Hello", agent="a")
            assert (await turn.result(20)).model == "m2"
            assert server.statistics.requests == 1
        await app.aclose()


async def test_an_agent_that_does_not_wait_is_told_so(redis_url, limited):
    async with ModelServer(Behaviour(length=2, limit=1, limit_seconds=30.0)) as server:
        app = limited(server, retry=Retry(seconds=1))
        async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
            await (await client.submit("a", "Hello", agent="a")).result(20)
            with pytest.raises(ProviderRateLimited) as caught:
                await (await client.submit("b", "Hello", agent="a")).result(20)
            assert caught.value.retry_after > 15
        await app.aclose()


async def _is(turn, status):
    return await turn.status() == status


@pytest.mark.one_server
async def test_several_workers_keep_to_one_limit(redis_url, processes):
    """Each turn is answered, and the service refuses a part of what it would refuse workers that know nothing."""
    models = ModelProcess(processes, "--length", "2", "--limit", "15")
    workers = [
        processes.worker(redis_url, "--retry-delay", "200ms", env=models.environment) for _ in range(2)
    ]
    for worker in workers:
        worker.wait_for_output("takes turns", 90)
    async with AsyncClient(redis_url) as client:
        agent = AgentSpec("openai-chat", "m")
        turns = [await client.submit(f"s{n}", "Hello", agent=agent) for n in range(90)]
        for turn in turns:
            await turn.result(90)
    answered = models.statistics()
    assert answered["streams"] == 90
    assert answered["limited"] < 90, "workers that know nothing are refused one and a half times a turn"
