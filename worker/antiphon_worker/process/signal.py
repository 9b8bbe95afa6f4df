"""Wakes tasks like an ``asyncio.Event``, but uses no memory while no task waits: most turns never wait."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes all waiting tasks. A task that starts to wait later waits for the next signal."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def give(self) -> None:
        """Wake the tasks that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next signal."""
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()
