"""A cancellation ends a call to Redis wherever it strikes: services stop, time-outs hold."""

import asyncio

import pytest
from support.clusters import Cluster
from support.servers import RedisServer, Sentinel

from antiphon.wire.connection import cluster
from antiphon.wire.connection.cluster import each_cell
from antiphon.wire.connection.open import open_like, open_redis


@pytest.mark.parametrize("opened", ["by URL", "like another client"])
async def test_a_call_can_be_cancelled_at_every_moment(redis_url, opened):
    redis = open_redis(redis_url)
    if opened == "like another client":
        redis = open_like(redis)
    async with redis:
        await redis.ping()
        for steps in range(25):
            await cancelled_after(steps, redis)


@pytest.mark.one_server
async def test_a_call_that_asks_a_sentinel_first_can_be_cancelled_at_every_moment(server_kind):
    with RedisServer(server_kind) as primary, Sentinel(primary) as sentinel:
        async with open_redis(sentinel.url) as redis:
            for steps in range(80):
                await redis.connection_pool.disconnect()
                await cancelled_after(steps, redis)


@pytest.mark.one_server
async def test_a_call_that_asks_a_cluster_first_can_be_cancelled_at_every_moment(server_kind, monkeypatch):
    monkeypatch.setattr(cluster, "ASK_INTERVAL_SECONDS", 0)
    with Cluster(server_kind, primaries=1) as servers:
        [url] = each_cell(servers.url(1))
        async with open_redis(url) as redis:
            for steps in range(200):
                redis.connection_pool.place.topology.doubt()
                await redis.connection_pool.disconnect()
                await cancelled_after(steps, redis)


async def cancelled_after(steps, redis):
    call = asyncio.create_task(redis.blpop(["nothing"], timeout=5))
    for _ in range(steps):
        await asyncio.sleep(0)
    assert call.cancel()
    done, _ = await asyncio.wait([call], timeout=2)
    assert done, f"cancelled after {steps} steps of the loop, the call goes on"
    assert call.cancelled()
