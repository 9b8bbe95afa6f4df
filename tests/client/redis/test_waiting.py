"""Turns that wait for decisions, listed over all cells by how long they have waited."""

from redis.asyncio import Redis
from support.cells import START_MS, TestCell, open_cell

from antiphon.client import AsyncClient, Client
from antiphon.model import OpenCall
from antiphon.redis.listing import list_suspended
from antiphon.wire.connection.open import open_redis

PAY, LOOK = OpenCall("c1", "pay", {"amount": 3}), OpenCall("c2", "look", kind="tool")


async def ids(items):
    return [one.turn_id async for one in items]


async def test_suspended_turns_are_listed_the_oldest_first_with_their_open_calls(cell, client):
    for number in range(5):
        await cell.hold(
            await cell.started(f"t{number}", f"s{number}", tenant="odd" if number % 2 else ""),
            PAY,
            LOOK,
            aside=number == 2,
        )
        await cell.wait(1_000 * (number != 3))
    await cell.put("other", "s9")
    found = [turn async for turn in client.waiting()]
    assert [turn.turn_id for turn in found] == ["t0", "t1", "t2", "t3", "t4"]
    first = found[1]
    assert (first.session_id, first.suspended, first.tenant) == ("s1", START_MS + 1_000, "odd")
    assert [(call.call_id, call.kind, call.arguments) for call in first.calls] == [
        ("c1", "approval", {"amount": 3}), ("c2", "tool", {}),
    ]  # fmt: skip
    assert await ids(client.waiting(tenant="odd")) == ["t1", "t3"]
    assert await ids(list_suspended([cell], page=1)) == ["t0", "t1", "t2", "t3", "t4"]
    await cell.decide("c1", turn="t0")
    (still,) = [turn.calls async for turn in client.waiting() if turn.turn_id == "t0"]
    assert [call.call_id for call in still] == ["c2"]
    await cell.decide("c2", "result", turn="t0")
    await cell.redis.hset("ant:turn:t1", "calls", "junk")
    assert await ids(client.waiting()) == ["t2", "t3", "t4"]


async def test_suspended_turns_of_several_cells_are_listed_together(redis_url):
    other = redis_url.removesuffix("0") + "1"
    async with (
        open_cell(redis_url) as cell,
        open_redis(other) as redis,
        AsyncClient([redis_url, other]) as client,
    ):
        await redis.flushdb()
        there = TestCell(redis)
        await there.set_clock(START_MS + 500)
        for number, one in enumerate([cell, there, cell]):
            await one.put(f"t{number}", f"s{number}")
            await one.hold(await one.take_one())
            await cell.wait(1_000)
        assert await ids(client.waiting()) == ["t0", "t1", "t2"]
        await redis.flushdb()


async def test_a_turn_says_what_it_waits_for_and_what_was_decided(cell, client):
    await cell.put("t1", text=b'{"messages":[]}')
    turn = await client.turn("t1")
    assert ((await turn.info()).calls, (await turn.info()).decisions) == ([], [])
    await cell.hold(await cell.take_one(), PAY, LOOK)
    await cell.decide("c1", by="ada")
    info = await turn.info()
    assert [call.call_id for call in info.calls] == ["c2"]
    assert [(one.call_id, one.by, one.at) for one in info.decisions] == [("c1", "ada", START_MS)]
    await cell.decide("c2", "reject")
    info = await turn.info()
    assert (info.calls, len(info.decisions)) == ([], 2)


async def test_the_synchronous_client_lists_them_too(cell, redis_url):
    await cell.hold(await cell.started("t1"))
    with Client(redis_url) as client:
        assert [one.turn_id for one in client.waiting()] == ["t1"]
        assert list(client.waiting(tenant="acme")) == []


async def test_nothing_is_read_of_turns_that_do_not_wait(redis_url):
    async with (
        open_cell(redis_url) as cell,
        AsyncClient(redis_url) as client,
        Redis.from_url(redis_url) as redis,
    ):
        for number in range(20):
            await cell.put(f"t{number}", f"s{number}")
        await ids(client.waiting())
        await redis.config_resetstat()
        assert await ids(client.waiting()) == []
        stats = await redis.info("commandstats")
        assert stats["cmdstat_zrangebyscore"]["calls"] == 1
        assert "cmdstat_hmget" not in stats
