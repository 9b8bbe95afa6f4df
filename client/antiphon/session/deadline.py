"""Until when a caller waits for a turn that it owns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from antiphon.errors import AgentError, TurnFailed

__all__ = ["Deadline"]

T = TypeVar("T")

END_SECONDS = (
    0.5  # a turn at work ends itself at its time-out, and says so in its terminal event: time for that
)


class Deadline:
    """The end of a time-out, counted from now; without seconds there is none."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + (seconds or 0)

    async def wait(self, work: Awaitable[T], *, at_work: bool = False) -> T:
        """Await this, and cancel it at the deadline. Raises ``TurnFailed`` as of a turn that timed out."""
        if self._seconds is None:
            return await work
        left = max(self._at - time.monotonic(), 0)
        timer = asyncio.timeout(left + END_SECONDS * at_work)
        try:
            async with timer:
                return await work
        except TimeoutError as exc:
            if isinstance(exc, AgentError) or not timer.expired():
                raise  # the work's own, not the timer's
            raise TurnFailed(
                f"The turn did not end within {self._seconds:g} s.", code="turn_timed_out"
            ) from exc
