"""Where the window of a session's history begins, kept in the session from turn to turn.

The claim brings the history from where the window began last time, so that a turn costs the same however long its
session is; an agent that is shown everything has the part in front of it read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.errors import StoreError
from antiphon.model import Message, decode_message
from antiphon.request import AgentSpec
from antiphon.window import window_of, window_start
from antiphon.wire.cell import Cell, ClaimedTurn
from antiphon_worker.loop import LoopResult

__all__ = ["HistoryWindow", "load_history"]


class HistoryWindow(Struct):
    """What a model is shown of a history. ``start`` is the index of its first message; None without a window."""

    messages: list[Message]
    start: int | None

    def after(self, result: LoopResult) -> str:
        """What the session keeps for its next turn: where the window began and the tokens counted for it."""
        if self.start is None:
            return ""
        calls = sum(message.role == "assistant" for message in result.messages)
        counted = result.usage.input_tokens + result.usage.output_tokens if calls == 1 else 0
        return f"{self.start}:{counted}"


async def load_history(
    cell: Cell, turn: ClaimedTurn, agent: AgentSpec, new: Sequence[Message]
) -> HistoryWindow:
    """The part of the history that the agent's window shows. Raises ``StoreError``, ``CorruptRecord``."""
    loaded = [decode_message(data) for data in turn.history]
    before = turn.history_length - len(loaded)
    if agent.window is None:
        return HistoryWindow(await _front(cell, turn, before) + loaded, None)
    counted = turn.window.partition(":")[2]
    first = window_start(loaded, window_of(agent.window), new=new, reported=int(counted or 0) or None)
    return HistoryWindow(loaded[first:], before + first)


async def _front(cell: Cell, turn: ClaimedTurn, length: int) -> list[Message]:
    if length <= 0:
        return []
    page = await cell.snapshot(turn.session_id, 0, length - 1)
    if len(page.history) != length:
        raise StoreError("The session's history changed while it was read.", session_id=turn.session_id)
    return [decode_message(data) for data in page.history]
