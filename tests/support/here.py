"""A worker in the test's own process, with nothing but what the package brings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon_worker.app import App
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings


@asynccontextmanager
async def running_worker(url: str, app: App | None = None, **settings: Any) -> AsyncIterator[Worker]:
    """Stopped at the end as by SIGTERM."""
    worker = Worker(Settings(redis_url=url, drain=5.0, **settings), app or App())
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        await running
