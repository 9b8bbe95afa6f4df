"""Runs the tool calls of a step concurrently, except those that wait for a decision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

from antiphon.errors import ToolArgumentsInvalid, UnknownTool
from antiphon.events import Event, ToolResultEvent
from antiphon.hooks import ToolStart
from antiphon.input.json_schema import misfits
from antiphon.input.values import now_ms
from antiphon.model import AtLimit, Decision, OpenCall, StopReason, Text, ToolCall, ToolResult, Wait
from antiphon.tools import Context
from antiphon.tools.approval import ApprovalRule
from antiphon.tools.results import decided_result, noted
from antiphon_worker.loop.durable import CallWaits, Durable, durable_entries
from antiphon_worker.loop.handoffs import HandOff, handoff_event
from antiphon_worker.loop.hooks import Hooks
from antiphon_worker.loop.input import LoopInput, Rules
from antiphon_worker.loop.step_events import Sink
from antiphon_worker.loop.steps import (
    CallsOpened,
    DurableEntry,
    HookedCall,
    Journal,
    JournalEntry,
    Step,
    ToolFinished,
    ToolStarted,
    plain_variables,
)
from antiphon_worker.loop.toolbox import AnyTool, RunningCall, ToolBox, is_stop, shorten

log = logging.getLogger("antiphon.tools")

RULE_SECONDS = 60.0


class Gate:
    """Determines which calls need a decision: an approval, or a result from the client.

    Calls of the workers' tools in ``steps`` beyond ``max_tool_calls`` are not run.
    """

    def __init__(self, toolbox: ToolBox, inp: LoopInput, steps: Sequence[Step]) -> None:
        self._toolbox = toolbox
        self._rules = inp.rules
        self._caller_tools = {tool.name: tool for tool in inp.caller_tools}
        self._most, self._steps = inp.max_tool_calls, steps
        self.hooks, self.transfers = inp.hooks, inp.transfers
        self.files, self.children = inp.files, inp.running_children
        self._uncounted = {*self._caller_tools, *(inp.transfers.rules if inp.transfers else ())}
        of_agent = inp.rules != Rules() or (inp.hooks is not None and inp.hooks.has(ToolStart))
        self._asked = {
            name: tool for name, tool in toolbox.tools.items() if of_agent or tool.approval.rule is not False
        }
        self.open = not self._asked and not self._caller_tools  # no call ever waits

    def of_caller(self, call: ToolCall) -> bool:
        return call.name in self._caller_tools

    async def waiting(self, calls: Sequence[ToolCall], opened: Collection[str]) -> list[OpenCall]:
        """Return the calls that wait. Those in ``opened`` are known to wait: no rule is asked about them."""
        found = await asyncio.gather(*(self._waits(call, call.call_id in opened) for call in calls))
        return [one for one in found if one is not None]

    def refusal(self, call: ToolCall) -> str:
        """Return why a call is not run (the turn's limit, or wrong arguments for a client-side tool), or ''."""
        tool = self._caller_tools.get(call.name)
        if tool is None:
            return beyond(self._most, call.call_id, self._steps, self._uncounted)
        reasons = ["they are not a JSON object"] if call.invalid else misfits(call.arguments, tool.parameters)
        return f"The arguments do not match {call.name}: {'; '.join(reasons)}." if reasons else ""

    async def _waits(self, call: ToolCall, known: bool) -> OpenCall | None:
        of_caller = self._caller_tools.get(call.name)
        if of_caller is not None:
            return _opened(call, "tool", of_caller.timeout, of_caller.at_limit)
        tool = self._asked.get(call.name)
        if tool is None or not _fits(tool, call):
            return None
        if known or await self._says(tool.approval, call, call.arguments):
            return self._for_approval(tool, call, required=True)
        if await self._says(self._rules.own, call, call):
            return self._for_approval(tool, call, required=True)
        if await self._says(self._rules.sent, call, call):
            return self._for_approval(tool, call, required=False)
        return None

    def _for_approval(self, tool: AnyTool, call: ToolCall, *, required: bool) -> OpenCall:
        """Return the call that waits for an approval. Its time limit is that of the tool, else of the agent."""
        own, sent = self._rules.own, self._rules.sent
        limit = next((one for one in (tool.approval, own) if one.seconds is not None), None)
        if limit is None and sent.seconds is not None:
            limit = sent
            if required and sent.at_limit == "approve":
                limit = msgspec.structs.replace(sent, at_limit="reject")
        return _opened(call, "approval", limit and limit.seconds, limit.at_limit if limit else "reject")

    async def _says(self, rule: ApprovalRule, call: ToolCall, given: Any) -> bool:
        """Return whether the rule requires a decision about the call. So does a rule that fails or takes too long."""
        if isinstance(rule.rule, bool):
            return rule.rule
        if isinstance(rule.rule, tuple):
            return call.name in rule.rule
        try:
            async with asyncio.timeout(RULE_SECONDS):
                return bool(await self._toolbox.threads.ask(rule.rule, _copied(given)))
        except BaseException as exc:
            if is_stop(exc):
                raise
            log.warning(
                "the rule for approvals of %s raised %s: the call waits for a decision", call.name,
                type(exc).__name__, extra={"action": "rule_failed", "tool": call.name},
            )  # fmt: skip
            return True


def beyond(most: int | None, call_id: str, steps: Sequence[Step], others: Container[str] = ()) -> str:
    """Return why a call exceeds the turn's limit of tool calls, or ''. Calls of ``others`` do not count.

    The order of the calls decides, so that the result is the same in every attempt.
    """
    if most is None:
        return ""
    made = [call for step in steps for call in step.entry.message.tool_calls if call.name not in others]
    if call_id not in {call.call_id for call in made[most:]}:
        return ""
    return f"This tool was not run: the turn may make {most} tool calls (max_tool_calls)."


def _fits(tool: AnyTool, call: ToolCall) -> bool:
    """Return False if the call cannot run: it then needs no approval, and the model gets the reason."""
    if call.invalid:
        return False
    try:
        tool.bind(call.arguments, Context())
    except ToolArgumentsInvalid:
        return False
    except BaseException:  # noqa: BLE001 - a type of the tool may raise anything; the call then raises it too
        return True
    return True


def _copied(given: Any) -> Any:
    """Return a copy, so that a rule cannot change what is run."""
    kind = ToolCall if isinstance(given, ToolCall) else dict[str, Any]
    return msgspec.convert(msgspec.to_builtins(given), kind)


def _opened(call: ToolCall, kind: Any, seconds: float | None, at_limit: AtLimit) -> OpenCall:
    return OpenCall(call.call_id, call.name, call.arguments, kind, seconds, at_limit)


def as_approved(call: ToolCall, decision: Decision | None) -> ToolCall:
    """Return the call as approved: with the arguments of the decision, if it has any."""
    if decision is None or decision.arguments is None:
        return call
    return ToolCall(call.call_id, call.name, decision.arguments)


def told(result: ToolResult, decision: Decision | None) -> ToolResult:
    """Return the result for the model, with a note if the call ran with arguments other than its own."""
    if decision is None or decision.arguments is None:
        return result
    text = msgspec.json.encode(decision.arguments).decode()
    note = f"[{decision.who or 'Whoever approved the call'} changed the arguments to {text}]"
    content = result.content
    content = f"{note}\n{content}" if isinstance(content, str) else [Text(note), *content]
    return msgspec.structs.replace(result, content=content)


EVENT_RESULT_CHARACTERS = 2_000
CANCEL_GRACE_SECONDS = 5.0
UNKNOWN_WHETHER_RUN = (
    "It is unknown whether this tool ran: the worker stopped after starting it, and it must not run twice."
)


class StepCalls:
    """The tool calls of a turn. ``decisions`` are those of the last suspension, by call id.

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
        self.hooks, self.transfers = gate.hooks, gate.transfers
        self._durable: dict[str, list[DurableEntry]] | None = None  # the journal's earlier entries
        self._writing = asyncio.Lock()
        self.variables = plain_variables(context.variables)  # the values in the journal

    async def take(self, step: Step) -> None:
        """Record the results of a step's calls that do not run, mainly those given by decisions.

        Raises ``UnknownTool`` if a call that has waited needs a tool that this worker lacks.
        """
        await self.journal.checkpoint()
        for call in step.to_run(self.decisions):
            if call.name not in self.toolbox.tools and not self.gate.of_caller(call):
                raise UnknownTool(
                    f"There is no tool {call.name!r} on this worker, but a call of it was waiting for a decision."
                )
        known = [
            await self._ended(call, result, step.entry.step)
            for call in step.open_calls
            if (result := self._without_running(step, call))
        ]
        if known:
            await self._record(step, known)

    async def run(self, step: Step) -> list[OpenCall | Wait]:
        """Run the calls of a step, and return what the others wait for: decisions, then sleeps and other waits.

        A hand-off runs when all other calls have results. Raises ``HandOff`` after it.
        """
        await self.take(step)
        if self.hooks is not None and self.hooks.has(ToolStart):
            await self._ask_hooks(step, self.hooks)
        waiting = [] if self.gate.open else await self._waiting(step)
        ids = {one.call_id for one in waiting}
        calls = [call for call in step.open_calls if call.call_id not in ids]
        transfer = self.transfers.among(calls) if self.transfers is not None else None
        if transfer is not None:
            calls.remove(transfer)
        sleeping = await self._run_side_by_side(step, calls)
        if not ids <= step.opened:
            await self._append([CallsOpened(step.entry.step, sorted(ids))], [])
        if transfer is not None and not waiting and not sleeping:
            await self._run_side_by_side(step, [transfer])
            if step.handed:
                raise HandOff
        return [*waiting, *sleeping]

    async def _ask_hooks(self, step: Step, hooks: Hooks) -> None:
        """Ask the hooks about the calls that may start now. Decisions in the journal are not requested again."""
        number = step.entry.step
        known = {*step.hooked, *step.opened, *step.slept, *step.begun}
        calls = [call for call in step.open_calls if call.call_id not in known and not call.invalid]
        found = await asyncio.gather(*(hooks.tool_started(call, number) for call in calls))
        changed = [one for one in found if isinstance(one, HookedCall)]
        if changed:
            await self._append(changed, [])
            step.hooked.update((one.call_id, one) for one in changed)
        given = zip(calls, found, strict=True)
        results = [await self._ended(call, one, number) for call, one in given if isinstance(one, ToolResult)]
        if results:
            await self._record(step, results)

    async def _ended(self, call: ToolCall, result: ToolResult, step: int) -> ToolResult:
        """Return a result as changed by the hooks."""
        if self.hooks is None:
            return result
        return self.toolbox.shortened(await self.hooks.tool_ended(call, result, step))

    def _without_running(self, step: Step, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that must not run (again), or None if it may run."""
        if call.call_id in step.started:
            return error_result(call, UNKNOWN_WHETHER_RUN)
        decision = self._decision(step, call.call_id)
        if decision is not None:
            result = decided_result(call, decision, has_code=not self.gate.of_caller(call))
            return result and self.toolbox.shortened(result)
        refusal = self.gate.refusal(call)
        if not refusal and self.transfers is not None:
            refusal = self.transfers.refusal(step, call)
        return error_result(call, refusal) if refusal else None

    def _decision(self, step: Step, call_id: str) -> Decision | None:
        if call_id in step.approvals:
            return step.approvals[call_id]
        return self.decisions.get(call_id) if call_id in step.opened else None

    async def _waiting(self, step: Step) -> list[OpenCall]:
        undecided = [
            step.as_hooked(call)
            for call in step.open_calls
            if call.call_id not in step.slept and self._decision(step, call.call_id) is None
        ]
        asked = {call_id for call_id, hooked in step.hooked.items() if hooked.asks}
        return await self.gate.waiting(undecided, step.opened | asked)

    async def _run_side_by_side(self, step: Step, calls: list[ToolCall]) -> list[Wait]:
        """Run calls in parallel, and write each result to the journal. Returns the waits of suspended calls."""
        number = step.entry.step
        starting = self._starting(step, calls)
        if starting:
            await self._append(starting, [])
        durable = [self._durable_of(step, call.call_id) for call in calls]
        running = [
            RunningCall(
                as_approved(step.as_hooked(call), self._decision(step, call.call_id)),
                number,
                self.sink,
                self.context.turn_id,
                one,
            )
            for call, one in zip(calls, durable, strict=True)
        ]
        tasks = [
            asyncio.create_task(self._run_tool(call, one), name=f"tool {call.call.name}")
            for call, one in zip(running, durable, strict=True)
        ]
        waiting = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                finished = [result for task in tasks if task not in waiting and (result := task.result())]
                await self._record(
                    step,
                    [
                        told(result, self._decision(step, result.call_id))
                        for result in finished
                        if result.call_id not in step.results
                    ],
                    ran=True,
                )
        finally:
            try:
                await _cancel(waiting)
            finally:
                for one in running:
                    one.close()
        return [wait for one in durable for wait in one.waits]

    def _durable_of(self, step: Step, call_id: str) -> Durable:
        if self._durable is None:
            self._durable = durable_entries(self.journal.entries)
        return Durable(
            call_id, step.entry.step, self._durable, self.decisions, self._append, self.journal.now,
            self._decision(step, call_id), self.hooks, self.gate.children,
        )  # fmt: skip

    async def _append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        """Write to the journal. Concurrent calls write one after another."""
        async with self._writing:
            await self.journal.append(entries, events)

    def _starting(self, step: Step, calls: list[ToolCall]) -> list[ToolStarted]:
        """Return the entries to journal before these calls start."""
        approved = step.opened - step.begun
        return [
            ToolStarted(step.entry.step, call.call_id, again=not once)
            for call in calls
            if (once := self.toolbox.at_most_once(call.name)) or call.call_id in approved
        ]

    async def _run_tool(self, running: RunningCall, durable: Durable) -> ToolResult | None:
        """Run a call. Returns None if it waits."""
        call, result = running.call, None
        async with self.room:
            with running, suppress(CallWaits):
                result = await self.toolbox.run(
                    call, self.context.of_call(call.call_id, running.step, running)
                )
        await durable.end()
        if result is None or durable.waits:
            return None
        return await self._ended(call, result, running.step)

    async def _record(self, step: Step, results: list[ToolResult], *, ran: bool = False) -> None:
        number = step.entry.step
        if self.gate.files is not None:
            results = await self.gate.files.kept(results)
        at = now_ms()
        entries = [
            ToolFinished(number, result, created=at, decision=noted(self._decision(step, result.call_id)))
            for result in results
        ]
        if results and self.context.variables != self.variables:
            self.variables = entries[-1].variables = plain_variables(self.context.variables)
        events: list[Event] = [result_event(result, number) for result in results]
        handed = self.transfers.made(step, results) if ran and self.transfers is not None else None
        if handed is None:
            await self._append(entries, events)
        else:
            await self._append([*entries, handed], [*events, handoff_event(handed)])
            step.handed = True
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


async def _cancel(tasks: set[asyncio.Task[ToolResult | None]]) -> None:
    """Cancel the tool calls of an ended turn. A call that ignores the cancellation is abandoned after a few seconds."""
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS)


def result_of_open(call: ToolCall, step: Step, stop_reason: StopReason, limit: str | None) -> ToolResult:
    """Return the error result of a call that its turn leaves without a result."""
    if call.call_id in step.started:
        reason = UNKNOWN_WHETHER_RUN
    elif limit == "steps":
        reason = "This tool was not run: the turn had used all its steps."
    elif stop_reason == "limit":
        reason = f"This tool was not run: the turn had reached its limit ({limit})."
    else:
        reason = f"This tool was not run: the answer was cut off ({stop_reason})."
    return error_result(call, reason)
