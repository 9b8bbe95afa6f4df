"""Waits for a change although its caller is cancelled: what it has done is known, and is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["outcome_of"]

T = TypeVar("T")


async def outcome_of(change: Coroutine[Any, Any, T]) -> T:
    """Return the result of a change. A cancellation meanwhile is raised when the change has ended."""
    task = asyncio.ensure_future(change)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = cancelled or exc
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
