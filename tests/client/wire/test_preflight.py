"""What a worker learns of its Redis before it takes a turn, and what it refuses, with the command that mends it."""

import pytest
from support.servers import RedisServer

from antiphon.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable, StoreUnsupported
from antiphon.wire.connection.open import open_redis
from antiphon.wire.preflight import RedisFacts, check_redis, read_redis


async def facts_of(url: str) -> RedisFacts:
    redis = open_redis(url, retries=0)
    try:
        return await read_redis(redis)
    finally:
        await redis.aclose()


@pytest.mark.parametrize(
    ("options", "promised"),
    [
        ({}, "none"),
        ({"appendonly": True, "appendfsync": "everysec"}, "everysec"),
        ({"appendonly": True, "appendfsync": "always"}, "fsync"),
        ({"appendonly": True, "appendfsync": "no"}, "none"),
    ],
)
async def test_the_durability_in_force_is_read_from_the_server_and_said_in_one_line(options, promised):
    with RedisServer(**options) as server:
        facts = await facts_of(server.url)
        assert facts.durability == promised
        assert f"durability {promised}:" in facts.sentence()
        assert "\n" not in facts.sentence()
        check_redis(facts, "everysec")
        if promised != "fsync":
            with pytest.raises(StoreUnsupported, match="CONFIG SET appendonly yes"):
                check_redis(facts, "fsync")
        else:
            check_redis(facts, "fsync")


async def test_a_server_that_evicts_keys_is_refused():
    with RedisServer(config={"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}) as server:
        facts = await facts_of(server.url)
        with pytest.raises(StoreUnsupported, match="CONFIG SET maxmemory-policy noeviction"):
            check_redis(facts, "none")


async def test_a_server_without_memory_is_refused():
    with RedisServer(config={"maxmemory": "100kb", "maxmemory-policy": "noeviction"}) as server:
        facts = await facts_of(server.url)
        with pytest.raises(StoreFull, match="maxmemory"):
            check_redis(facts, "none")


async def test_a_replica_is_refused():
    with RedisServer() as primary, RedisServer(replica_of=primary) as replica:
        facts = await facts_of(replica.url)
        with pytest.raises(StoreReadOnly, match="primary"):
            check_redis(facts, "none")


async def test_an_absent_server_is_said_in_one_sentence():
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await facts_of("redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("version", "fit"), [((6, 0, 16), False), ((6, 2, 0), True), ((7, 0), True), ((9, 1, 2), True)]
)
def test_a_server_older_than_6_2_is_refused(version, fit):
    facts = RedisFacts("Redis", version, "master", True, "everysec", False, 0, 0, "noeviction", 0)
    if fit:
        check_redis(facts, "everysec")
    else:
        with pytest.raises(StoreError, match=r"6\.0\.16 is too old"):
            check_redis(facts, "everysec")


def test_a_primary_with_replicas_says_that_a_fail_over_is_outside_the_promise():
    facts = RedisFacts("Redis", (7, 2), "master", True, "always", False, 0, 0, "noeviction", 2)
    assert "fail-over" in facts.sentence()
