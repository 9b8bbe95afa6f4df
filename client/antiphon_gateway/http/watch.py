"""One look a second at all open streams: whose reader takes nothing, and where nothing was said for long.

A stream costs no timer of its own, and an event none at all.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Watch", "Watched"]

LOOK_SECONDS = 1.0


class Watched(Protocol):
    """An open stream."""

    def look(self, now: float) -> None:
        """Do what is due at this time of ``time.monotonic``."""
        ...

    def end(self) -> None:
        """End at the cursor: the reader goes on at another gateway."""
        ...


class Watch:
    """The open streams of one event loop."""

    def __init__(self) -> None:
        self._streams: set[Watched] = set()
        self._next: asyncio.TimerHandle | None = None
        self._over = False

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Watched) -> None:
        """Look at a stream from now on. One that comes when all were ended is ended."""
        self._streams.add(stream)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        if self._over:
            stream.end()

    def discard(self, stream: Watched) -> None:
        self._streams.discard(stream)
        if not self._streams and self._next is not None:
            self._next.cancel()
            self._next = None

    def end(self) -> None:
        """End all streams, and those that come."""
        self._over = True
        for stream in list(self._streams):
            stream.end()

    def _look(self) -> None:
        self._next = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        now = time.monotonic()
        for stream in list(self._streams):
            stream.look(now)
