"""The agent loop: call the model, run its tool calls, write the journal, and repeat until the model has answered.

The loop works with a provider, tools, a journal and a sink. It does not use Redis. The caller owns the turn: entries
accepted by ``journal.append`` survive a crash of this process, events in the sink do not.

- Steps count from 1. A step with tool calls is written to the journal before the calls start, and each result when it
  is available. The last step of a turn is returned in the ``LoopResult`` and is not written to the journal, so that a
  turn without tools needs no append.
- If the journal has entries of an earlier attempt, the loop continues after them. It does not repeat finished steps
  and tool calls. It repeats a call that was started without a result, except for ``at_most_once`` tools: these have a
  ``ToolStarted`` entry, and the model gets the result that it is unknown whether they ran.
- Tool calls are run if the model stopped for them (``tool_use``, or ``end`` from servers that do not distinguish the
  two). If the answer was cut off (``max_tokens``, a filter, a refusal), they are not run: each gets an error result
  with that reason, and the turn ends with that stop reason.
- After ``max_steps`` model calls, or at another limit of the ``Meter``, the turn ends: with the stop reason ``limit``
  if the last answer has text, else with ``StepLimitReached`` or ``LimitReached``. The calls of the last answer are not
  run, because the model would not see their results. A stop condition ends the turn after them.
- If a model is given up, the agent's next fallback continues the turn. The output of its last step is withdrawn, as
  in a retry.
- Calls that wait for a decision (an approval, or the result of a client-side tool) do not run, and others may sleep.
  When the rest of their step has results, the loop ends with ``Suspended``. It continues from the journal with the
  decisions: rejected calls and results from the client are recorded, the others run, and then the model is called.
- With a schema, the answer must match it. The first answer that does not is written to the journal as rejected, and
  the model is called once more, one step beyond ``max_steps`` if need be. A second mismatch raises ``InvalidOutput``,
  and so does an answer that was cut off in a tool call. A rejected answer and the request to correct it are not in
  the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.errors import (
    AgentError,
    ContextTooLong,
    InvalidOutput,
    LimitReached,
    ProviderError,
    StepLimitReached,
)
from antiphon.events import Event, StepFinished, ToolCallEvent
from antiphon.input.values import now_ms
from antiphon.model import Decision, Item, Message, OpenCall, Response, StopReason, ToolOutcome, Usage, Wait
from antiphon.tools import Context
from antiphon_worker.loop.background import kept_answer
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.output import ExpectedOutput, OutputEvents
from antiphon_worker.loop.sent_history import SentHistory, cut_results
from antiphon_worker.loop.step_calls import Gate, StepCalls, result_event, result_of_open
from antiphon_worker.loop.step_events import Sink, StepEvents, answered, check_answer
from antiphon_worker.loop.steps import (
    PAID,
    Journal,
    Step,
    StepEntry,
    place_of,
    steered_of,
    steps_of,
    turn_steps,
    usage_of,
    variables_of,
    with_distinct_calls,
)
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.loop.visible_history import whole
from antiphon_worker.providers.base import ModelRequest, OutputSchema, Provider, StepResult
from antiphon_worker.resilience import CallTimeouts, Fallback, ModelChoice, changed, unforced

RUNS_TOOLS: frozenset[StopReason] = frozenset({"tool_use", "end"})


class LoopResult(Struct):
    """The result of a turn.

    ``messages`` are the assistant and tool messages and the steering messages in order, without the input. ``usage``
    is the total of all ``steps`` (model calls).
    """

    messages: list[Message]
    usage: Usage
    stop_reason: StopReason
    raw_stop_reason: str | None
    model: str | None
    steps: int
    output: Any = None
    limit: str | None = None

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
            output=self.output,
            tool_calls=outcomes,
            messages=self.messages,
            usage=self.usage,
            stop_reason=self.stop_reason,
            raw_stop_reason=self.raw_stop_reason,
            model=self.model,
            turn_id=turn_id,
            session_id=session_id,
            limit=self.limit,
        )


class Suspended(Struct):
    """The turn waits for decisions about these calls and for the end of these waits. Other calls have results."""

    calls: list[OpenCall | Wait]


async def run_loop(
    provider: Provider, inp: LoopInput, toolbox: ToolBox, journal: Journal, sink: Sink, context: Context,
    decisions: Mapping[str, Decision] | None = None, history: SentHistory | None = None,
) -> LoopResult | Suspended:  # fmt: skip
    """Run a turn until the model has answered, or continue a turn that an earlier attempt began.

    ``toolbox`` runs the tools; ``inp.tools`` are those that the model may call. ``decisions`` are those of the last
    suspension, by call id. ``history`` shortens ``inp.history`` if the model refuses its length. Raises the errors of
    provider, journal and meter, ``StepLimitReached`` and ``InvalidOutput``; errors of tools do not raise.
    """
    own = toolbox.offering(inp.tools)
    return await _Loop(provider, inp, own, journal, sink, context, decisions or {}, history).run()


class _Loop:
    __slots__ = (
        "_calls", "context", "decisions", "expected", "first_model", "history", "inp", "input", "journal", "meter",
        "model", "output", "sink", "steered", "steps", "toolbox",
    )  # fmt: skip

    def __init__(
        self, provider: Provider, inp: LoopInput, toolbox: ToolBox, journal: Journal, sink: Sink, context: Context,
        decisions: Mapping[str, Decision], history: SentHistory | None,
    ) -> None:  # fmt: skip
        self.model = self.first_model = ModelChoice(provider, inp.model, inp.params)
        self.inp = inp
        self.meter = inp.meter
        self.journal = journal
        self.sink = sink
        self.steps = steps_of(journal.entries)
        self.steered = steered_of(journal.entries)  # for the next model call
        if (changed := variables_of(journal.entries)) is not None:
            context.variables.clear()
            context.variables.update(changed)
        self.toolbox = toolbox
        self.context = context
        self.decisions = decisions
        self._calls: StepCalls | None = None  # once there are any
        self.history = history
        self.input = self._input()
        self.expected = None if inp.output is None else ExpectedOutput(inp.output)
        self.output: Any = None

    async def run(self) -> LoopResult | Suspended:
        if (fallback := self.inp.fallback) is not None:
            self.model = await fallback.at(place_of(self.steps, self.journal.entries), self.first_model)
        self.meter.begin(
            self.model.model, [one.usage for one in self.journal.entries if isinstance(one, PAID)]
        )
        while True:
            last = self.steps[-1] if self.steps else None
            if last and _ends_turn(last.entry):
                return self._finish(last, last.entry.stop_reason)
            if last and self.decisions and last.open_calls:
                await self.calls.take(last)  # even if a limit was reached in the meantime
            if reached := self._reached() if last else self.meter.reached():
                return self._finish_at_limit(last, reached)
            if last:
                if last.open_calls:
                    waiting = await self.calls.run(last)
                    if waiting:
                        return Suspended(waiting)
                if stop := await self.meter.stopped(lambda: turn_steps(self.steps), self.toolbox.threads):
                    return self._finish(last, "limit", stop)
            await self._call_model(len(self.steps) + 1)

    def _reached(self) -> AgentError | None:
        """Return the limit that prevents another model call, or None."""
        if len(self.steps) >= self._most_steps:
            return StepLimitReached(
                f"The turn used all its {self.inp.max_steps} steps without an answer: raise max_steps."
            )
        return self.meter.reached()

    @property
    def calls(self) -> StepCalls:
        if self._calls is None:
            gate = Gate(self.toolbox, self.inp, self.steps)
            self._calls = StepCalls(
                self.toolbox, gate, self.journal, self.sink, self.context, self.decisions, self.meter.room
            )
        return self._calls

    async def _call_model(self, number: int) -> None:
        await self.journal.checkpoint()
        self.steered += await self.journal.steered(number)
        fallback = self.inp.fallback
        answer = await (self._ask(number) if fallback is None else self._ask_each(number, fallback))
        self._hold_to_limits(number, answer)
        if self.inp.files is not None:
            answer.message = await self.inp.files.kept_answer(answer.message)
        message = with_distinct_calls(answer.message, self._call_ids() if self.steps else ())
        message.created = now_ms()
        usage = self.meter.count(answer.usage, answer.model, self.model.model)
        entry = StepEntry(
            number, message, usage, answer.stop_reason, answer.raw_stop_reason, answer.model,
            fallback=self.model.place, sent=self.history and self.history.unsaved(),
        )  # fmt: skip
        wrong = None if self.expected is None else self._misfit(entry, self.expected)
        self.steps.append(Step(entry, self.steered))
        self.steered = []
        events: list[Event] = [
            StepFinished(
                step=number, usage=entry.usage, stop_reason=entry.stop_reason, model=entry.model,
                raw_stop_reason=_own_word(answer), rejected=entry.rejected,
            )
        ]  # fmt: skip
        events += [
            ToolCallEvent(step=number, call_id=call.call_id, name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ]
        if wrong or _ends_turn(entry) or number >= self._most_steps:
            self._publish(events)
        else:
            await self.journal.append([entry], events)
        if wrong:
            raise wrong

    def _hold_to_limits(self, number: int, answer: StepResult) -> None:
        """Raise ``LimitReached`` for an answer that must not be kept. Its usage is counted."""
        try:
            check_answer(answer.message)
        except LimitReached:
            usage = self.meter.count(answer.usage, answer.model, self.model.model)
            self._publish([StepFinished(step=number, usage=usage, stop_reason=answer.stop_reason)])
            raise

    def _misfit(self, entry: StepEntry, expected: ExpectedOutput) -> InvalidOutput | None:
        """Read the answer of a step according to the schema. Marks it as rejected if the model may correct it.

        Returns the error if it does not match and may not be corrected.
        """
        if not _ends_turn(entry):
            return None
        try:
            self.output = expected.read(entry.message.text)
        except InvalidOutput as exc:
            entry.rejected = exc.message
            return exc if self._corrected or entry.message.tool_calls else None
        return None

    def _call_ids(self) -> Iterable[str]:
        return (call.call_id for step in self.steps for call in step.entry.message.tool_calls)

    @property
    def _corrected(self) -> bool:
        return any(step.entry.rejected for step in self.steps)

    @property
    def _most_steps(self) -> int:
        return self.inp.max_steps + self._corrected

    async def _ask_each(self, number: int, fallback: Fallback) -> StepResult:
        """Call the model; if it is given up, call the agent's next fallback."""
        while True:
            try:
                return await self._ask(number)
            except ProviderError as exc:
                failed = self.model
                found = await fallback.after(exc, failed, self.first_model)
                if found is None:
                    raise
                self.meter.check_price(found.model)
                self._publish(changed(number, exc, failed, found))
                self.model = found
                await self.journal.checkpoint()

    async def _ask(self, number: int) -> StepResult:
        """Call the model, again with less history if it refuses the length. Increments become events immediately.

        Waits only while the sink is full.
        """
        provider = self.model.provider
        name = provider.name
        while True:
            request = self._request(number)
            if self.inp.files is not None:
                request.messages = await self.inp.files.filled(request.messages)
            stream = provider.stream(request)
            outlet = (
                StepEvents(number, name, self.sink)
                if self.expected is None
                else OutputEvents(number, name, self.sink, self.expected)
            )
            try:
                if self.inp.timeouts is None:
                    return await answered(stream, outlet)
                async with CallTimeouts(self.inp.timeouts, name, outlet):
                    return await answered(stream, outlet)
            except asyncio.CancelledError:
                self.meter.count_stopped(request, stream, outlet)
                raise
            except ContextTooLong as exc:
                if self.history is None:
                    raise
                self._publish([await self.history.shorten(number, exc, self.model, request.messages)])
                self.inp.history = self.history.visible.messages
                self.input = self._input()
                await self.journal.checkpoint()

    def _input(self) -> list[Message]:
        return whole([*self.inp.history, *self.inp.notes, *self.inp.new_messages])

    def _request(self, number: int) -> ModelRequest:
        inp, output, params = self.inp, self.inp.output, self.model.params
        shown = [message for step in self.steps for message in step.shown]
        if self.history is not None and self.history.results_cut:
            shown = cut_results(shown)[0]
        return ModelRequest(
            model=self.model.model,
            messages=[*self.input, *shown, *self.steered],
            system=inp.system,
            tools=inp.offered,
            output=OutputSchema(output.name, output.schema, output.strict) if output else None,
            params=unforced(params) if self.steps else params,
            gate=inp.gate, cache_key=inp.cache_key, step=number,
            keeper=kept_answer(self.journal, number, self.model, self.meter) if "background" in params else None,
        )  # fmt: skip

    def _finish_at_limit(self, last: Step | None, reached: AgentError) -> LoopResult:
        if last is None:
            raise reached
        text = last.entry.message.text
        try:
            self.output = self.expected.read(text) if self.expected else None
        except InvalidOutput:
            text = ""
        if not text.strip():
            raise reached
        return self._finish(last, "limit", getattr(reached, "limit", "steps"))

    def _finish(self, last: Step, stop_reason: StopReason, limit: str | None = None) -> LoopResult:
        """Return the result. Calls that will not be run get an error result with the reason."""
        for call in last.open_calls:
            result = result_of_open(call, last, stop_reason, limit)
            last.results[call.call_id] = result
            last.created = now_ms()
            self._publish([result_event(result, last.entry.step)])
        return LoopResult(
            messages=[message for step in self.steps for message in step.messages],
            usage=usage_of(step.entry for step in self.steps),
            stop_reason=stop_reason,
            raw_stop_reason=last.entry.raw_stop_reason,
            model=last.entry.model,
            steps=len(self.steps),
            output=self.output,
            limit=limit,
        )

    def _publish(self, events: Iterable[Event]) -> None:
        for event in events:
            self.sink.put(event)


def _ends_turn(entry: StepEntry) -> bool:
    """Return False if the answer must be corrected, if tools must be run, or if the provider must be called again.

    The provider is called again to finish its own tools: its stop reason is then ``tool_use``, and the message has
    items of the provider but no tool calls.
    """
    message = entry.message
    if entry.rejected:
        return False
    if message.tool_calls:
        return entry.stop_reason not in RUNS_TOOLS
    return entry.stop_reason != "tool_use" or not any(isinstance(part, Item) for part in message.parts)


def _own_word(answer: StepResult) -> str:
    """Return the model service's own stop reason if it differs from ours, else ''."""
    raw = answer.raw_stop_reason or ""
    return "" if raw == answer.stop_reason else raw
