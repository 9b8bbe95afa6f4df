"""Telling whoever waits for a turn that no worker serves its queue."""

from __future__ import annotations

import asyncio
import logging

from antiphon.errors import StoreError
from antiphon.input.ids import TurnId
from antiphon.wire import inspection as overview
from antiphon.wire.cell import Cell

__all__ = ["warn_if_unserved"]

log = logging.getLogger("antiphon.unserved")

FIRST_LOOK_SECONDS = 3.0
LOOK_SECONDS = 30.0


async def warn_if_unserved(cell: Cell, turn_id: TurnId) -> None:
    """Look now and then whether a worker may take the turn, and log one warning where none will; until cancelled.

    The turn stays where it is: workers may be on their way.
    """
    pause = FIRST_LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = LOOK_SECONDS
        try:
            complaint = await overview.unserved(cell, turn_id)
        except StoreError:
            continue  # whoever waits hears of it by other ways
        if complaint:
            log.warning("%s", complaint, extra={"action": "turn_unserved", "turn": turn_id})
            return
