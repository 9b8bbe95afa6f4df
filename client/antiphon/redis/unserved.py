"""A warning for callers that wait for a turn in a queue that no worker serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress

from antiphon.errors import StoreError
from antiphon.input.ids import TurnId
from antiphon.wire.cell import Cell
from antiphon.wire.lists import inspection

log = logging.getLogger("antiphon.unserved")

FIRST_LOOK_SECONDS = 3.0
LOOK_SECONDS = 30.0


@contextmanager
def watched(cell: Cell, turn_id: TurnId) -> Generator[None]:
    """Within the context, log one warning if no worker serves the turn's queue. Short waits are not checked."""
    if not cell.has_disk:  # turns of this process wait for no worker
        yield
        return
    loop, looking = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    timer = loop.call_later(
        FIRST_LOOK_SECONDS, lambda: looking.add(loop.create_task(warn_if_unserved(cell, turn_id)))
    )
    try:
        yield
    finally:
        timer.cancel()
        for task in looking:
            task.cancel()


async def warn_if_unserved(cell: Cell, turn_id: TurnId) -> None:
    """Check periodically, until the turn begins, whether a worker serves its queue; log one warning if none does.

    The turn stays in its queue, because a worker may start later.
    """
    while True:
        with suppress(StoreError):  # the caller learns of it in other ways
            complaint = await inspection.unserved(cell, turn_id)
            if complaint:
                log.warning("%s", complaint, extra={"action": "turn_unserved", "turn": turn_id})
            if complaint != "":
                return
        await asyncio.sleep(LOOK_SECONDS)
