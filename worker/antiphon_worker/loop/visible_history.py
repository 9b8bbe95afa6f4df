"""The part of a session's history that a model is sent: what the agent's window keeps, and the summary of the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from antiphon.model import Message
from antiphon.window import SavedSummary, Window, window_start
from antiphon_worker.loop.summaries import SummaryWriter

__all__ = ["LoadedHistory", "VisibleHistory", "visible_history"]


class LoadedHistory(Struct):
    """A history as it was read, from index ``start`` on, and what its session keeps about the last window.

    ``counted`` are the tokens of the last model call, where they are known. ``read`` gives the messages from one index
    to before another, for those before ``start``.
    """

    messages: list[Message]
    start: int
    counted: int | None
    summary: SavedSummary | None
    read: Callable[[int, int], Awaitable[list[Message]]]


class VisibleHistory(Struct):
    """What a model is sent of a history.

    ``start`` is the index of the first message of the history in it, None where everything is sent. ``summary`` is a
    new one, to be kept with the turn.
    """

    messages: list[Message]
    start: int | None
    summary: SavedSummary | None = None


async def visible_history(
    loaded: LoadedHistory, window: Window, new: Sequence[Message], writer: SummaryWriter
) -> VisibleHistory:
    """The part of the history that the window keeps, after its summary. Where the window leaps, a new one is written.

    The earlier summary counts as part of the first turn, and goes into the next one together with it.
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
