"""Runs a turn from its input and its session's history to its result, for every runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from msgspec import Struct

from antiphon.errors import AgentError, LimitReached, TurnFailed, UsageError
from antiphon.ext.turns import TurnFunction
from antiphon.model import Decision, Message
from antiphon.session.background import Within
from antiphon.tools import Context
from antiphon.window import SavedSummary
from antiphon_worker.loop.function import run_function
from antiphon_worker.loop.hooks import HookedProvider, Hooks
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import LoopResult, Suspended, run_loop
from antiphon_worker.loop.sent_history import SentHistory
from antiphon_worker.loop.step_events import Sink
from antiphon_worker.loop.steps import Journal, lost_usage, plain_variables
from antiphon_worker.loop.toolbox import StepWaits, ToolBox
from antiphon_worker.loop.visible_history import LoadedHistory, SummaryWriter
from antiphon_worker.providers.base import Provider


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
    decisions: Mapping[str, Decision] | None = None,
) -> TurnResult | Suspended:
    """Select the part of the history for the model, and run the agent loop.

    Raises the errors of reading the history and of ``run_loop``, ``TurnFailed`` if a variable has no JSON form, and
    ``LimitReached`` when the seconds of the meter are over.
    """
    seconds = inp.meter.seconds_left
    if seconds is None:
        return await _run(provider, inp, loaded, toolbox, journal, sink, context, decisions)
    over = LimitReached(
        f"The turn did not end within the {inp.meter.limits.seconds:g} s that it may take.", limit="seconds"
    )
    if seconds <= 0:
        raise over
    async with TimeLimit(seconds, over):
        return await _run(provider, inp, loaded, toolbox, journal, sink, context, decisions)


async def _run(
    provider: Provider,
    inp: LoopInput,
    loaded: LoadedHistory,
    toolbox: ToolBox,
    journal: Journal,
    sink: Sink,
    context: Context,
    decisions: Mapping[str, Decision] | None,
) -> TurnResult | Suspended:
    with Within(context.session_id, context.turn_id):
        inp.cache_key = context.session_id
        if inp.hooks is not None and not isinstance(provider, TurnFunction):
            provider = _hooked(provider, inp, inp.hooks)
        writer = SummaryWriter(provider, inp, journal, context.session_id)
        history = SentHistory(provider, inp, loaded, writer)
        inp.history = await history.select(journal.entries)
        if not inp.new_messages and not journal.entries:
            _check_continues(inp.history)
        if isinstance(provider, TurnFunction):
            if inp.files is not None:
                inp.history = await inp.files.filled(inp.history)
                inp.new_messages = await inp.files.filled(inp.new_messages)
            result = await run_function(provider, inp, toolbox, journal, sink, context, decisions)
        else:
            try:
                result = await run_loop(provider, inp, toolbox, journal, sink, context, decisions, history)
            except StepWaits as exc:
                result = Suspended([exc.wait])
    if isinstance(result, Suspended):
        return result
    if inp.children is not None:
        await inp.children.stop()
    if inp.hooks is not None:
        await inp.hooks.ended(result.response(), sink, result.steps)
    visible = history.visible
    window = None if visible.start is None else WindowPlace(visible.start, _counted(result))
    result.usage += writer.usage
    if journal.entries:
        result.usage += lost_usage(journal.entries)
    return TurnResult(result, window, visible.summary, plain_variables(context.variables))


def _hooked(provider: Provider, inp: LoopInput, hooks: Hooks) -> Provider:
    """Return the provider with the hooks of the turn, and add them to its fallbacks."""
    if inp.fallback is not None:
        inp.fallback = inp.fallback.through(lambda one: HookedProvider(one, hooks, inp.meter))
    return HookedProvider(provider, hooks, inp.meter)


def _check_continues(history: Sequence[Message]) -> None:
    """Raise ``UsageError`` if a turn without input has nothing to answer."""
    if not history or history[-1].role == "assistant":
        raise UsageError(
            "The input is empty, and the history does not end with a question or with results of tools: submit text, "
            "or fork the session at a step whose tools were called."
        )


class TimeLimit:
    """Cancels the block after this many seconds and raises ``over``; default: ``TurnFailed`` (``turn_timed_out``)."""

    def __init__(self, seconds: float | None, over: AgentError | None = None) -> None:
        self._seconds = seconds
        self._over = over
        self._timer = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timer.__aexit__(kind, exc, trace)
        except TimeoutError as timed_out:
            over = self._over or TurnFailed(
                f"The turn did not end within {self._seconds:g} s.", code="turn_timed_out"
            )
            raise over from timed_out


def _counted(result: LoopResult) -> int:
    """Return the tokens that the provider counted for a turn of one model call, or 0 for several calls."""
    return result.usage.input_tokens + result.usage.output_tokens if result.steps == 1 else 0
