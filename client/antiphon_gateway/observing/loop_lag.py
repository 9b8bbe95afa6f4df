"""How late the event loop of a gateway is: measured once a second, for metrics and health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

EVERY_SECONDS = 1.0
STUCK_SECONDS = 15.0


class LoopLag:
    """Measures the lag of the running event loop. It may be read from any thread."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._due = time.monotonic()

    @property
    def seconds(self) -> float:
        """How late the last measurement was, or how late the next one already is."""
        return max(self._seconds, time.monotonic() - self._due, 0.0)

    @contextmanager
    def watched(self) -> Generator[None]:
        """Measure the lag while the context is open."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            now = time.monotonic()
            self._seconds, self._due = max(now - self._due, 0.0), now + EVERY_SECONDS
            timer = loop.call_later(EVERY_SECONDS, look)

        self._due = time.monotonic() + EVERY_SECONDS
        timer = loop.call_later(EVERY_SECONDS, look)
        try:
            yield
        finally:
            timer.cancel()
