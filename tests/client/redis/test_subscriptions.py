"""Many readers over one connection: what the server refuses to one of them is no matter of the others."""

import asyncio

import pytest
from bench.counting import CountingProxy
from redis.asyncio import Redis
from support.cells import body
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.proxy import Proxy

from antiphon.client import AsyncClient
from antiphon.errors import StoreUnsupported, TurnNotFound
from antiphon.input.ids import TurnId
from antiphon.input.request import AgentSpec
from antiphon.redis.turn import AsyncTurn
from antiphon.wire.connection import pubsub
from antiphon.wire.connection.open import open_redis
from antiphon.wire.connection.pubsub import RESYNC, LiveFeed

AGENT = AgentSpec(provider="scripted", model="any")


async def limited(redis, url):
    """The URL of a user who may listen to the sessions a… alone."""
    await redis.execute_command(
        "ACL", "SETUSER", "reader", "reset", "on", ">pw", "~*", "+@all", "&ant:live:0:a*", "&ant:control:*"
    )  # fmt: skip
    return url.replace("redis://", "redis://reader:pw@")


@pytest.mark.parametrize("first", ["allowed", "refused"])
async def test_a_refused_subscription_ends_its_own_reader_alone(first, redis_url):
    async with Redis.from_url(redis_url) as redis, running_worker(redis_url):
        try:
            async with AsyncClient(await limited(redis, redis_url)) as client:
                seen = []

                async def read():
                    async for event in client.subscribe("a1", after=0):
                        seen.append(event.type)  # noqa: PERF401 - what has come is looked at while it reads

                async def refused():
                    with pytest.raises(StoreUnsupported, match="may not do"):
                        async with asyncio.timeout(patience(5)):
                            await anext(client.subscribe("b1", after=0))

                if first == "refused":
                    await refused()
                reading = asyncio.create_task(read())
                writer = AsyncClient(redis_url)
                await (await writer.submit("a1", "one", agent=AGENT)).result(60)
                await wait_until_async(lambda: "turn_finished" in seen)
                for _ in range(3):
                    await refused()
                await (await writer.submit("a1", "two", agent=AGENT)).result(60)
                await wait_until_async(lambda: seen.count("turn_finished") == 2)
                feed = client.connections.feed_of(client.connections.cell_of_session("a1"))
                feed.reconnect()  # everything is subscribed to again
                await (await writer.submit("a1", "three", agent=AGENT)).result(60)
                await wait_until_async(lambda: seen.count("turn_finished") == 3)
                assert not reading.done()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await writer.aclose()
        finally:
            await redis.execute_command("ACL", "DELUSER", "reader")


async def test_a_channel_that_was_refused_can_be_asked_for_again(redis_url):
    async with Redis.from_url(redis_url) as redis:
        url = await limited(redis, redis_url)
        try:
            async with open_redis(url) as connection:
                feed = LiveFeed(connection)
                async with feed.listen("ant:live:0:b1") as listener:
                    with pytest.raises(StoreUnsupported):
                        await listener.get(5)
                    await redis.execute_command("ACL", "SETUSER", "reader", "&ant:live:0:b*")
                    async with feed.listen("ant:live:0:b1") as again:
                        assert await again.get(5) == RESYNC
                        await redis.publish("ant:live:0:b1", "hello")
                        assert await again.get(5) == b"hello"
                await feed.aclose()
        finally:
            await redis.execute_command("ACL", "DELUSER", "reader")


async def test_a_worker_that_may_not_listen_to_its_channels_runs_turns(redis_url):
    async with Redis.from_url(redis_url) as redis:
        await redis.execute_command(
            "ACL", "SETUSER", "reader", "reset", "on", ">pw", "~*", "+@all", "&ant:live:*"
        )
        try:
            url = redis_url.replace("redis://", "redis://reader:pw@")
            async with running_worker(url, at_once=True), AsyncClient(redis_url) as client:
                for session in ("a", "b", "c"):
                    turn = await client.submit(session, "hello", agent=AGENT)
                    assert (await turn.result(60)).text == "You said: hello"
        finally:
            await redis.execute_command("ACL", "DELUSER", "reader")


@pytest.mark.one_server
async def test_the_channel_of_a_turn_is_asked_for_while_the_turn_is_read(cell, redis_server):
    with CountingProxy(redis_server.port) as way:
        async with AsyncClient(way.url) as client:
            turn = await cell.started("t1", "s")
            read, handle = client.connections.cell_of_session("s").turn, await client.turn("t1")
            feed = client.connections.feed_of(client.connections.cell_of_session("s"))

            async def slowly(turn_id):
                record = await read(turn_id)
                await wait_until_async(lambda: feed._confirmed, 30, "the channel is confirmed meanwhile")
                for step in range(3):  # after the record was read and before the log is
                    assert await cell.say(turn, step + 1, body(turn="t1")) == ""
                [[listener]] = feed._listeners.values()
                await wait_until_async(
                    lambda: len(listener._messages) == 1 + 3, 30, "their messages are here"
                )
                return record

            client.connections.cell_of_session("s").turn = slowly
            way.reset()
            async with handle.stream() as events:
                seen = [(await anext(events)).seq for _ in range(2 + 3)]
                assert await cell.say(turn, 4, body(turn="t1")) == ""
                seen.append((await anext(events)).seq)
            assert seen == [1, 2, 3, 4, 5, 6]
            sent = [data for data in way.sent if b"PING" not in data and b"HELLO" not in data]
            logs = [n for n, data in enumerate(sent) if b"XRANGE" in data]
            channel = next(n for n, data in enumerate(sent) if b"SUBSCRIBE" in data)
            assert len(logs) == 1
            assert channel < logs[0]


async def test_a_turn_that_cannot_be_read_keeps_no_channel(redis_url):
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "hello", agent=AGENT)
        events = AsyncTurn(client.connections, TurnId("nobody"), turn.session_id).stream()
        for _ in range(2):
            with pytest.raises(TurnNotFound):
                await anext(events)
        assert client.connections.feed_of(client.connections.cell_of_session("s"))._listeners == {}
        assert await turn.cancel() == "cancelled"


async def test_one_more_reader_does_not_make_the_others_read_again(redis_url):
    async with Redis.from_url(redis_url) as redis, open_redis(redis_url) as connection:
        feed = LiveFeed(connection)
        async with feed.listen("channel") as first:
            assert await first.get(5) == RESYNC
            for number in range(3):
                async with feed.listen("channel") as other:
                    assert await other.get(5) == RESYNC
                    await redis.publish("channel", str(number))
                    assert await other.get(5) == str(number).encode()
            assert [await first.get(5) for _ in range(3)] == [b"0", b"1", b"2"]
            async with feed.listen("another") as apart:
                assert await apart.get(5) == RESYNC
            await redis.publish("channel", "last")
            assert await first.get(5) == b"last"
        async with feed.listen("channel") as later:  # the channel was left, and is asked for again
            assert await later.get(5) == RESYNC
            await redis.publish("channel", "new")
            assert await later.get(5) == b"new"
        await feed.aclose()


async def test_readers_that_come_before_the_confirmation_are_told_of_it(redis_url):
    async with Redis.from_url(redis_url) as redis, open_redis(redis_url) as connection:
        feed = LiveFeed(connection)
        async with (
            feed.listen("channel") as one,
            feed.listen("channel") as two,
            feed.listen("channel") as three,
        ):
            for listener in (one, two, three):
                assert await listener.get(5) == RESYNC
            await redis.publish("channel", "x")
            assert [await listener.get(5) for listener in (one, two, three)] == [b"x"] * 3
        await feed.aclose()


async def test_a_channel_that_was_left_is_not_asked_for_again_after_a_lost_connection(redis_url):
    async with Redis.from_url(redis_url) as redis, open_redis(redis_url) as connection:
        feed = LiveFeed(connection)
        async with feed.listen("stays") as stays:
            assert await stays.get(5) == RESYNC
            async with feed.listen("left") as left:
                assert await left.get(5) == RESYNC
            feed.reconnect()
            assert await stays.get(5) == RESYNC
            async with feed.listen("last") as last:
                assert await last.get(5) == RESYNC  # what was asked for before is answered
            assert await redis.pubsub_numsub("stays", "left") == [(b"stays", 1), (b"left", 0)]
        await feed.aclose()


async def _outlives_pings(redis_url, port):
    """Whether a connection on which nothing is said is still the same one after five pings."""
    async with Redis.from_url(redis_url) as redis:

        async def pings():
            stats = await redis.info("commandstats")
            return stats.get("cmdstat_ping", {"calls": 0})["calls"]

        with Proxy(port) as proxy:
            connection = open_redis(proxy.url)
            feed, before = LiveFeed(connection), await pings()
            async with feed.listen("channel") as listener:
                assert await listener.get(5) == RESYNC
                opened = proxy.accepted

                async def asked():
                    return await pings() >= before + 5

                await wait_until_async(asked, 10, "the server is asked whether it is there")
                kept = proxy.accepted == opened
            await feed.aclose()
            await connection.aclose()
    return kept


async def test_a_quiet_connection_whose_server_answers_pings_is_kept(redis_url, redis_server, monkeypatch):
    for seconds in (0.01, patience(0.2)):  # a busy machine may answer too late at first
        monkeypatch.setattr(pubsub, "PING_SECONDS", seconds)
        if await _outlives_pings(redis_url, redis_server.port):
            return
    pytest.fail("a connection whose server answers is given up")
