"""What a stream through the gateway costs, in bytes and calls."""

import asyncio
from contextlib import ExitStack

import pytest
from bench.speaker import PUBLISH
from redis import Redis
from support.calls import counted_calls
from support.eventually import wait_until_async
from support.gateway import open_gateway
from support.memory_use import bytes_of_idle_streams, measured
from support.raw_streams import heard, opened

from antiphon.input.ids import SessionId
from antiphon.wire.keys import Keys
from antiphon_gateway import Gateway
from antiphon_gateway.settings import Limits

# What a stream takes on which nothing happens, and the calls of functions from a message of Redis to the response.
MOST_BYTES_AN_IDLE_STREAM, MOST_CALLS_AN_EVENT = 11_400, 53
HEARD = b'"text":"word"'


@pytest.fixture
def sockets():
    with ExitStack() as stack:
        yield stack


def test_an_idle_stream_takes_little_memory(redis_url):
    assert measured(bytes_of_idle_streams, redis_url) <= MOST_BYTES_AN_IDLE_STREAM


@pytest.mark.lasting_keys("ant:*")
async def test_an_event_reaches_its_streams_in_few_calls(redis_url, redis, sockets):
    number, rounds = 50, 4
    sessions = [f"s{n}" for n in range(number)]
    async with open_gateway(redis_url, limits=Limits(rate=10_000)) as (api, app):
        streams = await asyncio.to_thread(opened, sockets, api.url, sessions)

        def say(seq: int) -> None:
            """Publish an event in each session, and wait until all have come."""
            for session in sessions:
                said(redis, session, seq)
            for stream in streams:
                heard(stream, HEARD)

        await asyncio.to_thread(say, 1)
        with counted_calls() as calls:
            for seq in range(rounds):
                await asyncio.to_thread(say, seq + 2)
        await closed(sockets, app)
    assert calls() / number / rounds <= MOST_CALLS_AN_EVENT


async def closed(sockets: ExitStack, app: Gateway) -> None:
    """Leave all streams, which end at once although nothing is sent."""
    sockets.close()
    await wait_until_async(lambda: app.streams == 0, description="the gateway notices that its readers left")


def said(redis: Redis, session: str, seq: int) -> None:
    keys, name = Keys(), SessionId(session)
    event = b'{"seq":%d,"at":1,"type":"text_delta","session_id":"%b",%b}' % (seq, session.encode(), HEARD)
    redis.eval(PUBLISH, 0, keys.session(name), keys.events(name), keys.live(0, name), seq, event)
