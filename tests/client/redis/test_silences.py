"""Sessions that say nothing are looked at together, and only readers of changed ones wake up."""

import asyncio
import contextlib
import time

import pytest
from support.cells import body
from support.eventually import wait_until_async

from antiphon.client import AsyncClient
from antiphon.errors import StoreUnavailable, StreamGap
from antiphon.redis import subscription
from antiphon.redis.silences import FIELDS, TICK_SECONDS
from antiphon.redis.subscription import Subscription
from antiphon.wire.cell import Cell


@contextlib.asynccontextmanager
async def reading(url, session="s", after=0):
    async with AsyncClient(url) as client:
        cell = client.connections.cell_of_session(session)
        async with Subscription(cell, client.connections.feed_of(cell), session, after) as events:
            yield events


async def fields(cell, session="s"):
    (found,) = await cell.fields_of_sessions([session], *FIELDS)
    return found


@pytest.fixture
def log_reads(monkeypatch):
    reads, log = [], Cell.log

    async def counted(self, session_id, *arguments):
        reads.append(session_id)
        return await log(self, session_id, *arguments)

    monkeypatch.setattr(Cell, "log", counted)
    return reads


async def test_a_session_that_stays_silent_is_looked_at_less_and_less_often(cell, redis_url, log_reads):
    turn = await cell.started("t1", "s")
    async with reading(redis_url) as events:
        await anext(events)
        await anext(events)
        waits = [events.due - time.monotonic()]
        log_reads.clear()
        following = asyncio.create_task(anext(events))
        for _ in range(5):
            events.look(await fields(events.cell))
            waits.append(events.due - time.monotonic())
        assert log_reads == []
        await cell.say(turn, 1, body())
        await following
        waits.append(events.due - time.monotonic())
        assert log_reads == []
    for wait, most in zip(waits, (5, 10, 20, 30, 30, 30, 5), strict=True):
        assert 0 < wait <= most
    for wait, least in zip(waits[1:-1], (8, 16, 24, 24, 24), strict=True):
        assert wait > least - 2


async def test_a_reader_that_is_due_soon_does_not_wait_for_one_that_is_due_later(redis_url, monkeypatch):
    monkeypatch.setattr(subscription, "SILENCE_SECONDS", 3_600.0)
    async with reading(redis_url, "s1", after=None):
        monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.05)
        async with reading(redis_url, "s2", after=None) as events:
            await wait_until_async(lambda: events._quiet, description="its session was looked at")


async def test_a_message_on_its_way_is_no_lost_one(cell, redis_url, monkeypatch):
    turn = await cell.started("t1", "s")
    async with reading(redis_url, after=None) as events:
        reconnects = []
        monkeypatch.setattr(events._feed, "reconnect", lambda: reconnects.append(1))
        events.look([b"%d" % (events.cursor + 1), *(await fields(events.cell))[1:]])
        assert events.due - time.monotonic() <= TICK_SECONDS
        await cell.say(turn, 1, body())
        assert (await anext(events)).type == "text_delta"
        events.look(await fields(events.cell))
        assert not reconnects


async def test_a_message_that_does_not_come_is_read_from_the_log_over_a_new_connection(
    cell, redis_url, monkeypatch
):
    turn = await cell.started("t1", "s")
    async with reading(redis_url, after=None) as events:
        reconnects = []
        monkeypatch.setattr(events._feed, "reconnect", lambda: reconnects.append(1))
        events._feed._connection._on_reply = lambda reply: None
        await cell.say(turn, 1, body())
        for _ in range(2):
            events.look(await fields(events.cell))
        assert reconnects == [1]
        assert (await anext(events)).type == "text_delta"


async def test_a_reader_with_events_of_the_log_to_give_misses_none(cell, redis_url, monkeypatch):
    turn = await cell.started("t1", "s")
    await cell.say(turn, 1, *[body() for _ in range(5)])
    async with reading(redis_url) as events:
        await anext(events)
        monkeypatch.setattr(events._feed, "reconnect", lambda: pytest.fail("it is not dead"))
        for _ in range(3):
            events.look(await fields(events.cell))


@pytest.mark.parametrize("after", [0, None])
async def test_a_session_that_is_deleted_in_silence_ends_its_readers(after, client, redis_url, monkeypatch):
    monkeypatch.setattr(subscription, "SILENCE_SECONDS", 0.05)
    turn = await client.submit("s", "x", queue="nowhere")
    await turn.cancel()
    async with reading(redis_url, after=after) as events:
        seen = []
        following = asyncio.create_task(_all(events, seen))
        await wait_until_async(lambda: events.cursor == 2, description="it has read everything")
        await events.cell.redis.delete(events.cell.keys.session("s"), events.cell.keys.events("s"))
        with pytest.raises(StreamGap, match="has ended"):
            await following
        assert len(seen) == (2 if after == 0 else 0)


async def _all(events, seen):
    async for event in events:
        seen.append(event)


@pytest.mark.parametrize("missed", [False, True])
async def test_what_could_not_be_looked_at_is_read_by_its_reader(
    missed, cell, redis_url, log_reads, monkeypatch
):
    turn = await cell.started("t1", "s")
    async with reading(redis_url, after=None) as events:
        reconnects = []
        monkeypatch.setattr(events._feed, "reconnect", lambda: reconnects.append(1))
        following = asyncio.create_task(anext(events))
        if missed:
            events._feed._connection._on_reply = lambda reply: None
            await cell.say(turn, 1, body())
        events.look(StoreUnavailable("It is away."))
        await wait_until_async(lambda: log_reads == ["s"], description="it reads the log")
        if missed:
            assert (await following).type == "text_delta"
        assert len(reconnects) == missed
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_new_reader_of_what_comes_reads_no_log(cell, redis_url, log_reads):
    turn = await cell.started("t1", "s")
    async with reading(redis_url, after=None) as events:
        await cell.say(turn, 1, body())
        assert (await anext(events)).type == "text_delta"
    assert log_reads == []
