"""Erases remains of deleted and expired sessions: turns that they no longer listed, and contents of their files."""

from __future__ import annotations

import asyncio
import logging
import time

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.editing import erase_turns
from antiphon.wire.errors import asked
from antiphon.wire.placed import store_of, sweep

log = logging.getLogger("antiphon.eraser")

PAUSE_SECONDS = 5.0
SWEEP_SECONDS = 3600
ASK_SECONDS = 60.0


class Eraser:
    """Checks every few seconds whether all keys must be searched, and sweeps the byte store once an hour.

    Several erasers may run. The byte store of a cell is swept by one worker at a time.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._sweep_at = 0.0

    async def run(self) -> None:
        """Erase until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await self._erase()
                await self._sweep()
            except StoreError as exc:
                if not exc.retryable:
                    raise
                continue  # the consumer logs the error

    async def _erase(self) -> None:
        if count := await erase_turns(self._cell, if_due=True):
            log.info("%d turns of deleted sessions were erased", count, extra={"action": "turns_erased"})

    async def _sweep(self) -> None:
        if time.monotonic() < self._sweep_at or store_of(self._cell) is None:
            return
        self._sweep_at = time.monotonic() + ASK_SECONDS
        if not await asked(self._cell.redis.set(self._cell.keys.swept, "1", nx=True, ex=SWEEP_SECONDS)):
            return
        if count := await sweep(self._cell):
            log.info(
                "%d contents without a file were removed from the byte store", count,
                extra={"action": "files_swept"},
            )  # fmt: skip
