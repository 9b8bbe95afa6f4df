"""``python -m bench.feeder URL RATE``: submits turns at a steady rate until it is ended."""

import asyncio
import itertools
import sys
import time

import uvloop

from antiphon.client import AsyncClient
from bench.load import AGENT, ONE_CHUNK


async def feed(url: str, rate: float) -> None:
    async with AsyncClient(url) as client:
        began, name = time.perf_counter(), f"fed-{time.time_ns()}"
        print("feeding", flush=True)
        for number in itertools.count():
            ahead = began + number / rate - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            await client.submit(f"{name}-{number}", "hi", agent=AGENT, params=ONE_CHUNK)


if __name__ == "__main__":
    uvloop.run(feed(sys.argv[1], float(sys.argv[2])))
