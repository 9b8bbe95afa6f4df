"""Selects the part of a session's history for the model: the agent's window, and a summary of the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from antiphon.model import Message
from antiphon.window import SavedSummary, Window, window_start
from antiphon_worker.loop.summaries import SummaryWriter

__all__ = ["LoadedHistory", "VisibleHistory", "visible_history"]


class LoadedHistory(Struct):
    """The loaded part of a history, from index ``start`` on, and the session's data about the last window.

    ``counted`` is the number of tokens of the last model call, or None. ``read`` loads the messages between two
    indexes, for those before ``start``.
    """

    messages: list[Message]
    start: int
    counted: int | None
    summary: SavedSummary | None
    read: Callable[[int, int], Awaitable[list[Message]]]


class VisibleHistory(Struct):
    """The messages of a history that the model receives.

    ``start`` is the index of the first one in the history, or None if the whole history is sent. ``summary`` is a new
    summary to save with the turn, or None.
    """

    messages: list[Message]
    start: int | None
    summary: SavedSummary | None = None


async def visible_history(
    loaded: LoadedHistory, window: Window, new: Sequence[Message], writer: SummaryWriter
) -> VisibleHistory:
    """Return the summary and the messages in the window. If the window leaps, a new summary is written first.

    The previous summary counts as part of the first turn, and is summarised again together with it.
    """
    if window.turns is None and window.tokens is None:
        before = await loaded.read(0, loaded.start) if loaded.start else []
        return VisibleHistory([*before, *loaded.messages], None)
    summary = loaded.summary if window.instructions is not None else None
    covered = summary.messages if summary else 0
    messages, start = loaded.messages[max(covered - loaded.start, 0) :], max(covered, loaded.start)
    head = [summary.message] if summary else []
    first = window_start([*head, *messages], window, new=new, reported=loaded.counted)
    if first == 0:
        return VisibleHistory([*head, *messages], start)
    first -= len(head)
    newer = messages[first:]
    if window.instructions is None:
        return VisibleHistory(newer, start + first)
    older = [*await loaded.read(covered, start), *messages[:first]]
    written = await writer.write(window, summary, older)
    head = [written.message] if written else []
    return VisibleHistory([*head, *newer], start + first, written if written is not summary else None)
