"""A turn's history in Redis: restored from the archive where its session had ended, and read.

The claim brings the history from where the window began last time, so that a turn costs the same however long its
session is; for an agent without a window the part in front of it is read as well.
"""

from __future__ import annotations

from functools import partial

from antiphon.errors import StoreError, UsageError
from antiphon.input.limits import check_size
from antiphon.input.request import AgentSpec
from antiphon.model import Message, decode_message
from antiphon.redis.edits import found_in
from antiphon.window import SavedSummary
from antiphon.wire.cell import Cell, ClaimedTurn
from antiphon_worker.archive.restore import restore
from antiphon_worker.archive.store import Archive, ArchiveUnavailable
from antiphon_worker.loop.run_turn import WindowPlace
from antiphon_worker.loop.visible_history import LoadedHistory
from antiphon_worker.process.lease import Lease, Stop, StopSignal

__all__ = ["loaded_history", "restore_before", "window_field"]

RETRY_SECONDS = 1.0

REFUSALS = {
    "closed": "The session is closed.",
    "tenant": "The session belongs to another tenant: use another session id.",
}


def loaded_history(cell: Cell, turn: ClaimedTurn, agent: AgentSpec) -> LoadedHistory:
    """The history as the claim brought it; messages in front of it are read when they are asked for.

    Raises ``CorruptRecord``, and ``LimitReached`` for a history that is too long for an agent without a window; reading
    raises ``StoreError`` as well.
    """
    if agent.window is None:
        check_size(
            "history_messages", turn.history_length, "The session's history", "Give the agent a window."
        )
    messages = [decode_message(data) for data in turn.history]
    counted = int(turn.window.partition(":")[2] or 0) or None
    summary = SavedSummary.from_field(turn.summary)
    return LoadedHistory(
        messages, turn.history_length - len(messages), counted, summary, partial(_read, cell, turn)
    )


def window_field(window: WindowPlace | None) -> str:
    """What the session keeps for its next turn: where the window began and the tokens counted for it."""
    return "" if window is None else f"{window.start}:{window.counted}"


async def _read(cell: Cell, turn: ClaimedTurn, start: int, stop: int) -> list[Message]:
    if stop <= start:
        return []
    page = await cell.snapshot(turn.session_id, start, stop - 1)
    if len(page.history) != stop - start:
        raise StoreError("The session's history changed while it was read.", session_id=turn.session_id)
    return [decode_message(data) for data in page.history]


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
