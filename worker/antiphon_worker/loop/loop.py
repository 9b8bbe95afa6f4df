"""The agent loop: call the model, run its tool calls, write the journal, and repeat until the model has answered.

The loop works with a provider, tools, a journal and a sink. It does not use Redis. The caller owns the turn: entries
accepted by ``journal.append`` survive a crash of this process, events in the sink do not.

- Steps count from 1. A step with tool calls is written to the journal before the calls start, and each result when it
  is available. The last step of a turn is returned in the ``LoopResult`` and is not written to the journal, so that a
  turn without tools needs no append.
- If the journal has entries of an earlier attempt, the loop continues after them. It does not repeat finished steps and
  tool calls. It repeats a call that was started without a result, except for ``at_most_once`` tools: these have a
  ``ToolStarted`` entry, and the model is told that it is unknown whether they ran.
- Tool calls are run if the model stopped for them (``tool_use``, or ``end`` from servers that do not distinguish the
  two). If the answer was cut off (``max_tokens``, a filter, a refusal), they are not run: each gets an error result
  that says so, and the turn ends with that stop reason.
- After ``max_steps`` model calls the turn ends: with the stop reason ``limit`` if the last answer has text, else with
  ``StepLimitReached``. The calls of the last answer are not run, because the model would not see their results.
- A ``LoopResult`` therefore has a result for each tool call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.errors import StepLimitReached
from antiphon.events import Event, StepFinished, ToolCallEvent, ToolResultEvent
from antiphon.model import Item, Message, Response, StopReason, ToolCall, ToolOutcome, ToolResult, Usage
from antiphon.tools import Context
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.step_events import Sink, StepEvents, answered
from antiphon_worker.loop.steps import (
    JournalEntry,
    Step,
    StepEntry,
    ToolFinished,
    ToolStarted,
    plain_variables,
    steps_of,
    usage_of,
    variables_of,
    with_distinct_calls,
)
from antiphon_worker.loop.toolbox import ToolBox, shorten, tool_specs
from antiphon_worker.providers.base import ModelRequest, OutputSchema, Provider, StepResult

__all__ = ["Journal", "LoopResult", "run_loop"]

RUNS_TOOLS: frozenset[StopReason] = frozenset({"tool_use", "end"})
EVENT_RESULT_CHARACTERS = 2_000
CANCEL_GRACE_SECONDS = 5.0
UNKNOWN_WHETHER_RUN = (
    "It is unknown whether this tool ran: the worker stopped after starting it, and it must not run twice."
)


class Journal(Protocol):
    """The journal of a turn: its finished steps and tool calls. Each runtime implements it."""

    @property
    def entries(self) -> Sequence[JournalEntry]:
        """The entries of earlier attempts. Read once, when the loop starts."""
        ...

    async def append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        """Store the entries and publish the events, after all events of the sink. The entries are durable when
        this returns."""
        ...

    async def checkpoint(self) -> None:
        """A safe point to stop. May raise a stop signal, or wait while the lease is uncertain."""
        ...


class LoopResult(Struct):
    """The result of a turn. ``messages`` are the assistant and tool messages in order, without the input."""

    messages: list[Message]
    usage: Usage
    stop_reason: StopReason
    raw_stop_reason: str | None
    model: str

    def response(self, turn_id: str = "", session_id: str = "") -> Response:
        """Return the response of the turn. Its text is that of the last answer."""
        answers = [message for message in self.messages if message.role == "assistant"]
        results = {(i, r.call_id): r for i, m in enumerate(self.messages) for r in m.tool_results}
        outcomes = [
            ToolOutcome(call.call_id, call.name, call.arguments, result.text, result.is_error)
            for i, message in enumerate(self.messages)
            for call in message.tool_calls
            if (result := results.get((i + 1, call.call_id)))
        ]
        return Response(
            text=answers[-1].text if answers else "",
            tool_calls=outcomes,
            messages=self.messages,
            usage=self.usage,
            stop_reason=self.stop_reason,
            raw_stop_reason=self.raw_stop_reason,
            model=self.model,
            turn_id=turn_id,
            session_id=session_id,
        )


async def run_loop(
    provider: Provider, inp: LoopInput, toolbox: ToolBox, journal: Journal, sink: Sink, context: Context
) -> LoopResult:
    """Run a turn until the model has answered, or continue a turn that an earlier attempt began.

    ``toolbox`` runs the tools; ``inp.tools`` are those that the model may call. Raises the errors of the provider and
    the journal, and ``StepLimitReached``. Exceptions of tools are not raised.
    """
    return await _Loop(provider, inp, toolbox.offering(inp.tools), journal, sink, context).run()


class _Loop:
    def __init__(
        self,
        provider: Provider,
        inp: LoopInput,
        toolbox: ToolBox,
        journal: Journal,
        sink: Sink,
        context: Context,
    ) -> None:
        self.provider = provider
        self.inp = inp
        self.toolbox = toolbox
        self.journal = journal
        self.sink = sink
        self.context = context
        self.steps = steps_of(journal.entries)
        changed = variables_of(journal.entries)
        if changed is not None:
            context.variables.clear()
            context.variables.update(changed)
        self.variables = plain_variables(context.variables)  # the values in the journal
        self.input = [*inp.history, *inp.new_messages]

    async def run(self) -> LoopResult:
        while True:
            if self.steps:
                last = self.steps[-1]
                if _ends_turn(last.entry):
                    return self._finish(last, last.entry.stop_reason)
                if len(self.steps) >= self.inp.max_steps:
                    return self._finish_at_limit(last)
                if last.open_calls:
                    await self._run_tools(last)
            await self._call_model(len(self.steps) + 1)

    async def _call_model(self, number: int) -> None:
        await self.journal.checkpoint()
        answer = await self._stream(number)
        message = with_distinct_calls(answer.message)
        entry = StepEntry(
            number, message, answer.usage, answer.stop_reason, answer.raw_stop_reason, answer.model
        )
        self.steps.append(Step(entry))
        events: list[Event] = [
            StepFinished(step=number, usage=entry.usage, stop_reason=entry.stop_reason, model=entry.model)
        ]
        events += [
            ToolCallEvent(step=number, call_id=call.call_id, name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ]
        if _ends_turn(entry) or number >= self.inp.max_steps:
            self._publish(events)
        else:
            await self.journal.append([entry], events)

    async def _stream(self, number: int) -> StepResult:
        """Call the model. Each increment becomes an event at once. Waits only while the sink is full."""
        stream = self.provider.stream(self._request())
        return await answered(stream, StepEvents(number, self.provider.name, self.sink))

    def _request(self) -> ModelRequest:
        inp, output = self.inp, self.inp.output
        return ModelRequest(
            model=inp.model,
            messages=[*self.input, *self._messages()],
            system=inp.system,
            tools=tool_specs(inp.tools),
            output=OutputSchema(output.name, output.schema, output.strict) if output else None,
            params=inp.params,
        )

    async def _run_tools(self, step: Step) -> None:
        """Run the calls of a step that have no result yet, in parallel, and write each result to the journal."""
        await self.journal.checkpoint()
        lost = [call for call in step.open_calls if call.call_id in step.started]
        if lost:
            await self._record(step, [_error(call, UNKNOWN_WHETHER_RUN) for call in lost])
        number, calls = step.entry.step, step.open_calls
        once = [ToolStarted(number, call.call_id) for call in calls if self.toolbox.at_most_once(call.name)]
        if once:
            await self.journal.append(once, [])
        tasks = [asyncio.create_task(self._run_tool(call), name=f"tool {call.name}") for call in calls]
        waiting = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                finished = [task.result() for task in tasks if task not in waiting]
                await self._record(step, [r for r in finished if r.call_id not in step.results])
        finally:
            await _cancel(waiting)

    async def _run_tool(self, call: ToolCall) -> ToolResult:
        return await self.toolbox.run(call, self.context.of_call(call.call_id))

    async def _record(self, step: Step, results: list[ToolResult]) -> None:
        number = step.entry.step
        entries = [ToolFinished(number, result) for result in results]
        if results and self.context.variables != self.variables:
            self.variables = entries[-1].variables = plain_variables(self.context.variables)
        await self.journal.append(entries, [_result_event(result, number) for result in results])
        step.results.update({result.call_id: result for result in results})

    def _finish_at_limit(self, last: Step) -> LoopResult:
        limit = self.inp.max_steps
        if not last.entry.message.text.strip():
            raise StepLimitReached(f"The turn used all its {limit} steps without an answer: raise max_steps.")
        return self._finish(last, "limit")

    def _finish(self, last: Step, stop_reason: StopReason) -> LoopResult:
        """Return the result. Calls that will not be run get an error result that says why."""
        for call in last.open_calls:
            result = _error(
                call, UNKNOWN_WHETHER_RUN if call.call_id in last.started else _not_run(stop_reason)
            )
            last.results[call.call_id] = result
            self._publish([_result_event(result, last.entry.step)])
        return LoopResult(
            messages=self._messages(),
            usage=usage_of(step.entry for step in self.steps),
            stop_reason=stop_reason,
            raw_stop_reason=last.entry.raw_stop_reason,
            model=last.entry.model,
        )

    def _messages(self) -> list[Message]:
        return [message for step in self.steps for message in step.messages]

    def _publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self.sink.put(event)


def _ends_turn(entry: StepEntry) -> bool:
    """Return False if tools must be run, or if the provider must be called again to finish its own tools: its stop
    reason is then ``tool_use``, and the message has items of the provider but no tool calls."""
    message = entry.message
    if message.tool_calls:
        return entry.stop_reason not in RUNS_TOOLS
    return entry.stop_reason != "tool_use" or not any(isinstance(part, Item) for part in message.parts)


def _result_event(result: ToolResult, step: int) -> ToolResultEvent:
    return ToolResultEvent(
        step=step,
        call_id=result.call_id,
        name=result.name,
        result=shorten(result.text, EVENT_RESULT_CHARACTERS),
        is_error=result.is_error,
    )


def _error(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(call_id=call.call_id, content=reason, name=call.name, is_error=True)


def _not_run(stop_reason: StopReason) -> str:
    if stop_reason == "limit":
        return "This tool was not run: the turn had used all its steps."
    return f"This tool was not run: the answer was cut off ({stop_reason})."


async def _cancel(tasks: set[asyncio.Task[ToolResult]]) -> None:
    """Cancel the tool calls of an ended turn. A call that ignores the cancellation is abandoned after a few seconds."""
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS)
