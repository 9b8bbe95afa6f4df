"""A turn's history: restored from the archive where the session began anew, and cut to what its window shows.

The claim brings the history from where the window began last time, so that a turn costs the same however long its
session is; an agent that is shown everything has the part in front of it read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import StoreError, UsageError
from antiphon.input.limits import check_size
from antiphon.input.request import AgentSpec
from antiphon.model import Message, decode_message
from antiphon.redis.edits import found_in
from antiphon.window import SavedSummary, window_of
from antiphon.wire.cell import Cell, ClaimedTurn
from antiphon_worker.archive.restore import restore
from antiphon_worker.archive.store import Archive, ArchiveUnavailable
from antiphon_worker.loop.loop import LoopResult
from antiphon_worker.loop.summaries import Past, Shown, SummaryWriter, show
from antiphon_worker.process.lease import Lease, Stop, StopSignal

__all__ = ["load_history", "restore_before", "window_field"]

RETRY_SECONDS = 1.0

REFUSALS = {
    "closed": "The session is closed.",
    "tenant": "The session belongs to another tenant: use another session id.",
}


async def load_history(
    cell: Cell, turn: ClaimedTurn, agent: AgentSpec, new: Sequence[Message], writer: SummaryWriter
) -> Shown:
    """The part of the history that the agent's window shows. Raises ``StoreError``, ``CorruptRecord``."""
    loaded = [decode_message(data) for data in turn.history]
    before = turn.history_length - len(loaded)

    async def front(start: int, stop: int) -> list[Message]:
        return await _read(cell, turn, start, stop)

    if agent.window is None:
        check_size(
            "history_messages", turn.history_length, "The session's history", "Give the agent a window."
        )
        return Shown(await front(0, before) + loaded, None)
    counted = int(turn.window.partition(":")[2] or 0) or None
    past = Past(loaded, before, counted, SavedSummary.from_field(turn.summary), front)
    return await show(past, window_of(agent.window), new, writer)


def window_field(seen: Shown, result: LoopResult) -> str:
    """What the session keeps for its next turn: where the window began and the tokens counted for it."""
    return "" if seen.start is None else f"{seen.start}:{seen.counted(result)}"


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
