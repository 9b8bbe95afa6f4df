"""Restores the archived copy of a session that begins anew."""

from __future__ import annotations

import asyncio

from antiphon.errors import StoreUnavailable
from antiphon.input.ids import Fence, SessionId
from antiphon.redis.copies.restoration import restoration
from antiphon.redis.edits import found_in
from antiphon.wire.archiving import Restored, restore_session
from antiphon.wire.cell import Cell
from antiphon_worker.archive.store import Archive

__all__ = ["restore"]

TRIES = 50


async def restore(
    cell: Cell, archive: Archive, session_id: SessionId, fence: Fence | None = None
) -> Restored | None:
    """Insert the archived part of a session before its present one, once in its life. Returns None if there is none.

    ``fence`` is the holder's; without it, the session must have no holder. Raises ``ArchiveUnavailable``,
    ``CorruptRecord`` if the archived copy cannot be read, and Redis' ``StoreError``.
    """
    found = await found_in(cell, session_id)
    data = await archive.load(found.text("origin") or session_id)
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
    raise StoreUnavailable("Other calls keep changing the session: try again later.", session_id=session_id)
