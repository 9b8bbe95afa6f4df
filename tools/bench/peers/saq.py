"""SAQ: asyncio, a job is a coroutine."""

from typing import Any

import uvloop
from saq import Queue, Worker

from bench.peers.driver import CONCURRENCY, Submit, drive, redis_url
from bench.peers.work import answer_async


async def turn(_context: Any, *, session: str, text: str) -> None:
    await answer_async(session, text)


async def opened() -> Submit:
    queue = Queue.from_url(redis_url(), name="bench")
    await queue.connect()

    async def submit(session: str, text: str) -> None:
        await queue.enqueue("turn", session=session, text=text)

    return submit


async def work() -> None:
    queue = Queue.from_url(redis_url(), name="bench")
    await queue.connect()
    await Worker(queue, [turn], concurrency=CONCURRENCY).start()


def worker() -> None:
    uvloop.run(work())


if __name__ == "__main__":
    drive(worker, opened)
