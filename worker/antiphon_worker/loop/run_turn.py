"""Runs a turn from its input and its session's history to its result, for every runtime."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from msgspec import Struct

from antiphon.errors import TurnFailed
from antiphon.session.reentry import within
from antiphon.tools import Context
from antiphon.window import SavedSummary
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import Journal, LoopResult, run_loop
from antiphon_worker.loop.step_events import Sink
from antiphon_worker.loop.steps import plain_variables
from antiphon_worker.loop.summaries import SummaryWriter
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.loop.visible_history import LoadedHistory, visible_history
from antiphon_worker.providers.base import Provider

__all__ = ["TimeLimit", "TurnResult", "WindowPlace", "run_turn"]


class WindowPlace(Struct, frozen=True):
    """The start of a turn's window in the history, and the tokens that the provider counted (0: unknown)."""

    start: int
    counted: int


class TurnResult(Struct):
    """The result of a turn, for saving to its session. ``loop.usage`` includes the tokens of a summary.

    ``window`` is None if the whole history was sent, ``summary`` is None if no new one was written. ``variables`` are
    all variables of the session after the turn.
    """

    loop: LoopResult
    window: WindowPlace | None
    summary: SavedSummary | None
    variables: dict[str, Any]


async def run_turn(
    provider: Provider,
    inp: LoopInput,
    loaded: LoadedHistory,
    toolbox: ToolBox,
    journal: Journal,
    sink: Sink,
    context: Context,
) -> TurnResult:
    """Select the part of the history for the model, and run the agent loop.

    Raises the errors of reading the history and of ``run_loop``, and ``TurnFailed`` if a variable has no JSON form.
    """
    with within(context.session_id, context.turn_id):
        writer = SummaryWriter(provider, inp, journal, context.session_id)
        visible = await visible_history(loaded, inp.window, inp.new_messages, writer)
        inp.history = visible.messages
        result = await run_loop(provider, inp, toolbox, journal, sink, context)
    window = None if visible.start is None else WindowPlace(visible.start, _counted(result))
    result.usage += writer.usage
    return TurnResult(result, window, visible.summary, plain_variables(context.variables))


class TimeLimit:
    """Cancels the block after this many seconds, and raises ``TurnFailed`` with the code ``turn_timed_out``."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timer = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timer.__aexit__(kind, exc, trace)
        except TimeoutError as timed_out:
            raise TurnFailed(
                f"The turn did not end within {self._seconds:g} s.", code="turn_timed_out"
            ) from timed_out


def _counted(result: LoopResult) -> int:
    """Return the tokens that the provider counted for a turn of one model call, or 0 for several calls."""
    calls = sum(message.role == "assistant" for message in result.messages)
    return result.usage.input_tokens + result.usage.output_tokens if calls == 1 else 0
