"""Runs a turn with a turn function, and journals its model calls and tool calls as steps.

Each attempt calls the function again. It is expected to make the same calls in the same order: those of earlier
attempts are answered from the journal. A step without tool calls is written when the next one begins; as in the agent
loop, the last step is not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

import msgspec

from antiphon.errors import AgentError, StepLimitReached, TurnFailed
from antiphon.events import Event, StepFinished, ToolCallEvent
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.hooks import ModelEnd, ModelStart, ToolEnd, ToolStart
from antiphon.input.values import now_ms
from antiphon.model import Decision, Message, OpenCall, ToolCall, ToolResult, Wait
from antiphon.tools import Context
from antiphon.tools.results import decided_result, noted
from antiphon_worker.loop.durable import CallWaits, Durable, UnpublishedCall, durable_entries
from antiphon_worker.loop.function_model import FunctionModel, ask_model, required
from antiphon_worker.loop.input import LoopInput, Rules
from antiphon_worker.loop.loop import LoopResult, Suspended
from antiphon_worker.loop.output import ExpectedOutput
from antiphon_worker.loop.step_calls import as_approved, beyond, error_result, result_event, told
from antiphon_worker.loop.step_events import Discarded, Sink, StepEvents, check_form
from antiphon_worker.loop.steps import (
    CallsOpened,
    Journal,
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
from antiphon_worker.loop.toolbox import RunningCall, ToolBox, described, is_stop
from antiphon_worker.loop.visible_history import whole
from antiphon_worker.providers.base import (
    Increment,
    ModelRequest,
    Outlet,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.providers.errors import error_of_exception
from antiphon_worker.resilience import CallTimeouts

NO_RESULT = "The result of this call is unknown."

_in_a_tool: ContextVar[bool] = ContextVar("in_a_tool", default=False)


class _Suspend(Exception):
    """Ends the function: calls of its last answer wait for decisions."""


async def run_function(
    function: TurnFunction,
    inp: LoopInput,
    toolbox: ToolBox,
    journal: Journal,
    sink: Sink,
    context: Context,
    decisions: Mapping[str, Decision] | None = None,
) -> LoopResult | Suspended:
    """Call the function until the turn has ended, or waits for decisions, events or sleeps.

    Raises its ``AgentError``, and ``TurnFailed`` for other exceptions. Errors of the journal and stop signals pass
    through.
    """
    _check(inp, function)
    turn = _Turn(inp, function.name, toolbox, journal, sink, context, decisions or {})
    try:
        said = await function.run(turn)
    except BaseException as exc:
        if is_stop(exc) and not isinstance(exc, CallWaits):
            raise
        if turn.fault is None and (waiting := await turn.waits()):
            return Suspended(waiting)
        if isinstance(exc, AgentError):
            raise
        if turn.fault is not None:
            raise turn.fault from exc
        raise error_of_exception(function.name, exc) or TurnFailed(
            f"The function of this turn failed: {described(exc)}.", code="turn_function"
        ) from exc
    if turn.fault is not None:
        raise turn.fault
    waiting = await turn.waits()
    return Suspended(waiting) if waiting else await turn.result(said)


def _check(inp: LoopInput, function: TurnFunction) -> None:
    hooks = inp.hooks
    own = [
        word
        for word, used in (
            ("tools", inp.tools), ("caller_tools", inp.caller_tools), ("fallback", inp.fallback),
            ("approval", inp.rules != Rules()),
        )
        if used
    ]  # fmt: skip
    if own:
        raise TurnFailed(
            f"A function runs the turns of {function.name!r}: {own[0]}= of the agent is not supported with it: "
            "omit it.",
            code="turn_function",
        )
    if hooks and not function.runs_hooks and hooks.has(ModelStart, ModelEnd, ToolStart, ToolEnd):
        raise TurnFailed(
            f"The turns of {function.name!r} run no hooks of model calls and tools: use hooks of turns and steps.",
            code="turn_function",
        )


class _Turn:
    """The turn, as its function sees it (``FunctionTurn``)."""

    def __init__(
        self,
        inp: LoopInput,
        name: str,
        toolbox: ToolBox,
        journal: Journal,
        sink: Sink,
        context: Context,
        decisions: Mapping[str, Decision],
    ) -> None:
        self.messages = whole([*inp.history, *inp.notes, *inp.new_messages])
        self.input = inp.new_messages
        self.system, self.model, self.params = inp.system, inp.model, inp.params
        self._known = durable_entries(journal.entries)
        self._durable: dict[str, Durable] = {}
        self._inp = inp
        self._name = name
        self._toolbox = toolbox
        self._journal = journal
        self._sink = sink
        changed = variables_of(journal.entries)
        if changed is not None:
            context.variables.clear()
            context.variables.update(changed)
        self._variables = plain_variables(context.variables)  # the values in the journal
        self._recorded = steps_of(journal.entries)
        self._steps: list[Step] = []
        self._decisions = decisions  # of the last suspension
        self.waiting: list[OpenCall] = []
        self.context = self._own_context(context, "")
        self._unwritten: list[JournalEntry] = []
        self._writing = asyncio.Lock()
        self._paying = asyncio.Lock()
        self._outlet: Outlet | None = None  # where the pieces of an answer go during a model call
        self.fault: BaseException | None = None  # ends the turn, even if a framework has caught it
        inp.meter.begin(inp.model, [step.entry.usage for step in self._recorded])

    # What the function publishes.

    async def text(self, text: str) -> None:
        if text:
            await self._put(TextPiece(text))

    async def reasoning(self, text: str) -> None:
        await self._put(ReasoningPiece(text))

    async def call_delta(self, call_id: str, name: str, arguments: str) -> None:
        await self._put(ToolCallPiece(call_id, name, arguments))

    async def _put(self, piece: Increment) -> None:
        if _in_a_tool.get():
            return
        outlet = self._outlet or self._events()
        outlet.append(piece)
        if outlet.full:
            await outlet.drain()

    def _events(self) -> StepEvents:
        return StepEvents(self._number, self._name, self._sink)

    def _hear(self, outlet: Outlet | None) -> None:
        if not _in_a_tool.get():
            self._outlet = outlet

    @property
    def _number(self) -> int:
        return len(self._steps) + 1

    # What it calls.

    async def model_call(self, ask: Callable[..., Awaitable[ModelAnswer]]) -> ModelAnswer:
        if _in_a_tool.get():
            answer = await self._asked(ask, Discarded())
            self._inp.meter.count(answer.usage, answer.model, self.model)
            return answer
        if self.waiting:
            raise _Suspend
        if len(self._steps) < len(self._recorded):
            step = self._recorded[len(self._steps)]
            self._steps.append(step)
            entry = step.entry
            return ModelAnswer(entry.message, entry.usage, entry.stop_reason, entry.model)
        try:
            await self._write([], [])
            await self._journal.checkpoint()
            self._check_limits()
        except BaseException as exc:
            self.fault = self.fault or exc
            raise
        timeouts, outlet = self._inp.timeouts, self._events()
        try:
            async with nullcontext() if timeouts is None else CallTimeouts(timeouts, self._name, outlet):
                answer = await self._asked(ask, outlet)
        except asyncio.CancelledError:
            self._inp.meter.count_stopped(self._request(), None, outlet)
            raise
        return await self._answered(answer)

    async def _asked(self, ask: Callable[..., Awaitable[ModelAnswer]], outlet: Outlet) -> ModelAnswer:
        """Make a model call. An error that the function did not raise itself ends the turn, even if caught."""
        model = FunctionModel(self._name, ask, self._hear)
        try:
            async with nullcontext() if self._inp.charge is None else self._paying:
                return await ask_model(self._inp, model, self._request(), outlet)
        except BaseException as exc:
            if exc is not model.error and not is_stop(exc):
                self.fault = self.fault or exc
            raise

    def _request(self) -> ModelRequest:
        """Return what is known about the next request; the function may send something else."""
        done = [
            message
            for step in self._steps
            for message in ([step.entry.message] if step.open_calls else step.messages)
        ]
        return ModelRequest(self.model, [*self.messages, *done], self.system, params=dict(self.params))

    def _check_limits(self) -> None:
        if len(self._steps) >= self._inp.max_steps:
            raise StepLimitReached(
                f"The turn used all its {self._inp.max_steps} steps without an answer: raise max_steps."
            )
        if reached := self._inp.meter.reached():
            raise reached

    async def _answered(self, answer: ModelAnswer) -> ModelAnswer:
        check_form(answer)
        number = self._number
        earlier = (call.call_id for step in self._steps for call in step.entry.message.tool_calls)
        message = with_distinct_calls(answer.message, earlier)
        message.created = now_ms()
        model = answer.model or self.model
        usage = self._inp.meter.count(answer.usage, model, self.model)
        entry = StepEntry(number, message, usage, answer.stop_reason, None, model)
        self._steps.append(Step(entry))
        events: list[Event] = [
            StepFinished(step=number, usage=usage, stop_reason=answer.stop_reason, model=model)
        ]
        events += [
            ToolCallEvent(step=number, call_id=call.call_id, name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ]
        if message.tool_calls:
            await self._write([entry], events)
        else:
            self._unwritten.append(entry)
            for event in events:
                self._sink.put(event)
        return msgspec.structs.replace(answer, message=message, usage=usage, model=model)

    async def tool_call(self, call_id: str, run: Callable[..., Awaitable[Any]]) -> ToolResult:
        step, call = self._call(call_id)
        changes = required(run) == 2
        if step is None or call is None:
            context = self._own_context(self.context, call_id)
            return ToolResult(call_id, _content(await (run(context, {}) if changes else run(context))))
        refusal = beyond(self._inp.max_tool_calls, call_id, self._steps)
        if call_id not in step.results and refusal:
            await self._finished(step, [error_result(call, refusal)])
        await self._ask_hooks(step, call, fixed=not changes)
        if call_id not in step.results:
            decision = self._decision(step, call_id)
            if decision is not None and call_id not in step.begun:
                step.begun.add(call_id)
                await self._write([ToolStarted(step.entry.step, call_id, again=True)], [])
            call = as_approved(step.as_hooked(call), decision)
            durable = self._durable_of(call_id, step.entry.step, decision)
            running = RunningCall(call, step.entry.step, self._sink, self.context.turn_id, durable)
            inside = _in_a_tool.set(True)
            try:
                async with self._inp.meter.room:
                    with running:
                        context = self.context.of_call(call_id, step.entry.step, running)
                        said = await (run(context, call.arguments) if changes else run(context))
                await durable.end()
            finally:
                _in_a_tool.reset(inside)
            if durable.waits:
                raise CallWaits
            result = ToolResult(call_id, _content(said), call.name)
            await self._finished(step, [told(result, decision)])
        return step.results[call_id]

    async def _ask_hooks(self, step: Step, call: ToolCall, *, fixed: bool) -> None:
        """Let hooks decide about a call before it starts: they may answer it, change it, or make it wait."""
        hooks, number, call_id = self._inp.hooks, step.entry.step, call.call_id
        if hooks is None or not hooks.has(ToolStart) or call_id in step.results:
            return
        known = {*step.hooked, *step.opened, *step.slept, *step.begun}
        if call_id not in known and not call.invalid:
            found = await hooks.tool_started(call, number, fixed=fixed)
            if isinstance(found, ToolResult):
                await self._finished(step, [found])
            elif found is not None:
                await self._write([found], [])
                step.hooked[call_id] = found
        hooked = step.hooked.get(call_id)
        if hooked is not None and hooked.asks and call_id not in step.slept:
            arguments = step.as_hooked(call).arguments
            await self._wait_for(step, [OpenCall(call_id, call.name, arguments, "approval")])

    async def decided(self, calls: Sequence[OpenCall]) -> Mapping[str, ToolCall | ToolResult]:
        step = self._steps[-1] if self._steps else None
        for one in calls:
            if step is None or self._call(one.call_id)[1] is None:
                raise TurnFailed(
                    f"The call {one.call_id} of {one.name} cannot wait for a decision: it must be a call of the last "
                    "answer, and not one inside a tool.",
                    code="turn_function",
                )
        if step is None:
            return {}
        for one in calls:
            if (call := self._call(one.call_id)[1]) is not None and one.kind == "approval":
                await self._ask_hooks(step, call, fixed=True)
        return await self._wait_for(step, calls)

    async def _wait_for(self, step: Step, calls: Sequence[OpenCall]) -> Mapping[str, ToolCall | ToolResult]:
        """Return the decisions about calls. Raises ``_Suspend`` while one is undecided."""
        given = [self._given(step, one.call_id) for one in calls]
        await self._finished(step, [one for one in given if isinstance(one, ToolResult)])
        known = {
            one.call_id: found
            for one in calls
            if (found := self._given(step, one.call_id) or step.results.get(one.call_id))
        }
        waiting = [one for one in calls if one.call_id not in known]
        if not waiting:
            return known
        ids = {one.call_id for one in waiting}
        if not ids <= step.opened:
            step.opened |= ids
            await self._write([CallsOpened(step.entry.step, sorted(ids), version=3)], [])
        self.waiting = waiting
        raise _Suspend

    def decision(self, call_id: str) -> ToolCall | ToolResult | None:
        step, call = self._call(call_id)
        return None if step is None or call is None else self._given(step, call_id)

    def _given(self, step: Step, call_id: str) -> ToolCall | ToolResult | None:
        """Return the decision about a call. For an approved call, return the call even after it has run."""
        call = self._call(call_id)[1]
        decision = self._decision(step, call_id) or step.decisions.get(call_id)
        refusal = beyond(self._inp.max_tool_calls, call_id, self._steps)
        if call is not None and refusal:
            return step.results.get(call_id) or error_result(call, refusal)
        if call is None or decision is None:
            return None
        if decision.kind == "approve":
            return as_approved(step.as_hooked(call), decision)
        return step.results.get(call_id) or decided_result(call, decision)

    def _decision(self, step: Step, call_id: str) -> Decision | None:
        if call_id in step.approvals:
            return step.approvals[call_id]
        return self._decisions.get(call_id) if call_id in step.opened else None

    async def settle(self, results: Mapping[str, str]) -> None:
        step = self._steps[-1] if self._steps else None
        if step is not None:
            await self._finished(
                step,
                [
                    ToolResult(call.call_id, results[call.call_id], call.name)
                    for call in step.open_calls
                    if call.call_id in results
                ],
            )

    def _call(self, call_id: str) -> tuple[Step | None, ToolCall | None]:
        step = self._steps[-1] if self._steps and not _in_a_tool.get() else None
        calls = step.entry.message.tool_calls if step else []
        return step, next((call for call in calls if call.call_id == call_id), None)

    async def _finished(self, step: Step, results: Sequence[ToolResult]) -> None:
        results = [result for result in results if result.call_id not in step.results]
        if not results:
            return
        number, at = step.entry.step, now_ms()
        results = [self._toolbox.shortened(await self._hooked(step, result)) for result in results]
        if self._inp.files is not None:
            results = await self._inp.files.kept(results)
        entries = [
            ToolFinished(number, result, created=at, decision=noted(self._decision(step, result.call_id)))
            for result in results
        ]
        if self.context.variables != self._variables:
            self._variables = entries[-1].variables = plain_variables(self.context.variables)
        await self._write(entries, [result_event(result, number) for result in results])
        for entry in entries:
            step.finish(entry)

    async def _hooked(self, step: Step, result: ToolResult) -> ToolResult:
        """Return a result as changed by the hooks."""
        hooks, call = self._inp.hooks, self._call(result.call_id)[1]
        if hooks is None or call is None:
            return result
        return await hooks.tool_ended(step.as_hooked(call), result, step.entry.step)

    def _own_context(self, context: Context, call_id: str) -> Context:
        """Return a context for the function itself, or for a call that is not in an answer."""
        return context.of_call(call_id, 0, UnpublishedCall(self._durable_of(call_id, 0)))

    def _durable_of(self, call_id: str, step: int, approval: Decision | None = None) -> Durable:
        if call_id not in self._durable:
            self._durable[call_id] = Durable(
                call_id, step, self._known, self._decisions, self._write, self._journal.now, approval,
                self._inp.hooks, self._inp.running_children,
            )  # fmt: skip
        return self._durable[call_id]

    async def waits(self) -> list[OpenCall | Wait]:
        """Return what the turn waits for, decisions first. Raises the error that must fail the turn instead."""
        for durable in self._durable.values():
            await durable.end()
        sleeps = [wait for durable in self._durable.values() for wait in durable.waits]
        if sleeps:
            await self._write([], [])
        return [*self.waiting, *sleeps]

    async def _write(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        """Append to the journal. Concurrent calls write one after another."""
        async with self._writing:
            entries, self._unwritten = [*self._unwritten, *entries], []
            try:
                if entries:
                    await self._journal.append(entries, events)
            except BaseException as exc:
                self.fault = self.fault or exc
                raise

    # Its result.

    async def result(self, said: Any) -> LoopResult:
        """Return the result of the turn. Raises ``TurnFailed`` if there is no answer, and ``InvalidOutput``."""
        if isinstance(said, str):

            async def ask() -> ModelAnswer:
                return ModelAnswer(Message.assistant(said))

            await self._answered(await ask())
        if not self._steps:
            raise TurnFailed("The function of this turn returned no answer.", code="turn_function")
        for step in self._steps:
            for call in step.open_calls:
                step.results[call.call_id] = error_result(call, NO_RESULT)
        last = self._steps[-1].entry
        expected = self._inp.output and ExpectedOutput(self._inp.output).read(last.message.text)
        return LoopResult(
            messages=[message for step in self._steps for message in step.messages],
            usage=usage_of(step.entry for step in self._steps),
            stop_reason=last.stop_reason,
            raw_stop_reason=None,
            model=last.model,
            steps=len(self._steps),
            output=expected,
        )


def _content(said: Any) -> str:
    if isinstance(said, str):
        return said
    try:
        return msgspec.json.encode(said).decode()
    except (TypeError, ValueError, RecursionError):
        return str(said)
