"""The notices of a cell: written where somebody asks for them, by whatever ends a run."""

import pytest
from redis.asyncio import Redis

from antiphon.errors import StoreFull
from antiphon.wire.lists.notices import BEGAN, follow, read_notices

KEEP_MS = 60_000


async def kinds(cell, after):
    found = await read_notices(cell, after, 100)
    return [(one.kind, one.session_id, one.turn_id, one.seq, one.tenant) for one in found]


async def test_without_a_reader_nothing_is_written(cell):
    await cell.end(await cell.started())
    assert not await cell.redis.exists("ant:notices")


async def test_every_end_of_a_run_is_noticed(cell):
    began = await follow(cell, KEEP_MS)
    await cell.end(await cell.started("t1", tenant="acme"))
    await cell.end(await cell.started("t2", "s2"), "failed")
    await cell.put("t3", "s3")
    await cell.cancel("t3", "enough")
    await cell.started("t4", "s4")
    await cell.reap(holder="w1", crash_limit=1)
    assert await kinds(cell, began) == [
        ("turn_finished", "s", "t1", 3, "acme"), ("turn_failed", "s2", "t2", 3, None),
        ("turn_cancelled", "s3", "t3", 2, None), ("turn_failed", "s4", "t4", 3, None),
    ]  # fmt: skip
    for session, seq in (("s", 3), ("s2", 3), ("s3", 2), ("s4", 3)):
        assert await cell.redis.xrange(f"ant:events:{session}", f"{seq}-0", f"{seq}-0")


async def test_a_repeated_finish_is_noticed_once(cell):
    began = await follow(cell, KEEP_MS)
    turn = await cell.started()
    await cell.end(turn)
    await cell.end(turn)
    assert len(await kinds(cell, began)) == 1


async def test_a_notice_hurries_on_the_channel_of_no_session(cell, redis_url):
    async with Redis.from_url(redis_url) as redis, redis.pubsub() as channel:
        await channel.subscribe("ant:live:0:")
        await channel.get_message(timeout=10)
        began = await follow(cell, KEEP_MS)
        await cell.end(await cell.started())
        message = await channel.get_message(timeout=10)
        assert message["data"].decode() == (await read_notices(cell, began, 1))[0].id


async def test_whoever_asks_again_keeps_the_log_and_its_longest_life(cell):
    began = await follow(cell, KEEP_MS)
    assert await cell.redis.xrange("ant:notices") == [(began.encode(), {b"kind": BEGAN.encode()})]
    assert await follow(cell, KEEP_MS // 2) == began
    assert KEEP_MS // 2 < await cell.redis.pttl("ant:notices") <= KEEP_MS
    assert await follow(cell, KEEP_MS * 2) == began
    assert await cell.redis.pttl("ant:notices") > KEEP_MS
    await cell.end(await cell.started())
    newest = await follow(cell, KEEP_MS)
    assert await read_notices(cell, newest, 10) == []


async def test_an_entry_that_is_gone_is_told(cell):
    assert await read_notices(cell, "5-0", 10) is None
    began = await follow(cell, KEEP_MS)
    assert await read_notices(cell, "5-0", 10) is None
    await cell.end(await cell.started())
    await cell.redis.xtrim("ant:notices", maxlen=1, approximate=False)
    assert await read_notices(cell, began, 10) is None


async def test_the_log_is_bounded(cell):
    began = await follow(cell, KEEP_MS)
    entry = {"kind": "x"}
    pipe = cell.redis.pipeline(transaction=False)
    for _ in range(100_300):
        pipe.xadd("ant:notices", entry)
    await pipe.execute()
    await cell.end(await cell.started())
    assert 100_000 <= await cell.redis.xlen("ant:notices") <= 100_200
    assert await read_notices(cell, began, 1) is None


async def test_a_damaged_log_keeps_no_turn_from_its_end(cell):
    await cell.redis.set("ant:notices", "junk", ex=60)
    assert await cell.end(await cell.started())
    assert await cell.status() == "finished"


@pytest.mark.one_server
async def test_at_full_memory_nobody_begins_a_log_and_one_that_is_there_goes_on(cell):
    turn = await cell.started()
    await cell.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            await follow(cell, KEEP_MS)
        await cell.redis.config_set("maxmemory", 0)
        began = await follow(cell, KEEP_MS)
        await cell.redis.config_set("maxmemory", 1)
        assert await follow(cell, KEEP_MS) == began
        assert await cell.end(turn)
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert len(await kinds(cell, began)) == 1
