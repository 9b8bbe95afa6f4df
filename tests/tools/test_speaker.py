"""The benchmark's speaker publishes events as workers do: a reader must not need more for them."""

import asyncio

import pytest
from bench.counting import CountingProxy
from bench.speaker import speak

from antiphon.client import AsyncClient

pytestmark = pytest.mark.one_server


async def test_events_of_the_speaker_are_followed_without_the_log(redis_url, redis):
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with CountingProxy(port) as way:
        async with AsyncClient(way.url) as client, client.subscribe("live-0", 0) as events:
            speaking = asyncio.create_task(speak(redis_url, 1, 200, 1.0))
            first = await anext(events)
            way.reset()
            seen = [(await anext(events)).seq for _ in range(50)]
            await speaking
    redis.flushall()  # the speaker's keys have no time to live
    assert seen == list(range(first.seq + 1, first.seq + 51))
    assert way.requests <= 5
