"""Where the window of a session's history begins, kept in the session from turn to turn.

The claim brings the history from where the window began last time, so that a turn costs the same however long its
session is; an agent that is shown everything has the part in front of it read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import StoreError
from antiphon.input.request import AgentSpec
from antiphon.model import Message, decode_message
from antiphon.window import SavedSummary, window_of
from antiphon.wire.cell import Cell, ClaimedTurn
from antiphon_worker.loop.loop import LoopResult
from antiphon_worker.loop.summaries import Past, Shown, SummaryWriter, show

__all__ = ["load_history", "window_field"]


async def load_history(
    cell: Cell, turn: ClaimedTurn, agent: AgentSpec, new: Sequence[Message], writer: SummaryWriter
) -> Shown:
    """The part of the history that the agent's window shows. Raises ``StoreError``, ``CorruptRecord``."""
    loaded = [decode_message(data) for data in turn.history]
    before = turn.history_length - len(loaded)

    async def front(start: int, stop: int) -> list[Message]:
        return await _read(cell, turn, start, stop)

    if agent.window is None:
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
