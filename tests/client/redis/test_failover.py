"""The primary of a Sentinel is gone, or says nothing any more: workers and readers follow to its replica."""

import asyncio
import contextlib

import pytest
from redis import Redis
from redis.exceptions import RedisError
from support.ensemble import open_ensemble
from support.eventually import patience, wait_until, wait_until_async
from support.proxy import Proxy
from support.servers import RedisServer, Sentinel

from antiphon.client import AsyncClient
from antiphon.errors import StoreError, StoreUnavailable, StoreUnsupported
from antiphon.redis import subscription as subscribe
from antiphon.wire.connection import pubsub as live
from antiphon.wire.connection.open import open_redis
from antiphon.wire.connection.pubsub import RESYNC, LiveFeed


@pytest.fixture
def impatient(monkeypatch):
    """Silence is noticed in a second, not in five: the tests need not wait for longer."""
    monkeypatch.setitem(open_redis.__kwdefaults__, "timeout_seconds", 1.0)
    monkeypatch.setattr(subscribe, "SILENCE_SECONDS", 1.0)


@contextlib.contextmanager
def watched(kind):
    """A primary, its replica, and a Sentinel that knows both."""
    at_once = {"repl-diskless-sync-delay": "0"}
    with (
        RedisServer(kind, config=at_once) as primary,
        RedisServer(kind, replica_of=primary, config=at_once) as replica,
    ):
        with Redis.from_url(primary.url) as redis:
            wait_until(
                lambda: redis.info("replication")["connected_slaves"] == 1, 20, "the replica is connected"
            )
        with Sentinel(primary, down_after_ms=600) as sentinel:
            with Redis.from_url(f"redis://127.0.0.1:{sentinel.port}") as watch:
                known = lambda: len(watch.execute_command("SENTINEL", "replicas", sentinel.master_name)) == 1  # noqa: E731
                wait_until(known, 30, "the Sentinel knows the replica")
            yield primary, replica, sentinel


def is_primary(url):
    try:
        with Redis.from_url(url, socket_timeout=1) as redis:
            return redis.info("replication")["role"] == "master"
    except RedisError:
        return False


def calm(sentinel):
    """From here on it sees no other server die, however busy this machine is."""
    with Redis.from_url(f"redis://127.0.0.1:{sentinel.port}") as watch:
        watch.execute_command("SENTINEL", "SET", sentinel.master_name, "down-after-milliseconds", "60000")


def offset(server):
    with Redis.from_url(server.url) as redis:
        return redis.info("replication")["master_repl_offset"]


async def collect(client, session, seen):
    async for event in client.subscribe(session, 0):
        seen.append(event)


@pytest.mark.parametrize("how", ["is gone", "is a black hole"])
async def test_a_fail_over_is_followed_by_workers_and_readers(how, server_kind, impatient, tmp_path):
    with watched(server_kind) as (primary, replica, sentinel):
        async with open_ensemble(sentinel.url, tmp_path / "stage") as ensemble, ensemble.worker(lease=2):
            seen = []
            reader = asyncio.create_task(collect(ensemble.client, "s", seen))
            before = await ensemble.submit("s", "before it")
            await before.result(60)
            turn = await ensemble.submit("s", "go on gate:g words:5")
            await ensemble.waits("g")
            await wait_until_async(lambda: len(seen) >= 6)
            written = offset(primary)
            await wait_until_async(
                lambda: offset(replica) >= written, 10, "the replica has all that was done"
            )
            primary.kill() if how == "is gone" else primary.freeze()
            await wait_until_async(lambda: is_primary(replica.url), 30, "the replica is the primary")
            calm(sentinel)
            ensemble.stage.open("g")
            await turn.result(60)
            if how == "is a black hole":
                primary.thaw()  # it does what it was asked before, and does not know yet that it is a replica
            after = await ensemble.submit("s", "after it")
            await after.result(60)
            events = await ensemble.events("s")
            all_seen = lambda: len(seen) >= len(events) or reader.done()  # noqa: E731
            await wait_until_async(all_seen, 15, "the reader has seen everything")
            assert [event.to_json() for event in seen] == [event.to_json() for event in events]
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await ensemble.whole("s")
        if how == "is gone":
            primary.start()


@pytest.mark.one_server
async def test_a_sentinel_that_is_gone_is_passed_over_and_none_is_left_connected(server_kind):
    with RedisServer(server_kind) as primary, Sentinel(primary) as sentinel:
        gone = RedisServer(server_kind)  # never started: nobody listens there
        url = sentinel.url.replace("127.0.0.1:", f"127.0.0.1:{gone.port},127.0.0.1:")
        redis = open_redis(url)
        async with asyncio.timeout(patience(3)):
            assert await redis.ping()
        with Redis.from_url(f"redis://127.0.0.1:{sentinel.port}") as watch:
            assert len(watch.client_list("normal")) == 2
            await redis.aclose()
            await wait_until_async(
                lambda: len(watch.client_list("normal")) == 1, 5, "its connection is closed"
            )


async def refusal(url):
    """What a client says that cannot submit with this URL."""
    async with AsyncClient(url, retries=0) as client:
        with pytest.raises(StoreError) as refused:
            await client.submit("s", "x")
    return refused.value


async def test_a_plain_redis_where_a_sentinel_is_asked_for_is_told_to_be_none(redis_url):
    refused = await refusal(redis_url.replace("redis://", "redis+sentinel://").replace("/0", "/primary/0"))
    assert isinstance(refused, StoreUnsupported)
    assert "this server is no Sentinel" in str(refused)


@pytest.mark.one_server
async def test_sentinels_that_know_no_such_primary_are_named_with_it(server_kind):
    with RedisServer(server_kind) as primary, Sentinel(primary) as sentinel:
        refused = await refusal(sentinel.url.replace("/primary/", "/other/"))
    assert isinstance(refused, StoreUnavailable)
    assert f"no Sentinel of 127.0.0.1:{sentinel.port} answers with a primary named 'other'" in str(refused)
    gone = await refusal(sentinel.url)
    assert str(gone) == (
        f"Redis cannot be reached (no Sentinel of 127.0.0.1:{sentinel.port} answers with a primary named 'primary')."
    )


@pytest.mark.one_server
async def test_what_a_server_publishes_that_is_no_longer_the_primary_is_not_passed_on(server_kind):
    """It stood still, and does now what it was asked before. The new primary has never done that."""
    with RedisServer(server_kind) as primary, Sentinel(primary) as sentinel:
        redis = open_redis(sentinel.url)
        feed = LiveFeed(redis)
        async with feed.listen("ant:live:0:s") as listener:
            assert await listener.get(5) == RESYNC
            redis.connection_pool.master_address = ("192.0.2.1", 6379)  # another command has learned of it
            with Redis.from_url(primary.url) as publisher:
                assert publisher.publish("ant:live:0:s", "lost") == 1
                assert await listener.get(5) == RESYNC  # the Sentinel was asked again
                publisher.publish("ant:live:0:s", "kept")
            assert await listener.get(5) == b"kept"
        await feed.aclose()
        await redis.aclose()


@pytest.mark.one_server
async def test_a_late_answer_of_a_server_that_is_no_longer_the_primary_is_asked_for_again(server_kind):
    with RedisServer(server_kind) as primary, Sentinel(primary) as sentinel:
        async with open_redis(sentinel.url) as redis:
            asked = asyncio.create_task(redis.xread({"log": "0"}, block=20_000))
            with Redis.from_url(primary.url) as other:
                await wait_until_async(lambda: other.info("clients")["blocked_clients"] == 1)
                known = redis.connection_pool.master_address
                redis.connection_pool.master_address = (
                    "192.0.2.1",
                    6379,
                )  # another command has learned of it
                other.xadd("log", {"e": "lost"})
                assert await asked
            assert redis.connection_pool.master_address == known, "the Sentinel was asked again"


@pytest.mark.one_server
async def test_a_live_connection_that_answers_no_ping_is_opened_anew(redis_url, redis_server, monkeypatch):
    """No message is missing that a reader could know of: a worker that hears no command for hours is such a one."""
    monkeypatch.setattr(live, "PING_SECONDS", 0.05)
    with Proxy(redis_server.port) as proxy:
        redis = open_redis(proxy.url)
        feed = LiveFeed(redis)
        async with feed.listen("ant:control:w") as listener:
            assert await listener.get(5) == RESYNC
            before = proxy.accepted
            proxy.blackhole()
            await wait_until_async(lambda: proxy.accepted > before, 5, "another connection is opened")
            proxy.heal()
            assert await listener.get(5) == RESYNC
        await feed.aclose()
        await redis.aclose()


@pytest.mark.one_server
async def test_a_subscription_given_up_as_its_connection_is_lost_leaves_none_open(redis_url, proxy):
    redis = open_redis(proxy.url)
    feed = LiveFeed(redis)
    async with feed.listen("ant:live:0:s") as listener:
        assert await listener.get(5) == RESYNC
        feed.reconnect()
    await feed.aclose()
    await redis.aclose()
    await wait_until_async(lambda: not proxy.connections, 5, "no connection is open")
