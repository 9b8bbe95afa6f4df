"""Hands back the turns of a dead process, so that they start elsewhere at once and not when the leases expire."""

from __future__ import annotations

import logging

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon_worker.settings import Settings

__all__ = ["LOOP_STALLED", "WORKER_DIED", "hand_back"]

log = logging.getLogger("antiphon.supervisor")

WORKER_DIED = ("worker_died", "The worker died.")
LOOP_STALLED = ("loop_stalled", "The event loop of its worker stood still.")


async def hand_back(cell: Cell, name: str, settings: Settings, cause: tuple[str, str]) -> int:
    """Hand back all turns of the dead process of this name, and close the cell.

    ``cause`` says how the process ended, as a code and a sentence. Returns the number of turns, or 0 if Redis cannot be
    reached; then their leases have to expire.
    """
    code, reason = cause
    try:
        acts = await cell.reap(
            holder=name, crash_limit=settings.crash_limit, queues=settings.queues, code=code, reason=reason
        )
    except StoreError as exc:
        log.warning("the turns of worker %s wait for their leases to expire: %s", name, exc)
        return 0
    finally:
        await cell.redis.aclose()
    turns = f": {', '.join(act.turn_id for act in acts)}" if acts else ""
    log.info(
        "%d turns of worker %s are handed back%s", len(acts), name, turns, extra={"action": "handed_back"}
    )
    return len(acts)
