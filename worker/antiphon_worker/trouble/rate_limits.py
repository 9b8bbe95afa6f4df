"""The gate of a worker's model calls: what one worker hears of a rate limit slows all that share it.

While no limit is known, a call costs nothing. A worker learns of one from its own services, or from the channel on
which the worker that met it says so. Then each call of that model and key asks the bucket in Redis when it may start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container
from contextlib import suppress

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.limiting import admit, limit
from antiphon_worker.providers.http.limits import HeldBack, Pressure

__all__ = ["AskedLimits", "RateLimits"]

log = logging.getLogger("antiphon.limits")

BRIEF_SECONDS = 1.0
"""So long a turn waits in its place. One that must wait longer is given back, and its place is free for another."""
MOST_SCOPES = 1_000
LONGEST_MS = 3_600_000.0
SILENCE_SECONDS = 3600.0
REFUSED_SECONDS = 60.0


class _All:
    """Contains every scope."""

    def __contains__(self, scope: object) -> bool:
        return True


class RateLimits:
    """The ``Gate`` of one worker process, and what it knows of limits."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.known: dict[str, float] = {}  # scopes with a bucket, and when it is gone at the latest

    async def run(self, feed: LiveFeed) -> None:
        """Hear of limits that other workers meet, until cancelled."""
        while True:
            try:
                await self._listen(feed)
            except StoreError as exc:
                log.warning("rate limits that other workers meet cannot be heard: %s", exc)
            await asyncio.sleep(REFUSED_SECONDS)

    async def enter(self, scope: str) -> None:
        """Return when a call may start. Raises ``HeldBack`` if that takes longer than a moment."""
        waited = 0.0
        while (until := self.known.get(scope)) is not None and time.monotonic() < until:
            try:
                ms = await admit(self._cell, scope)
            except StoreError:
                return  # a bucket is advice
            if ms == 0:
                return
            if ms is None:
                break
            if waited + ms / 1000 > BRIEF_SECONDS:
                name = scope.rpartition("/")[0]
                raise HeldBack(
                    f"The service limits the calls of {name}, as another call was told: this one waits "
                    f"{ms / 1000:.1f} s. Wait, or ask the service for a higher limit.",
                    retry_after=ms / 1000,
                )
            await asyncio.sleep(ms / 1000)
            waited += ms / 1000
        self.known.pop(scope, None)

    async def heard(self, scope: str, pressure: Pressure) -> None:
        """Slow all workers of the cell down."""
        with suppress(StoreError):
            lasts = await limit(self._cell, scope, int(pressure.wait * 1000), pressure.gap * 1000)
            self.know(scope, lasts)
            log.info(
                "rate limit of %s: no call for %.1f s", scope.rpartition("/")[0], pressure.wait,
                extra={"action": "rate_limited"},
            )  # fmt: skip

    async def _listen(self, feed: LiveFeed) -> None:
        async with feed.listen(self._cell.keys.buckets(self._cell.database)) as listener:
            while True:
                try:
                    message = await listener.get(SILENCE_SECONDS)
                except TimeoutError:
                    continue
                with suppress(ValueError):  # whoever may publish here can say anything
                    ms, scope = message.decode().split(" ", 1)
                    self.know(scope, min(float(ms), LONGEST_MS))

    def know(self, scope: str, ms: float) -> None:
        """There may be a bucket of this scope for so long: calls ask it."""
        if len(self.known) >= MOST_SCOPES:
            self.known.clear()  # they are heard of again
        self.known[scope] = time.monotonic() + ms / 1000


class AskedLimits:
    """The ``Gate`` of a process that runs one turn: it hears of no limit, so that each call asks the bucket."""

    known: Container[str] = _All()

    def __init__(self, cell: Cell) -> None:
        self._limits = RateLimits(cell)

    async def enter(self, scope: str) -> None:
        """Return when a call may start, or raise ``HeldBack``."""
        self._limits.know(scope, LONGEST_MS)
        await self._limits.enter(scope)

    async def heard(self, scope: str, pressure: Pressure) -> None:
        """Slow all workers of the cell down."""
        await self._limits.heard(scope, pressure)
