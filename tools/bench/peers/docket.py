"""docket: asyncio on Redis streams, a job is a coroutine."""

import uvloop
from docket import Docket, Worker

from bench.peers.driver import CONCURRENCY, Submit, claim, drive, redis_url
from bench.peers.work import answer_async

POOLED = f"{redis_url()}?max_connections=1000"
"""redis-py's default limit of 100 connections is too low for docket with 100 jobs at once: its worker would end."""


async def opened() -> Submit:
    docket = await Docket(name="bench", url=POOLED).__aenter__()
    docket.register(answer_async)

    async def submit(session: str, text: str) -> None:
        await docket.add(answer_async)(session, text)

    return submit


async def work() -> None:
    async with Docket(name="bench", url=POOLED) as docket:
        docket.register(answer_async)
        claimed = {"redelivery_timeout": claim()} if claim() else {}
        async with Worker(docket, concurrency=CONCURRENCY, **claimed) as running:
            await running.run_forever()


def worker() -> None:
    uvloop.run(work())


if __name__ == "__main__":
    drive(worker, opened)
