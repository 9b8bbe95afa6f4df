"""docket: asyncio on Redis streams, a job is a coroutine."""

from __future__ import annotations

import uvloop
from docket import Docket, Worker

from bench.peers.driver import CONCURRENCY, Submit, drive, redis_url
from bench.peers.work import answer_async


async def opened() -> Submit:
    docket = await Docket(name="bench", url=redis_url()).__aenter__()
    docket.register(answer_async)

    async def submit(session: str, text: str) -> None:
        await docket.add(answer_async)(session, text)

    return submit


async def work() -> None:
    async with Docket(name="bench", url=redis_url()) as docket:
        docket.register(answer_async)
        async with Worker(docket, concurrency=CONCURRENCY) as running:
            await running.run_forever()


def worker() -> None:
    uvloop.run(work())


if __name__ == "__main__":
    drive(worker, opened)
