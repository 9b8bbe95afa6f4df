"""Records the ended turns of a session."""

from __future__ import annotations

from collections.abc import AsyncIterable

from antiphon.errors import TurnDeleted, TurnNotFound, UsageError
from antiphon.model import TERMINAL
from antiphon.model.recording import Recording, SessionRecording
from antiphon.session.runtime import TurnHandle


async def record_session(session_id: str, turns: AsyncIterable[TurnHandle]) -> SessionRecording:
    """Record those of a session's ``turns``, newest first, that have ended, but not those that another turn has taken.

    Raises ``UsageError`` if there are none.
    """
    found: list[Recording] = []
    async for turn in turns:
        try:
            if await turn.status() in TERMINAL:
                found.append(await turn.recording())
        except (TurnNotFound, TurnDeleted):
            continue  # it has expired since it was listed
    answered = [one for one in reversed(found) if one.messages or one.error]
    if not answered:
        raise UsageError(f"Session {session_id} has no ended turn that is kept.")
    return SessionRecording.of(session_id, answered)
