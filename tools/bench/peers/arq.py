"""arq: asyncio, a job is a coroutine."""

import asyncio
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.driver import CONCURRENCY, Submit, drive, redis_url
from bench.peers.work import answer_async


async def turn(_context: Any, session: str, text: str) -> None:
    await answer_async(session, text)


async def opened() -> Submit:
    pool = await create_pool(RedisSettings.from_dsn(redis_url()))

    async def submit(session: str, text: str) -> None:
        await pool.enqueue_job("turn", session, text)

    return submit


def worker() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    settings = RedisSettings.from_dsn(redis_url())
    Worker([turn], redis_settings=settings, max_jobs=CONCURRENCY).run()  # type: ignore[list-item]


if __name__ == "__main__":
    drive(worker, opened)
