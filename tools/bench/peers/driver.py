"""What a peer's module does when it is run: ``worker``, ``submit NUMBER PREFIX TEXT`` or ``wait NUMBER``.

``submit`` hands in turns and ends. ``wait`` hands in one after the other and prints how long each took, in ms, from
submit to the first delta on the session's channel; the first few, in which everything is imported, do not count.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from redis.asyncio import Redis

from bench.peers.work import ONE_CHUNK, live_channel

CONCURRENCY = 100
DELTA_TIMEOUT = 30.0
WARM_UP = 4

Submit = Callable[[str, str], Awaitable[Any]]


def redis_url() -> str:
    return os.environ["REDIS_URL"]


def drive(worker: Callable[[], Any], opened: Callable[[], Awaitable[Submit]]) -> None:
    """Do what the command line asks for; ``opened`` connects and gives the function that submits a turn."""
    match sys.argv[1:]:
        case ["worker"]:
            worker()
        case ["submit", number, prefix, text]:
            uvloop.run(_submit(opened, int(number), prefix, text))
        case ["wait", number]:
            uvloop.run(_wait(opened, int(number)))
        case _:
            raise SystemExit(__doc__)


async def _submit(opened: Callable[[], Awaitable[Submit]], number: int, prefix: str, text: str) -> None:
    submit = await opened()
    for index in range(number):
        await submit(f"{prefix}{index}", text)
    _leave({"submitted": number})


async def _wait(opened: Callable[[], Awaitable[Submit]], number: int) -> None:
    submit = await opened()
    times: list[float] = []
    async with Redis.from_url(redis_url()) as redis:
        for index in range(number + WARM_UP):
            session = f"wait-{time.time_ns()}-{index}"
            async with redis.pubsub() as channel:
                await channel.subscribe(live_channel(session))
                await channel.get_message(timeout=5)
                began = time.perf_counter()
                await submit(session, ONE_CHUNK)
                await _first_delta(channel)
                times.append((time.perf_counter() - began) * 1000)
    _leave({"first": times[WARM_UP:]})


async def _first_delta(channel: Any) -> None:
    async with asyncio.timeout(DELTA_TIMEOUT):
        while not await channel.get_message(ignore_subscribe_messages=True, timeout=1):
            continue


def _leave(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)
    os._exit(0)  # the libraries' own connections need no farewell
