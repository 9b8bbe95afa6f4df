"""A session that begins anew goes on from what the archive has of it."""

from __future__ import annotations

import asyncio

from antiphon.errors import StoreError, StoreUnavailable, UsageError
from antiphon.input.ids import Fence, SessionId
from antiphon.redis.edits import found_in
from antiphon.wire.archiving import Restored, restore_session
from antiphon.wire.cell import Cell, ClaimedTurn
from antiphon_worker.archive.form import restoration
from antiphon_worker.archive.store import Archive, ArchiveUnavailable
from antiphon_worker.process.lease import Lease, Stop, StopSignal

__all__ = ["restore", "restore_before"]

TRIES = 50
RETRY_SECONDS = 1.0

REFUSALS = {
    "closed": "The session is closed.",
    "tenant": "The session belongs to another tenant: use another session id.",
}


async def restore(
    cell: Cell, archive: Archive, session_id: SessionId, fence: Fence | None = None
) -> Restored | None:
    """Put what the archive has of a session in front of what it has now, once in its life. None where it has nothing.

    ``fence`` is that of its holder; without one the session must be held by nobody. Raises ``ArchiveUnavailable``,
    ``CorruptRecord`` where the archived copy cannot be read, ``StoreError`` of Redis.
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
    raise StoreUnavailable("The session is changed by others all the time.", session_id=session_id)


async def restore_before(cell: Cell, archive: Archive | None, turn: ClaimedTurn, lease: Lease) -> None:
    """Make the turn one of its restored session, where that began anew and nobody has asked the archive yet.

    Raises ``ArchiveUnavailable`` where the turn must wait, ``UsageError`` where the session takes no such turn,
    ``CorruptRecord``.
    """
    if archive is not None and turn.restored != "1":
        await lease.checkpoint()
        try:
            answer = await restore(cell, archive, turn.session_id, turn.fence)
            if answer == "SUPERSEDED":
                lease.end(Stop.SUPERSEDED, at_once=False)
                raise StopSignal(Stop.SUPERSEDED)
            if answer == "RESTORED":
                await _load_again(cell, turn)
        except StoreError as exc:
            if not exc.retryable or isinstance(exc, ArchiveUnavailable):
                raise
            raise ArchiveUnavailable(exc.message, retry_after=RETRY_SECONDS) from exc
    seq, _, reason = turn.refused.partition(":")
    if reason and turn.queued_seq <= int(seq):
        raise UsageError(REFUSALS.get(reason, "The session takes no such turn."), session_id=turn.session_id)


async def _load_again(cell: Cell, turn: ClaimedTurn) -> None:
    """What a claim now would load of the session."""
    found = await found_in(cell, turn.session_id, 0, -1)
    seen = found.text("window") or found.text("summary")
    turn.system, turn.variables = found.fields.get("system"), found.fields.get("variables")
    turn.session_agent, turn.summary = found.fields.get("agent"), found.fields.get("summary")
    turn.window, turn.restored, turn.refused = (
        found.text("window"),
        found.text("restored"),
        found.text("refused"),
    )
    turn.history = found.history[int(seen.partition(":")[0] or 0) :]
    turn.history_length = found.length
