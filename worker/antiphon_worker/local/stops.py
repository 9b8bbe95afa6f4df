"""Stops the part of a local turn that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from antiphon.input.values import Keep


class StoppedError(Exception):
    """The turn is to be cancelled."""

    def __init__(self, reason: str, keep: Keep) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keep: Keep = keep


def canceller(task: asyncio.Task[Any]) -> Callable[[], None]:
    """Return a function that cancels the task from any thread."""
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            loop.call_soon_threadsafe(task.cancel)

    return cancel


async def end(loop: asyncio.Task[Any]) -> None:
    """Cancel the loop, and wait for its cleanup."""
    loop.cancel()
    await asyncio.wait([loop])
    if not loop.cancelled():
        loop.exception()  # marks the exception as retrieved: it was raised above, or the caller has left
