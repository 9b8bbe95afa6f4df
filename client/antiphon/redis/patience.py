"""Reads again while Redis is unreachable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.errors import StoreUnavailable
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import LiveFeed

__all__ = ["Patience"]

T = TypeVar("T")
log = logging.getLogger("antiphon.subscribe")

OUTAGE_RETRY_SECONDS = 1.0
REACH_SECONDS = 10.0


class Patience:
    """Waits for a Redis that is away, for one reader. ``reader`` names it in the log, ``where`` is its session.

    ``heard`` is when the reader last heard of Redis; the reader writes it.
    """

    def __init__(self, cell: Cell, feed: LiveFeed, reader: str, where: str | None = None) -> None:
        self._cell = cell
        self._feed = feed
        self._reader = reader
        self._where = where
        self._lost_at = 0.0  # since when Redis is away
        self.begin()

    def begin(self) -> None:
        """The reader begins to read now."""
        self._began = self.heard = time.monotonic()

    def left(self, seconds: float) -> float:
        """Seconds until it has been silent for too long, however often somebody has stopped waiting meanwhile."""
        return max(0.0, self.heard + seconds - time.monotonic())

    async def __call__(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read; while Redis is unreachable, log it once and try again.

        Raises ``ClientClosed`` if the client was closed, because a closed client opens no connections, and
        ``StoreUnavailable`` if it has never reached Redis.
        """
        while True:
            self._feed.check_open()
            try:
                found = await read()
            except StoreUnavailable as exc:
                self._check_reached(exc)
                if not self._lost_at:
                    self._lost_at = time.monotonic()
                    log.warning("%s: %s Trying again.", self._reader, exc)
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)
                continue
            if self._lost_at:
                away, self._lost_at = time.monotonic() - self._lost_at, 0.0
                log.info("%s: Redis is back after %.1f s", self._reader, away)
            return found

    def _check_reached(self, exc: StoreUnavailable) -> None:
        reached = self._feed.reached or getattr(self._cell.redis, "reached", True)
        if not reached and time.monotonic() - self._began >= REACH_SECONDS:
            raise StoreUnavailable(
                f"{exc} This client has never reached it, and has tried for {REACH_SECONDS:g} s: check the URL, and "
                "whether Redis runs.",
                session_id=self._where,
            ) from exc
