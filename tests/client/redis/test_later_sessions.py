"""A reader of one session sees nothing of a later session with the same id (G15)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from support.eventually import wait_until_async

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import StreamGap, WrongTenant
from antiphon.wire.scripts import HASH_LIVES_ON_MS

pytestmark = pytest.mark.one_server

AGENT = Agent("scripted", "any", name="parrot")
S = "user-123"


@asynccontextmanager
async def opened(redis_url, tenant, *, empty):
    """A client and its Redis, with a session that has no event, or some."""
    async with AsyncClient(redis_url) as client, Redis.from_url(redis_url) as redis:
        await client.session(S, tenant=tenant).set_metadata({"of": "the former one"})
        if not empty:
            await (await client.submit(S, "words of the former one", agent=AGENT, tenant=tenant)).cancel()
        yield client, redis
        for turn in await redis.lrange(f"ant:inbox:{S}", 0, -1):
            await (await client.turn(turn.decode())).cancel()


async def deleted(client, redis):
    await client.session(S).delete()


async def expired(client, redis):
    """All but its hash, which keeps the seq for an hour."""
    await redis.delete(*(f"ant:{kind}:{S}" for kind in ("history", "events", "turns")))
    await redis.pexpire(f"ant:session:{S}", HASH_LIVES_ON_MS // 2)


async def gone(client, redis):
    """An hour after it expired."""
    await redis.delete(*(f"ant:{kind}:{S}" for kind in ("session", "history", "events", "turns")))


ENDS = pytest.mark.parametrize("end", [deleted, expired, gone])


@asynccontextmanager
async def reading(client, after, tenant):
    """A reader, and all that it is given."""
    found, events = [], client.subscribe(S, after, tenant=tenant)
    await events.start()

    async def read():
        async for event in events:
            found.append(event)  # noqa: PERF401 - what came before an error counts

    task = asyncio.create_task(read())
    await wait_until_async(lambda: not events._behind, 10, "it has read the log")
    try:
        yield found, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await events.aclose()


@ENDS
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "with events"])
@pytest.mark.parametrize("after", [None, 0, "newest"])
@pytest.mark.parametrize("tenant", [None, "b"])
async def test_a_reader_sees_nothing_of_a_later_session(redis_url, end, empty, after, tenant):
    async with opened(redis_url, tenant, empty=empty) as (client, redis):
        if after == "newest":
            after = (await client.snapshot(S)).cursor
        async with reading(client, after, tenant) as (found, task):
            await end(client, redis)
            await client.submit(S, "a secret of the later one", agent=AGENT, tenant="a" if tenant else None)
            await wait_until_async(task.done, 20, "the reader ends")
            assert isinstance(task.exception(), StreamGap | WrongTenant)
            assert "secret" not in repr(found)
