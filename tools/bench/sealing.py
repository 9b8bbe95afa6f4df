"""What encryption at rest costs: the same worker with keys and without, in turn, on one server.

Run it with ``PYTHONPATH=tools:tests python -m bench.sealing``. Each round plays turns one after the other for the first
delta, and many at once for the rate. The answers are scripted, without a pause.
"""

import asyncio
import os
import statistics
import time
from typing import Any

from redis import Redis
from support.here import running_worker
from support.servers import RedisServer

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.encryption import KEYS_VARIABLE, new_key

ROUNDS, ALONE, TOGETHER, WORDS = 3, 100, 400, 50
AGENT = Agent(provider="scripted", model="any", script=[" ".join(f"word{n}" for n in range(WORDS))])


async def measured(url: str) -> dict[str, float]:
    """The ms to the first delta (p50), turns a second, and bytes of an event with a delta in the log."""
    with Redis.from_url(url) as redis:
        redis.flushall()
        async with AsyncClient(url) as client, running_worker(url, concurrency=200):
            waits = [await _first_delta(client, f"alone-{n}") for n in range(ALONE)]
            began = time.perf_counter()
            turns = [await client.submit(f"many-{n}", "Hello", agent=AGENT) for n in range(TOGETHER)]
            await asyncio.gather(*(turn.result(timeout=120) for turn in turns))
            rate = TOGETHER / (time.perf_counter() - began)
        entries: Any = redis.xrange("ant:events:alone-0")
        deltas = [len(fields[b"e"]) for _, fields in entries if b'"text_delta"' in fields[b"e"]]
    return {"first": statistics.median(waits) * 1000, "rate": rate, "bytes": statistics.mean(deltas)}


async def _first_delta(client: AsyncClient, session: str) -> float:
    began = time.perf_counter()
    turn = await client.submit(session, "Hello", agent=AGENT)
    found = 0.0
    async for event in turn.stream():
        if event.type == "text_delta" and not found:
            found = time.perf_counter() - began
    return found


def main() -> None:
    """Print the medians of all rounds."""
    found: dict[str, list[dict[str, float]]] = {"without keys": [], "with keys": []}
    with RedisServer() as server:
        for _ in range(ROUNDS):
            for name, rounds in found.items():
                os.environ[KEYS_VARIABLE] = new_key("k1") if name == "with keys" else ""
                rounds.append(asyncio.run(measured(server.url)))
    print("| | first delta, p50 | turns/s | bytes of an event with a delta |\n|---|---|---|---|")
    for name, rounds in found.items():
        first, rate, size = (
            statistics.median(one[what] for one in rounds) for what in ("first", "rate", "bytes")
        )
        print(f"| {name} | {first:.2f} ms | {rate:.0f} | {size:.0f} |")


if __name__ == "__main__":
    main()
