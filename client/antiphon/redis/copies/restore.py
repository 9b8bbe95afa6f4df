"""Restores the archived copy of a session that begins anew: before its next turn, or before an edit that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from antiphon.errors import StoreUnavailable
from antiphon.input.ids import Fence, SessionId
from antiphon.redis.copies.restoration import restoration
from antiphon.redis.edits import found_in
from antiphon.session.runtime import SessionRef
from antiphon.wire.archiving import Restored, is_deleted, restore_session
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Change, change_session, new_op

__all__ = ["bring_back", "restore"]

Load: TypeAlias = Callable[[str], Awaitable[dict[str, Any] | None]]

TRIES = 50
PAUSE_SECONDS = 0.1


async def restore(
    cell: Cell, load: Load, session_id: SessionId, fence: Fence | None = None
) -> Restored | None:
    """Insert the archived part of a session before its present one, once in its life. Returns None if there is none.

    ``load`` reads the archive. ``fence`` is the holder's; without it, the session must have no holder. Raises what
    ``load`` raises, ``CorruptRecord`` if the archived copy cannot be read, and Redis' ``StoreError``.
    """
    found = await found_in(cell, session_id)
    data = await load(found.text("origin") or session_id)
    for _ in range(TRIES):
        new = await asyncio.to_thread(restoration, found, data)
        answer = await restore_session(
            cell, session_id, fence or "", fields=new.fields, messages=new.messages, refuse=new.refuse
        )
        if answer == "RESTORED" and data is None:
            return None
        if answer != "CONFLICT":
            return answer
        found = await found_in(cell, session_id)
    raise _kept_from(session_id)


async def bring_back(cell: Cell, load: Load, session: SessionRef) -> None:
    """Restore a session outside its turns, once in its life. One that does not exist does not begin by that.

    Raises as ``restore`` does.
    """
    for _ in range(TRIES):
        found = await found_in(cell, session.id)
        if found.text("restored") == "1" or not (found.fields or await _begin(cell, load, session)):
            return
        if await restore(cell, load, session.id) != "SUPERSEDED":
            return
        await asyncio.sleep(PAUSE_SECONDS)  # a worker has taken its turn, and restores it first
    raise _kept_from(session.id)


async def _begin(cell: Cell, load: Load, session: SessionRef) -> bool:
    """Let a session that stands in the archive alone begin anew, empty. Returns False if it stands nowhere."""
    if await is_deleted(cell, session.id) or await load(session.id) is None:
        return False
    await change_session(cell, session.id, new_op(), Change([]), when="any", ttl_ms=session.ttl_ms)
    return True


def _kept_from(session_id: SessionId) -> StoreUnavailable:
    return StoreUnavailable("Other calls keep changing the session: try again later.", session_id=session_id)
