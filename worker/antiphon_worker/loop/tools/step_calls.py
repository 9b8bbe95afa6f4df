"""Gives the tool calls of a step their results: it runs them side by side, and finds those that wait for a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from antiphon.errors import UnknownTool
from antiphon.events import ToolResultEvent
from antiphon.input.values import now_ms
from antiphon.model import Decision, OpenCall, ToolCall, ToolResult
from antiphon.tools import Context
from antiphon.tools.unanswered import decided_result, noted
from antiphon_worker.loop.step_events import Sink
from antiphon_worker.loop.steps import CallsOpened, Journal, Step, ToolFinished, ToolStarted, plain_variables
from antiphon_worker.loop.tools.calls import RunningCall
from antiphon_worker.loop.tools.gate import Gate, as_approved, told
from antiphon_worker.loop.tools.toolbox import ToolBox, shorten

__all__ = ["UNKNOWN_WHETHER_RUN", "StepCalls", "error_result", "result_event"]

EVENT_RESULT_CHARACTERS = 2_000
CANCEL_GRACE_SECONDS = 5.0
UNKNOWN_WHETHER_RUN = (
    "It is unknown whether this tool ran: the worker stopped after starting it, and it must not run twice."
)


class StepCalls:
    """The tool calls of a turn. ``decisions``, by the ids of the calls, are those of the last suspension.

    ``room`` is entered for each call that runs.
    """

    def __init__(
        self,
        toolbox: ToolBox,
        gate: Gate,
        journal: Journal,
        sink: Sink,
        context: Context,
        decisions: Mapping[str, Decision],
        room: AbstractAsyncContextManager[Any],
    ) -> None:
        self.toolbox = toolbox
        self.gate = gate
        self.journal = journal
        self.sink = sink
        self.context = context
        self.decisions = decisions
        self.room = room
        self.variables = plain_variables(context.variables)  # the values in the journal

    async def take(self, step: Step) -> None:
        """Record the results of the calls of a step that do not run: most of all those that a decision gives.

        Raises ``UnknownTool`` if a call that has waited needs a tool that is not here.
        """
        await self.journal.checkpoint()
        for call in step.to_run(self.decisions):
            if call.name not in self.toolbox.tools and not self.gate.of_caller(call):
                raise UnknownTool(
                    f"There is no tool {call.name!r} here, and a call of it has waited for a decision."
                )
        known = [result for call in step.open_calls if (result := self._without_running(step, call))]
        if known:
            await self._record(step, known)

    async def run(self, step: Step) -> list[OpenCall]:
        """Give each call of a step its result, and return those that wait for a decision."""
        await self.take(step)
        waiting = [] if self.gate.open else await self._waiting(step)
        ids = {one.call_id for one in waiting}
        await self._run_side_by_side(step, [call for call in step.open_calls if call.call_id not in ids])
        if not ids <= step.opened:
            await self.journal.append([CallsOpened(step.entry.step, sorted(ids))], [])
        return waiting

    def _without_running(self, step: Step, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that must not run (again), or None for the others."""
        if call.call_id in step.started:
            return error_result(call, UNKNOWN_WHETHER_RUN)
        decision = self._decision(step, call.call_id)
        if decision is not None:
            result = decided_result(call, decision, has_code=not self.gate.of_caller(call))
            return result and self.toolbox.shortened(result)
        misfit = self.gate.misfit(call)
        return error_result(call, misfit) if misfit else None

    def _decision(self, step: Step, call_id: str) -> Decision | None:
        return self.decisions.get(call_id) if call_id in step.opened else None

    async def _waiting(self, step: Step) -> list[OpenCall]:
        undecided = [call for call in step.open_calls if self._decision(step, call.call_id) is None]
        return await self.gate.waiting(undecided, step.opened)

    async def _run_side_by_side(self, step: Step, calls: list[ToolCall]) -> None:
        """Run calls in parallel, and write each result to the journal."""
        number = step.entry.step
        starting = self._starting(step, calls)
        if starting:
            await self.journal.append(starting, [])
        calls = [as_approved(call, self._decision(step, call.call_id)) for call in calls]
        running = [RunningCall(call, number, self.sink, self.context.turn_id) for call in calls]
        tasks = [asyncio.create_task(self._run_tool(one), name=f"tool {one.call.name}") for one in running]
        waiting = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                finished = [task.result() for task in tasks if task not in waiting]
                await self._record(
                    step,
                    [
                        told(result, self._decision(step, result.call_id))
                        for result in finished
                        if result.call_id not in step.results
                    ],
                )
        finally:
            try:
                await _cancel(waiting)
            finally:
                for one in running:
                    one.close()

    def _starting(self, step: Step, calls: list[ToolCall]) -> list[ToolStarted]:
        """What the journal has to know of these calls before they start."""
        approved = step.opened - step.begun
        return [
            ToolStarted(step.entry.step, call.call_id, again=not once)
            for call in calls
            if (once := self.toolbox.at_most_once(call.name)) or call.call_id in approved
        ]

    async def _run_tool(self, running: RunningCall) -> ToolResult:
        call = running.call
        async with self.room:
            with running:
                return await self.toolbox.run(call, self.context.of_call(call.call_id, running.step, running))

    async def _record(self, step: Step, results: list[ToolResult]) -> None:
        number = step.entry.step
        at = now_ms()
        entries = [
            ToolFinished(number, result, created=at, decision=noted(self._decision(step, result.call_id)))
            for result in results
        ]
        if results and self.context.variables != self.variables:
            self.variables = entries[-1].variables = plain_variables(self.context.variables)
        await self.journal.append(entries, [result_event(result, number) for result in results])
        for entry in entries:
            step.finish(entry)


def result_event(result: ToolResult, step: int) -> ToolResultEvent:
    """Return the event of a result, shortened."""
    return ToolResultEvent(
        step=step,
        call_id=result.call_id,
        name=result.name,
        result=shorten(result.text, EVENT_RESULT_CHARACTERS),
        is_error=result.is_error,
    )


def error_result(call: ToolCall, reason: str) -> ToolResult:
    """Return the result of a call that was not run."""
    return ToolResult(call_id=call.call_id, content=reason, name=call.name, is_error=True)


async def _cancel(tasks: set[asyncio.Task[ToolResult]]) -> None:
    """Cancel the tool calls of an ended turn. A call that ignores the cancellation is abandoned after a few seconds."""
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS)
