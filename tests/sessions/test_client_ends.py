"""What a client's end does to those who still use it: readers of a closed one."""

from __future__ import annotations

import asyncio
import threading

import pytest
from redis import Redis
from support.eventually import wait_until, wait_until_async

from antiphon import AsyncClient, Client
from antiphon.errors import ClientClosed

pytestmark = pytest.mark.one_server


def listens(url, session="s"):
    """Whether anybody listens to the session's live channel."""
    with Redis.from_url(url) as redis:
        return dict(redis.pubsub_numsub(f"ant:live:0:{session}"))[f"ant:live:0:{session}".encode()] == 1


def outcome_of(work):
    """Run it in a thread; the list gets how it ended."""
    ended = []

    def run():
        try:
            ended.append(work())
        except BaseException as exc:  # noqa: BLE001 - it is what the test looks at
            ended.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


READERS = {
    "subscribe": lambda client: list(client.subscribe("s", after=0)),
    "result": lambda client: client.submit("s", "x", queue="nowhere").result(),
    "stream": lambda client: list(client.submit("s", "x", queue="nowhere").stream()),
    "as_completed": lambda client: list(client.as_completed([client.submit("s", "x", queue="nowhere")])),
}


@pytest.mark.parametrize("read", READERS)
def test_readers_of_a_client_that_is_closed_are_told(read, redis_url):
    client = Client(redis_url)
    thread, ended = outcome_of(lambda: READERS[read](client))
    wait_until(lambda: listens(redis_url), description="the reader listens")
    client.close()
    thread.join(10)
    assert [type(one) for one in ended] == [ClientClosed]
    for turn in (other := Client(redis_url)).turns("s"):
        turn.cancel()
    other.close()


async def test_readers_of_an_asynchronous_client_that_is_closed_are_told(redis_url):
    client = AsyncClient(redis_url)

    async def read():
        return [event async for event in client.subscribe("s")]

    reader = asyncio.create_task(read())
    await wait_until_async(lambda: listens(redis_url), description="the reader listens")
    await client.aclose()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(reader, 10)


async def test_a_subscription_that_waits_for_redis_ends_with_its_client():
    """It waits for a Redis that is away; a closed client must not connect again."""
    client = AsyncClient("redis://localhost:1/0")

    async def read():
        return [event async for event in client.subscribe("s", after=0)]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(reader, 10)
