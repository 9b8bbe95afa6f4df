"""The commands of a peer's module: ``worker``, ``submit``, ``wait`` or ``flow``, as ``drive`` describes."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import uvloop
from redis.asyncio import Redis

from bench.peers.work import ONE_CHUNK, live_channel

CONCURRENCY = 100
DELTA_TIMEOUT = 30.0
WARM_UP = 2
WAVES = 3
"""A measurement has at least this many times the turns that are in flight at once."""

Submit = Callable[[str, str], Awaitable[Any]]
"""Submits a turn of a session."""
Stream = Callable[[str, str], AsyncIterator[Any]]
"""Submits a turn of a session, and yields its deltas as its caller gets them, until it ends."""
Probe = Callable[[str], Awaitable[float]]
"""Runs a turn of a session, and returns the ms from submit to its first delta."""


def redis_url() -> str:
    return os.environ["REDIS_URL"]


def port() -> int:
    """Return the port of the peer's own server."""
    return int(os.environ["PEER_PORT"])


def claim() -> timedelta | None:
    """Return how long a worker may be silent before its jobs go to another one; None if this is not set."""
    seconds = os.environ.get("PEER_CLAIM")
    return timedelta(seconds=float(seconds)) if seconds else None


def drive(
    worker: Callable[[], Any],
    submitter: Callable[[], Awaitable[Submit]] | None = None,
    streamer: Callable[[], Awaitable[Stream]] | None = None,
) -> None:
    """Do what the command line asks for; ``submitter`` and ``streamer`` connect a caller.

    - ``worker`` runs until it is killed.
    - ``submit NUMBER PREFIX TEXT`` submits turns and ends.
    - ``wait NUMBER`` submits one turn after another, and prints how long each took to its first delta, in ms: on the
      channel of its session in Redis if the peer has no ``streamer``. The first few, during which everything is
      imported, do not count.
    - ``flow PROBES NUMBER`` does the same as ``wait``, then keeps up to ``CONCURRENCY`` turns in flight, and prints
      when the caller had read each to its end.
    """
    match sys.argv[1:]:
        case ["worker"]:
            worker()
        case ["submit", number, prefix, text] if submitter:
            uvloop.run(_submit(submitter, int(number), prefix, text))
        case ["wait", number] if streamer:
            uvloop.run(_wait(streamer, _probe_stream, int(number)))
        case ["wait", number] if submitter:
            uvloop.run(_wait(submitter, _probe_channel, int(number)))
        case ["flow", probes, number] if streamer:
            uvloop.run(_flow(streamer, int(probes), int(number)))
        case _:
            raise SystemExit(drive.__doc__)


async def _submit(submitter: Callable[[], Awaitable[Submit]], number: int, prefix: str, text: str) -> None:
    submit = await submitter()
    for index in range(number):
        await submit(f"{prefix}{index}", text)
    _leave({"submitted": number})


async def _wait(opened: Callable[[], Awaitable[Any]], probe: Callable[[Any], Probe], number: int) -> None:
    _leave({"first": await _first(probe(await opened()), number)})


async def _flow(streamer: Callable[[], Awaitable[Stream]], probes: int, number: int) -> None:
    stream = await streamer()
    first = await _first(_probe_stream(stream), probes)
    ends: list[float] = []

    hands = max(1, min(CONCURRENCY, number // WAVES))

    async def some(begin: int) -> None:
        for index in range(begin, number, hands):
            deltas = [delta async for delta in stream(f"turn-{index}", ONE_CHUNK)]
            if not deltas:
                raise RuntimeError(f"turn-{index} has ended without a delta")
            ends.append(time.time())

    await asyncio.gather(*[some(begin) for begin in range(hands)])
    _leave({"first": first, "ends": ends})


async def _first(probe: Probe, number: int) -> list[float]:
    rounds = number + WARM_UP if number else 0
    times = [await probe(f"wait-{time.time_ns()}-{index}") for index in range(rounds)]
    return times[WARM_UP:]


def _probe_stream(stream: Stream) -> Probe:
    async def probe(session: str) -> float:
        began = time.perf_counter()
        async with asyncio.timeout(DELTA_TIMEOUT), aclosing(stream(session, ONE_CHUNK)) as deltas:
            await anext(deltas)
            took = time.perf_counter() - began
            async for _ in deltas:
                pass
        return took * 1000

    return probe


def _probe_channel(submit: Submit) -> Probe:
    redis = Redis.from_url(redis_url())

    async def probe(session: str) -> float:
        async with redis.pubsub() as channel:
            await channel.subscribe(live_channel(session))
            await channel.get_message(timeout=5)
            began = time.perf_counter()
            await submit(session, ONE_CHUNK)
            await _first_delta(channel)
            return (time.perf_counter() - began) * 1000

    return probe


async def _first_delta(channel: Any) -> None:
    async with asyncio.timeout(DELTA_TIMEOUT):
        while not await channel.get_message(ignore_subscribe_messages=True, timeout=1):
            continue


def _leave(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)
    os._exit(0)  # skip closing the libraries' own connections
