"""Submits the turns of due schedules. Schedulers of several workers do not interfere."""

from __future__ import annotations

import asyncio
import logging

from antiphon.errors import StoreError
from antiphon.redis.schedules import DueSchedules
from antiphon.wire.cell import Cell

log = logging.getLogger("antiphon.schedules")

PAUSE_SECONDS = 1.0


class Scheduler:
    """Checks for due schedules once a second."""

    def __init__(self, cell: Cell) -> None:
        self._due = DueSchedules(cell)

    async def run(self) -> None:
        """Submit until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                if count := await self._due.submit():
                    log.info("%d scheduled turns were submitted", count, extra={"action": "schedules_due"})
            except StoreError as exc:
                if not exc.retryable:
                    raise
                continue  # the consumer logs the error
