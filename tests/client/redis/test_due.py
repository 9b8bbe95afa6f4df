"""Delayed turns of all cells, by when they are due."""

import pytest
from redis.asyncio import Redis

from antiphon.client import AsyncClient, Client
from antiphon.errors import InvalidId
from antiphon.input.request import AgentSpec
from antiphon.redis.listing import list_due

AGENT = AgentSpec(provider="scripted", model="any")


async def ids(items):
    return [one.turn_id async for one in items]


async def test_delayed_turns_are_listed_by_their_time(redis_url):
    other = redis_url.removesuffix("0") + "1"
    async with AsyncClient([redis_url, other]) as client, Redis.from_url(other) as redis:
        await redis.flushdb()
        cells = client.connections.cells
        name = next(  # which cell has a session depends on the server's port
            name for name in "abcdefgh" if len({id(cells.of_session(f"{name}{n}")) for n in range(1, 7)}) == 2
        )
        turns = {}
        for number in (3, 1, 2, 5, 4, 6):
            tenant = "odd" if number % 2 else None
            turns[number] = await client.submit(
                f"{name}{number}", "x", agent=AGENT, delay=number * 100, tenant=tenant, queue=f"q{number}"
            )
        now = await client.submit(f"{name}1", "now", agent=AGENT)
        found = [turn async for turn in client.due()]
        assert [turn.turn_id for turn in found] == [turns[number].id for number in range(1, 7)]
        first = found[0]
        assert (first.session_id, first.queue, first.tenant) == (f"{name}1", "q1", "odd")
        assert first.due - first.created == 100_000
        assert await ids(client.due(f"{name}4")) == [turns[4].id]
        assert await ids(client.due(tenant="odd")) == [turns[number].id for number in (1, 3, 5)]
        assert await ids(client.due(f"{name}4", tenant="odd")) == await ids(client.due("none")) == []
        assert await ids(list_due(client.connections.cells, page=1)) == [turn.turn_id for turn in found]
        with pytest.raises(InvalidId):
            await ids(client.due(""))
        for turn in [now, *turns.values()]:
            await turn.cancel()
        assert await ids(client.due()) == []
        await redis.flushdb()


async def test_turns_of_one_moment_are_each_listed_once(client, redis_url):
    async with Redis.from_url(redis_url) as redis:
        turns = [await client.submit(f"s{n}", "x", agent=AGENT, delay=100) for n in range(7)]
        await redis.zadd("ant:due", {turn.id: 5 for turn in turns})
        await redis.delete(f"ant:turn:{turns[3].id}")  # it has gone meanwhile
        found = await ids(list_due(client.connections.cells, page=2))
        assert found == sorted(turn.id for turn in turns if turn is not turns[3])
        await redis.zrem("ant:due", turns[3].id)
        for turn in turns:
            if turn is not turns[3]:
                await turn.cancel()


def test_the_synchronous_client_lists_them_too(redis_url):
    with Client(redis_url) as client:
        turn = client.submit("s", "x", agent=AGENT, delay=100)
        assert [one.turn_id for one in client.due()] == [turn.id]
        turn.cancel()
