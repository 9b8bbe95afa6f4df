"""Records the ended turns of a session."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.errors import CorruptRecord, KeyMissing, SessionNotFound, TurnDeleted, TurnNotFound, UsageError
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import TERMINAL
from antiphon.model.recording import Recording, SessionRecording
from antiphon.redis.edits import NO_MESSAGES
from antiphon.session.runtime import TurnHandle
from antiphon.wire.cell import Cell


async def kept_turns(cell: Cell, session: SessionId) -> list[TurnId]:
    """Return the last 1,000 turns of a session, the first one first; none of a session that is not there."""
    try:
        return (await cell.snapshot(session, *NO_MESSAGES, "pending failed")).order
    except SessionNotFound:
        return []


async def record_session(session_id: str, turns: Iterable[TurnHandle]) -> SessionRecording:
    """Record those of a session's ``turns`` that have ended, but not those that another turn has taken or are damaged.

    Raises ``UsageError`` if there are none, ``KeyMissing`` and ``StoreError``.
    """
    found: list[Recording] = []
    for turn in turns:
        try:
            if await turn.status() in TERMINAL:
                found.append(await turn.recording())
        except KeyMissing:
            raise
        except (TurnNotFound, TurnDeleted, CorruptRecord):
            continue  # it has expired since it was listed, or is damaged
    answered = [one for one in found if one.messages or one.error]
    if not answered:
        raise UsageError(f"Session {session_id} has no ended turn that is kept.")
    return SessionRecording.of(session_id, answered)
