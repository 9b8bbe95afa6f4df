"""`limits/limit` and `limits/admit`: the bucket of a rate limit, which all workers of a cell share."""

import pytest

from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.rate_limits import admit, limit

SCOPE = 'p/m "x"\\/0123'


async def starts(cell, ms=0):
    """Whether calls start now, one after the other, until one is told to wait."""
    found = 0
    while await admit(cell, SCOPE) == 0:
        found += 1
    return found


async def bucket(cell):
    return {k.decode(): float(v) for k, v in (await cell.redis.hgetall(cell.keys.bucket(SCOPE))).items()}


async def test_without_a_limit_every_call_is_free(cell):
    assert await admit(cell, SCOPE) is None
    assert await cell.redis.exists(cell.keys.bucket(SCOPE)) == 0


async def test_no_call_starts_before_the_time_and_then_one_each_gap(cell):
    assert await limit(cell, SCOPE, 3_000, 100) == 63_000
    assert [await admit(cell, SCOPE) for _ in range(3)] == [3_000, 3_100, 3_200]
    await cell.wait(2_999)
    assert await admit(cell, SCOPE) == 301
    await cell.wait(1)
    assert await admit(cell, SCOPE) == 0
    assert await admit(cell, SCOPE) == 397, "behind those that were told a time"
    await cell.wait(100)
    assert await admit(cell, SCOPE) == 0


async def test_who_comes_late_loses_nothing_of_the_last_second_and_no_more(cell):
    await limit(cell, SCOPE, 1_000, 100)
    await cell.wait(1_500)
    assert await starts(cell) == 6
    await cell.wait(60_000)
    assert 10 < await starts(cell) <= 16, "the gap shrinks with each call"


async def test_an_unknown_gap_doubles_when_calls_that_kept_to_it_are_limited(cell):
    await limit(cell, SCOPE, 1_000, 0)
    await limit(cell, SCOPE, 1_000, 0)
    assert (await bucket(cell))["gap"] == 50, "what was under way is limited too"
    for gap in (100, 200):
        await cell.wait(1_000)
        await limit(cell, SCOPE, 1_000, 0)
        assert (await bucket(cell))["gap"] == gap
    await cell.wait(1_000)
    await limit(cell, SCOPE, 0, 0)
    assert (await bucket(cell))["gap"] == 200, "a limit that is only near is not hit"
    for _ in range(9):
        await cell.wait(600_000)
        await limit(cell, SCOPE, 1_000, 0)
    assert (await bucket(cell))["gap"] == 1_000, "the time after which the service takes a call is gap enough"
    await limit(cell, SCOPE, 1_000, 20_000)
    assert (await bucket(cell))["gap"] == 10_000
    await limit(cell, SCOPE, 1_000, 20)
    assert (await bucket(cell))["gap"] == 20, "a gap that the service says counts"


async def test_each_call_that_starts_makes_the_gap_smaller(cell):
    await limit(cell, SCOPE, 0, 1_000)
    assert await admit(cell, SCOPE) == 0
    assert (await bucket(cell))["gap"] == pytest.approx(970)


async def test_a_limit_is_never_longer_than_ten_minutes(cell):
    assert await limit(cell, SCOPE, 86_400_000, 100) == 660_000
    assert await limit(cell, SCOPE, 600_000, 100) == 660_000
    assert await admit(cell, SCOPE) == 600_000
    now = await cell.now()
    await cell.set_clock(now - 1)
    assert await admit(cell, SCOPE) is None, "a clock that was put back shuts no bucket for ever"


async def test_places_that_were_promised_do_not_run_away(cell):
    await limit(cell, SCOPE, 1_000, 10_000)
    told = [await admit(cell, SCOPE) for _ in range(9)]
    assert told == [1_000, 11_000, 21_000, 31_000, 41_000, 51_000, 1_000, 11_000, 21_000]


async def test_a_bucket_lasts_while_calls_wait_for_it(cell):
    key = cell.keys.bucket(SCOPE)
    await limit(cell, SCOPE, 5_000, 1_000)
    assert 60_000 < await cell.redis.pttl(key) <= 65_000
    await cell.redis.pexpire(key, 1_000)
    await admit(cell, SCOPE)
    await admit(cell, SCOPE)
    assert 65_000 < await cell.redis.pttl(key) <= 66_000
    await cell.wait(5_000)
    await cell.redis.pexpire(key, 1_000)
    assert await admit(cell, SCOPE) == 0
    assert await cell.redis.pttl(key) <= 1_000, "calls that start at once do not keep it"


@pytest.mark.parametrize("damage", [{"open": "x"}, {"gap": ""}, {"gap": "x", "open": "1"}])
async def test_a_damaged_bucket_holds_nobody_up(cell, damage):
    await limit(cell, SCOPE, 5_000, 1_000)
    await cell.redis.hset(cell.keys.bucket(SCOPE), mapping=damage)
    assert await admit(cell, SCOPE) is None
    assert await limit(cell, SCOPE, 5_000, 1_000) == 65_000
    assert await admit(cell, SCOPE) == 5_000


async def test_all_who_listen_are_told(cell):
    feed = LiveFeed(cell.redis)
    async with feed.listen(cell.keys.buckets(cell.database)) as listener:
        assert await listener.get(10) == b""
        await limit(cell, SCOPE, 2_000, 10)
        assert await listener.get(10) == f"62000 {SCOPE}".encode()
    await feed.aclose()
