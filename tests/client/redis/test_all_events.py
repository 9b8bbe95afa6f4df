"""``subscribe_all``: the ends of the turns of all sessions, from a cursor on, for those who may see them."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from support.cells import open_cell
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.servers import RedisServer

from antiphon import Agent, tool
from antiphon.client import AsyncClient, Client
from antiphon.errors import ClientClosed, StreamGap, UsageError
from antiphon.input.request import AgentSpec
from antiphon.testing import tool_call
from antiphon_worker.app import App

AGENT = AgentSpec(provider="scripted", model="m", name="parrot")


async def take(events, count):
    return [await asyncio.wait_for(anext(events), patience(20)) for _ in range(count)]


def named(found):
    return [(one.event.type, one.event.session_id, one.event.turn_id) for one in found]


async def test_the_ends_of_all_sessions_come_whole_and_in_order(client, redis_url):
    async with running_worker(redis_url):
        async with client.subscribe_all() as events:
            first = await client.submit("a", "one", agent=AGENT)
            await first.result(20)
            second = await client.submit("b", "two", agent="nobody")
            third = await client.submit("c", "three", agent=AGENT, delay=3600)
            one, two = await take(events, 2)
            await third.cancel("enough")
            found = [one, two, *await take(events, 1)]
        assert named(found) == [
            ("turn_finished", "a", first.id), ("turn_failed", "b", second.id), ("turn_cancelled", "c", third.id),
        ]  # fmt: skip
        assert one.event.response.text == "You said: one"
        assert two.event.code == "unknown_agent"
        assert [one.event async for one in first.stream() if False] == []
        assert one.event == [event async for event in first.stream()][-1]


async def test_a_turn_that_waits_for_somebody_is_told_with_its_calls(redis_url):
    @tool(approval=True)
    def pay() -> str:
        return "paid"

    agent = Agent("scripted", "m", name="buyer", tools=[pay], script=[[tool_call("pay")], "Done"])
    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, App(agents=[agent])),
        client.subscribe_all(tenant="acme") as events,
    ):
        turn = await client.submit("a", "buy", agent="buyer", tenant="acme")
        (waiting,) = await take(events, 1)
        (call,) = waiting.event.calls
        await turn.approve(call.call_id, by="ada")
        (end,) = await take(events, 1)
    assert (waiting.event.type, call.name, end.event.type) == ("turn_suspended", "pay", "turn_finished")


async def test_from_any_cursor_each_event_comes_once(cell, client):
    async with client.subscribe_all() as events:
        beginning = events.cursor
        for number in range(6):
            await cell.put(f"t{number}", f"s{number}")
            await cell.cancel(f"t{number}", "enough")
        found = await take(events, 6)
    for number, cursor in enumerate([beginning, *(one.cursor for one in found)][:6]):
        async with client.subscribe_all(after=cursor) as again:
            assert await take(again, 6 - number) == found[number:]
    async with client.subscribe_all(after=0) as everything:
        assert await take(everything, 6) == found


async def test_a_tenant_an_agent_and_types_are_selected(redis_url, client):
    async with (
        running_worker(redis_url),
        client.subscribe_all(tenant="acme") as of_tenant,
        client.subscribe_all(agent="parrot") as of_agent,
        client.subscribe_all(types=["turn_failed"]) as failures,
    ):
        await (await client.submit("a", "x", agent=AGENT)).result(20)
        await (await client.submit("a", "y")).result(20)  # by the session's agent
        refused = await client.submit("b", "x", agent="nobody", tenant="other")
        with pytest.raises(UsageError):
            await refused.result(20)
        ours = await client.submit(
            "c", "x", agent=AGENT.__class__(provider="scripted", model="m"), tenant="acme"
        )
        await ours.result(20)
        last = await client.submit("d", "x", agent=AGENT)
        await last.result(20)
        assert named(await take(of_tenant, 1)) == [("turn_finished", "c", ours.id)]
        assert [one[1] for one in named(await take(of_agent, 3))] == ["a", "a", "d"]
        assert named(await take(failures, 1)) == [("turn_failed", "b", refused.id)]


async def test_an_event_that_its_session_has_trimmed_is_told_from_the_turn(cell, client):
    async with client.subscribe_all() as events:
        await cell.end(await cell.started("t1"), response=b'{"text":"one"}')
        await cell.put("t2", "s2")
        await cell.cancel("t2", "enough")
        await cell.put("t3", "s3")
        await cell.cancel("t3", "enough")
        await cell.redis.delete("ant:events:s", "ant:events:s2", "ant:turn:t2")
        found = await take(events, 2)
    assert [(one.event.turn_id, one.event.seq) for one in found] == [("t1", 3), ("t3", 2)]
    assert found[0].event.response.text == "one"


async def test_a_cursor_that_is_no_longer_kept_is_a_gap(cell, client):
    async with client.subscribe_all() as events:
        cursor = events.cursor
    await cell.put()
    await cell.cancel("t1", "enough")
    await cell.redis.xtrim("ant:notices", maxlen=1, approximate=False)
    with pytest.raises(StreamGap, match="no longer kept"):
        await anext(client.subscribe_all(after=cursor))
    await cell.redis.delete("ant:notices")
    with pytest.raises(StreamGap):
        await anext(client.subscribe_all(after=cursor))


@pytest.mark.parametrize("after", ["x", "a:b", -1, "a:1-2-3", "a:1"])
async def test_what_is_no_cursor_is_refused(after):
    client = AsyncClient("redis://localhost:1/0")
    with pytest.raises(UsageError, match="after="):
        client.subscribe_all(after=after)
    with pytest.raises(UsageError, match="types="):
        client.subscribe_all(types=["text_delta"])


@pytest.mark.one_server
async def test_a_cut_connection_loses_nothing_and_doubles_nothing(redis_url, proxy):
    async with open_cell(redis_url) as cell, AsyncClient(proxy.url) as client:
        found = []
        async with client.subscribe_all() as events:
            for number in range(12):
                await cell.put(f"t{number}", f"s{number}")
                await cell.cancel(f"t{number}", "enough")
                if number % 4 == 2:
                    proxy.cut()
                if number % 3 == 2:
                    found += await take(events, 3)
        assert [one.event.turn_id for one in found] == [f"t{number}" for number in range(12)]


async def test_an_impatient_reader_loses_nothing_and_gets_its_heartbeat(cell, client):
    events = client.subscribe_all(heartbeat=0.02)
    async with events:
        assert (await anext(events)).event.type == "heartbeat"
        await cell.put()
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        await cell.cancel("t1", "enough")
        found = [one async for one in _until(events, "turn_cancelled")]
        assert found[-1].event.turn_id == "t1"


async def _until(events, kind):
    async for one in events:
        yield one
        if one.event.type == kind:
            return


@pytest.mark.one_server
async def test_the_first_heartbeat_has_a_cursor_even_if_redis_is_slow(redis_url, proxy):
    proxy.delay(0.05)
    async with AsyncClient(proxy.url) as client, AsyncClient(redis_url) as submitter:
        event, cursor = await anext(client.subscribe_all(heartbeat=0.001))
        proxy.heal()
        assert event.type == "heartbeat"
        turn = await submitter.submit("s", "x", queue="nowhere")
        await turn.cancel()
        assert (await anext(client.subscribe_all(after=cursor))).event.turn_id == turn.id


@pytest.mark.one_server
async def test_several_cells_are_followed_with_one_cursor():
    with RedisServer() as one, RedisServer() as two:
        async with AsyncClient([one.url, two.url]) as client:
            async with client.subscribe_all() as events:
                beginning = events.cursor
                turns = [await client.submit(f"s{n}", "x", queue="q", delay=60) for n in range(8)]
                for turn in turns:
                    await turn.cancel()
                found = await take(events, 8)
            assert {one.event.turn_id for one in found} == {turn.id for turn in turns}
            assert len(beginning.split(",")) == 2
        async with (
            AsyncClient([two.url, one.url]) as client,
            client.subscribe_all(after=found[4].cursor) as rest,
        ):
            assert {one.event.turn_id for one in await take(rest, 3)} == {
                one.event.turn_id for one in found[5:]
            }


async def test_a_closed_client_ends_its_readers(redis_url):
    client = AsyncClient(redis_url)
    reading = asyncio.create_task(anext(client.subscribe_all()))
    async with Redis.from_url(redis_url) as redis:
        await wait_until_async(lambda: redis.exists("ant:notices"), 10)
    await client.aclose()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(reading, patience(10))


def test_the_synchronous_twin_goes_on_behind_a_cursor(redis_url):
    with Client(redis_url) as client:
        beginning = next(client.subscribe_all(heartbeat=0.01)).cursor
        turn = client.submit("s", "x", queue="nowhere")
        turn.cancel()
        event, _ = next(client.subscribe_all(after=beginning))
        assert (event.type, event.turn_id) == ("turn_cancelled", turn.id)
