"""A worker in the test's own process, with only what the package includes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.eventually import wait_until_async

from antiphon.wire.lists.agents import advertised
from antiphon_worker.app import App
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings


@asynccontextmanager
async def running_worker(
    url: str, app: App | None = None, *, at_once: bool = False, **settings: Any
) -> AsyncIterator[Worker]:
    """Yield a worker once every client can see it, or immediately if ``at_once``; stop it as by SIGTERM."""
    worker = Worker(Settings(redis_url=url, drain=5.0, **settings), app or App())
    running = asyncio.create_task(worker.run())
    try:
        if not at_once:
            await _known(worker, running)
        yield worker
    finally:
        worker.drain()
        await running


async def _known(worker: Worker, running: asyncio.Task[None]) -> None:
    """Return once the worker is advertised and hears commands, or has stopped."""
    cell = worker._open_cell()

    async def so() -> bool:
        if running.done():
            return True
        [(_, ears)] = await cell.redis.pubsub_numsub(cell.keys.control(worker.name))
        return ears == 1 and worker.name in await advertised(cell)

    try:
        await wait_until_async(so, 30, f"{worker.name} is advertised and hears commands")
    finally:
        await cell.redis.aclose()
