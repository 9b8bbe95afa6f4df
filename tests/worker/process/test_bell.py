"""An idle worker's claim stands behind its bell: a turn is taken in the moment in which it is submitted."""

import pytest
from support.eventually import wait_until_async
from support.here import running_worker
from support.proxy import Proxy

from antiphon.client import AsyncClient
from antiphon.errors import StoreUnavailable
from antiphon.input.request import AgentSpec
from antiphon.wire.cell import Cell
from antiphon_worker.process import consumer
from antiphon_worker.process.turn import TurnRunner

AGENT = AgentSpec(provider="scripted", model="says it back")


@pytest.fixture
def way(redis_server):
    with Proxy(redis_server.port) as proxy:
        yield proxy


def claims_behind_bells(redis):
    """Connections that wait for a bell and have sent something behind it that the server has not parsed.

    Valkey 9 parses a claim that arrives together with the wait, and shows nothing of it.
    """
    return sum("b" in one["flags"] and int(one["qbuf"]) > 0 for one in redis.client_list())


def is_waiting(redis):
    return any("b" in one["flags"] for one in redis.client_list())


async def test_an_idle_worker_has_a_turn_before_it_hears_of_it(client, redis, way):
    async with running_worker(way.url):
        await (await client.submit("s", "one", agent=AGENT)).result(60)
        await wait_until_async(lambda: claims_behind_bells(redis) == 1, 5, "a claim stands behind a bell")
        way.blackhole()
        turn = await client.submit("s", "two", agent=AGENT)
        assert await turn.status() == "running"
        way.heal()
        assert (await turn.result(60)).text == "You said: two"


async def test_a_worker_with_turns_under_way_claims_when_it_comes_to_it(client, redis, way):
    async with running_worker(way.url):
        await (await client.submit("s", "one", agent=AGENT)).result(60)
        long = await client.submit("long", "two", agent=AGENT, params={"delay": 30})
        await wait_until_async(lambda: redis.hget(f"ant:turn:{long.id}", "status") == b"running")
        await wait_until_async(lambda: is_waiting(redis), 5, "it waits for a bell")
        assert claims_behind_bells(redis) == 0
        await long.cancel()
        await wait_until_async(lambda: claims_behind_bells(redis) == 1, 5, "a claim stands behind the bell")


@pytest.fixture
def asking(monkeypatch):
    """The names of workers whose claims have no answer yet. A claim waits longer than these tests wait for anything."""
    monkeypatch.setattr(consumer, "BELL_SECONDS", 100)
    claim, found = Cell.claim, []

    async def asked(cell, name, *args, **options):
        found.append(name)
        try:
            return await claim(cell, name, *args, **options)
        finally:
            found.remove(name)

    monkeypatch.setattr(Cell, "claim", asked)
    return found


async def test_an_idle_worker_that_stops_leaves_no_claim_behind(redis_url, redis, asking):
    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url, lease=400) as worker:
            await (await client.submit("s", "one", agent=AGENT)).result(60)
            await wait_until_async(
                lambda: worker.name in asking and is_waiting(redis), 5, "a claim stands behind a bell"
            )
            worker.drain()
            await wait_until_async(lambda: worker.name not in asking, 5, "it was taken back")
        assert not is_waiting(redis)
        turn = await client.submit("s", "two", agent=AGENT)
        assert await turn.status() == "queued"
        await turn.cancel()


async def test_a_worker_that_stops_starts_what_it_has_claimed_though_it_cannot_ring(
    redis_url, redis, monkeypatch, asking
):
    async def ring(cell, name):
        raise StoreUnavailable("Redis is gone.")

    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url, lease=400) as worker:
            await (await client.submit("s", "one", agent=AGENT)).result(60)
            await wait_until_async(
                lambda: worker.name in asking and is_waiting(redis), 5, "a claim stands behind a bell"
            )
            monkeypatch.setattr(Cell, "ring", ring)
            worker.drain()
            turn = await client.submit("s", "two", agent=AGENT)  # its bell ends the wait
        assert (await turn.result(60)).text


async def test_the_next_claim_is_sent_before_the_turns_of_the_last_one_run(redis_url, monkeypatch):
    """So Redis runs it meanwhile. Otherwise the two would wait for each other, and few turns would be under way."""
    claim, run, order = Cell.claim, TurnRunner.run, []

    async def claiming(cell, *args, **options):
        order.append("claim")
        return await claim(cell, *args, **options)

    async def running(*args):
        order.append("turn")
        return await run(*args)

    monkeypatch.setattr(Cell, "claim", claiming)
    monkeypatch.setattr(TurnRunner, "run", running)
    async with AsyncClient(redis_url) as client:
        turns = [await client.submit(f"s{n}", "one", agent=AGENT) for n in range(3 * consumer.MANY)]
        async with running_worker(redis_url):
            for turn in turns:
                await turn.result(60)
    assert order[:2] == ["claim", "claim"]


async def test_a_claim_asks_for_more_turns_while_some_are_left(redis_url, monkeypatch):
    """Otherwise a worker that waits for a core takes fewer turns a second than arrive, and the backlog grows."""
    claim, asked = Cell.claim, []

    async def claiming(cell, *args, **options):
        claims = await claim(cell, *args, **options)
        asked.append((options["limit"], len(claims.turns)))
        return claims

    monkeypatch.setattr(Cell, "claim", claiming)
    few, many = consumer.FEW, consumer.MANY
    async with AsyncClient(redis_url) as client:
        turns = [await client.submit(f"s{n}", "one", agent=AGENT) for n in range(2 * many + 1)]
        async with running_worker(redis_url):
            for turn in turns:
                await turn.result(60)
            await (await client.submit("later", "one", agent=AGENT)).result(60)
    assert [one for one in asked if one[1]] == [(many, many), (many, many), (many, 1), (few, 1)]
