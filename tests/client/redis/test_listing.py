"""The list of sessions as Redis has it: over several cells, with equal places, and with sessions that have ended."""

import pytest
from support.cells import open_cell

from antiphon.client import AsyncClient
from antiphon.wire.connection.open import open_redis


def second_cell(redis_url):
    return redis_url.removesuffix("/0") + "/1"


async def fill(cell, prefix, count, apart_ms=1):
    for number in range(count):
        await cell.end(
            await cell.started(
                f"{prefix}{number}", f"{prefix}{number}", tenant="odd" if number % 2 else "even"
            )
        )
        await cell.wait(apart_ms)


async def pages_of(client, **options):
    pages, cursor = [], None
    while True:
        page = client.sessions(cursor=cursor, **options)
        pages.append([one.session_id async for one in page])
        if page.cursor is None:
            return pages
        cursor = page.cursor


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
async def test_sessions_that_end_at_the_same_moment_come_once_each(cell, limit, client):
    await fill(cell, "s", 7, apart_ms=0)
    assert await cell.redis.zcount(cell.keys.sessions, "-inf", "+inf") == 7
    pages = await pages_of(client, limit=limit)
    assert [one for page in pages for one in page] == [f"s{number}" for number in reversed(range(7))]
    assert all(len(page) == limit for page in pages[:-1])


async def test_the_sessions_of_several_cells_are_one_list(redis_url):
    urls = [redis_url, second_cell(redis_url)]
    async with open_cell(urls[0]) as one, open_cell(urls[1]) as two, AsyncClient(urls) as client:
        await two.wait(5)
        await fill(one, "a", 4, apart_ms=10)
        await fill(two, "b", 3, apart_ms=10)
        expected = ["a3", "b2", "a2", "b1", "a1", "b0", "a0"]
        for limit in (1, 2, 7, 50):
            assert [name for page in await pages_of(client, limit=limit) for name in page] == expected
        assert await pages_of(client, tenant="odd", limit=2) == [["a3", "b1"], ["a1"]]
        async with open_redis(urls[1]) as redis:
            await redis.flushdb()


async def test_a_page_reads_no_more_than_it_needs(cell, client):
    await fill(cell, "s", 9)
    before = (await cell.redis.info("commandstats"))["cmdstat_llen"]["calls"]
    assert [one.session_id async for one in client.sessions(limit=2)] == ["s8", "s7"]
    rows = (
        (await cell.redis.info("commandstats"))["cmdstat_llen"]["calls"] - before
    ) / 2  # inbox and history
    assert rows == 3


async def test_what_has_ended_is_passed_over(cell, client):
    await fill(cell, "s", 6)
    await cell.redis.delete(*[cell.keys.session(f"s{number}") for number in (1, 4, 5)])
    assert await pages_of(client, limit=2) == [["s3", "s2"], ["s0"]]


async def test_metadata_that_cannot_be_read_hides_no_session(cell, client):
    await fill(cell, "s", 2)
    await cell.redis.hset(cell.keys.session("s0"), mapping={"metadata": "{", "agent": '{"name": "x"}'})
    found = [one async for one in client.sessions()]
    assert [(one.session_id, one.metadata, one.agent) for one in found] == [
        ("s1", {}, None),
        ("s0", {}, "x"),
    ]


async def test_a_session_says_whether_it_runs_waits_or_is_done(cell, client):
    turn = await cell.started("t1", "runs")
    await cell.put("t2", "waits")
    await cell.put("t3", "waits")
    await cell.put("t4", "delayed", due_in_ms=1000)
    found = {one.session_id: (one.status, one.turns) async for one in client.sessions()}
    assert found == {"runs": ("running", 1), "waits": ("waiting", 2), "delayed": ("delayed", 0)}
    await cell.end(turn)
    assert {one.status async for one in client.sessions() if one.session_id == "runs"} == {"done"}
