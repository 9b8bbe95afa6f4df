"""The short form of ``python -m chaos.damage``: every kind of key is damaged beside live processes and readers."""

import asyncio
import random

import pytest
from chaos.damage import TYPES, mutate, run, stand_of
from redis import Redis
from simulation.seeds import first_seed


@pytest.mark.short
@pytest.mark.one_server
@pytest.mark.lasting_keys("*")
def test_whatever_is_damaged_no_process_dies_and_no_neighbour_is_delayed(redis_url):
    with stand_of(redis_url) as (gateway, processes):
        found = asyncio.run(run(redis_url, gateway, processes, 300, first_seed()))
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    assert found.faults == []
    assert found.kinds.total() >= 300
    assert len(found.kinds) > 20


@pytest.mark.one_server
@pytest.mark.parametrize("kind", TYPES)
def test_mutations_change_keys_of_each_type(redis_url, kind):
    word, *values = TYPES[kind]
    changed = 0
    with Redis.from_url(redis_url) as redis:
        for seed in range(30):
            redis.delete("ant:x")
            redis.execute_command(word, "ant:x", *values)
            before = redis.dump("ant:x")
            mutate(redis, b"ant:x", random.Random(seed))
            changed += redis.dump("ant:x") != before
        redis.delete("ant:x")
    assert changed > 20
