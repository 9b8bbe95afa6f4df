"""The end of a gateway process: open streams and waiting requests are told, and end before it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["Stopping"]

T = TypeVar("T")


class Stopping:
    """Whether this gateway drains. It belongs to one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def begin(self) -> None:
        """Let every stream end at its cursor, and every request answer that waits for a turn."""
        self._event.set()

    @property
    def began(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def first(self, work: Awaitable[T], seconds: float) -> T | None:
        """Return what ``work`` returns, or None if it takes longer than ``seconds`` or the gateway drains first."""
        task, drains = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait([task, drains], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            drains.cancel()
            await asyncio.gather(task, drains, return_exceptions=True)
