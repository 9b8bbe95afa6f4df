"""Erases turns of deleted sessions that these no longer listed. Several erasers do no harm."""

from __future__ import annotations

import asyncio
import logging

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.editing import erase_turns

log = logging.getLogger("antiphon.eraser")

PAUSE_SECONDS = 5.0


class Eraser:
    """Asks every few seconds whether all keys are to be searched."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    async def run(self) -> None:
        """Erase until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                if count := await erase_turns(self._cell, if_due=True):
                    log.info(
                        "%d turns of deleted sessions were erased", count, extra={"action": "turns_erased"}
                    )
            except StoreError as exc:
                if not exc.retryable:
                    raise
                continue  # the consumer logs the error
