"""Wakes tasks, as an event does, and takes no memory while none waits: most turns never wait."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes all tasks that wait for it. A task that waits later waits for the next time."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def give(self) -> None:
        """Wake the tasks that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait until it is given."""
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()
