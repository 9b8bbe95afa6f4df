"""Runs the hooks of a turn, and applies what they return. Turns without hooks do not use this module."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from antiphon.errors import TurnFailed
from antiphon.hooks import (
    Answer,
    Ask,
    Block,
    Hook,
    ModelEnd,
    ModelStart,
    Moment,
    Replace,
    StepEnd,
    StepStart,
    ToolEnd,
    ToolStart,
    TurnEnd,
    TurnFailure,
    TurnStart,
    Verdict,
)
from antiphon.input.messages import to_input, to_messages
from antiphon.input.request import AgentSpec, TurnRequest
from antiphon.model import Message, Part, Response, Text, ToolCall, ToolResult, Usage
from antiphon.tools import Context
from antiphon.tools.durable import plain_result
from antiphon.tools.threads import Threads
from antiphon.window import byte_size
from antiphon_worker.loop.costs import Meter
from antiphon_worker.loop.step_events import Sink, StepEvents, answered, withdrawn
from antiphon_worker.loop.steps import HookedCall, HookedInput, Journal, input_of, plain_variables
from antiphon_worker.loop.toolbox import ToolBox, is_stop
from antiphon_worker.providers.base import (
    Increment,
    ModelRequest,
    Outlet,
    Provider,
    Source,
    StepResult,
    TextPiece,
)

log = logging.getLogger("antiphon.hooks")

M = TypeVar("M", bound=Moment)

FAILED = "A check of this {what} failed, so it was stopped."
WITHDRAWN = "A hook withdrew the answer."
_NAMES: dict[type[Moment], str] = {
    TurnStart: "turn", TurnEnd: "turn", TurnFailure: "turn", ModelStart: "model call", ModelEnd: "answer",
    ToolStart: "tool call", ToolEnd: "tool result", StepStart: "step", StepEnd: "step",
}  # fmt: skip


class _Failed(Block, frozen=True):
    """The verdict of a hook that failed."""


class Hooks:
    """The hooks of one turn, in order: those of the App before those of the agent."""

    def __init__(
        self, hooks: Sequence[Hook[Any]], threads: Threads, context: Context, agent: str | None
    ) -> None:
        self._hooks = hooks
        self._threads = threads
        self._context = context
        self._agent = agent
        self.holds = any(hook.hold for hook in hooks)

    def has(self, *moments: type[Moment]) -> bool:
        """Return whether a hook runs at one of these moments."""
        return any(moment in hook.moments for hook in self._hooks for moment in moments)

    async def run(self, moment: M, *, fixed: bool = False) -> tuple[M, Verdict | None]:
        """Return the moment as changed by the hooks, and ``Block``, ``Answer`` or ``Ask`` if one returned it.

        After ``Block`` or ``Answer``, no further hooks run. After ``Ask``, the others may still block. If the moment
        is ``fixed``, nothing in it can be replaced.
        """
        asked: Verdict | None = None
        for hook in self._hooks:
            if type(moment) not in hook.moments:
                continue
            verdict = await self._ask(hook, moment, fixed=fixed)
            if isinstance(verdict, Replace):
                moment = msgspec.structs.replace(moment, **verdict.changes)
            elif isinstance(verdict, Ask):
                asked = verdict
            elif verdict is not None:
                return moment, verdict
        return moment, asked

    async def _ask(self, hook: Hook[Any], moment: Moment, *, fixed: bool = False) -> Verdict | None:
        """Return what a hook returns. A hook that fails blocks, unless it has ``on_error="continue"``."""
        try:
            async with asyncio.timeout(hook.seconds):
                return _checked(moment, await self._threads.ask(hook.function, moment), fixed=fixed)
        except BaseException as exc:
            if is_stop(exc):
                raise
            turn = self._context.turn_id
            log.warning(
                "hook %s in turn %s failed at %s: %s", hook.name, turn, type(moment).__name__, type(exc).__name__,
                extra={"action": "hook_failed", "hook": hook.name, "turn": turn},
            )  # fmt: skip
            log.debug("hook %s in turn %s failed", hook.name, turn, exc_info=exc)
            if hook.on_error == "continue":
                return None
            return _Failed(FAILED.format(what=_NAMES[type(moment)]))

    def context(self, call_id: str = "", step: int = 0) -> Context:
        """Return the context of a moment. Hooks may read the variables, but their changes have no effect."""
        found = self._context.of_call(call_id, step)
        found.variables = plain_variables(found.variables)
        return found

    async def started(self, messages: list[Message], journal: Journal) -> list[Message]:
        """Return the input of the turn. Changes by hooks are journalled, so that they are decided only once."""
        if journal.entries or not self.has(TurnStart):
            return messages
        moment, verdict = await self.run(TurnStart(self.context(), self._agent, _copied(messages)))
        _raise_blocked(verdict)
        if moment.input == messages:
            return messages
        for message in moment.input:
            message.by = message.by or next((one.by for one in messages if one.by), None)
        await journal.append([HookedInput(moment.input)], [])
        return moment.input

    async def ended(self, response: Response, sink: Sink, step: int) -> None:
        """Run the hooks for the answer of the turn. Raises ``TurnFailed`` if one blocks it."""
        moment = TurnEnd(
            self.context(), self._agent, response.text, response.output, response.tool_calls, response.usage
        )
        _, verdict = await self.run(moment)
        if verdict is not None:
            sink.put(withdrawn(step, WITHDRAWN))
        _raise_blocked(verdict)

    async def failed(self, code: str, error: str) -> None:
        """Notify the hooks that the turn fails. Their results are ignored."""
        moment = TurnFailure(self.context(), self._agent, code, error)
        for hook in self._hooks:
            if TurnFailure in hook.moments:
                await self._ask(hook, moment)

    async def tool_started(
        self, call: ToolCall, step: int, *, fixed: bool = False
    ) -> HookedCall | ToolResult | None:
        """Return the result of a call that must not run, or the change of it: new arguments, or that it waits.

        If the call is ``fixed``, its arguments cannot change.
        """
        context = self.context(call.call_id, step)
        before = ToolStart(context, self._agent, call.name, _plain(call.arguments))
        moment, verdict = await self.run(before, fixed=fixed)
        if isinstance(verdict, Block):
            return ToolResult(call.call_id, verdict.reason, call.name, is_error=True)
        if isinstance(verdict, Answer):
            return ToolResult(call.call_id, verdict.text, call.name)
        changed = moment.arguments if moment is not before else None
        if changed is None and verdict is None:
            return None
        return HookedCall(step, call.call_id, changed, asks=verdict is not None)

    async def tool_ended(self, call: ToolCall, result: ToolResult, step: int) -> ToolResult:
        """Return the result of a call for the journal and the model."""
        if not self.has(ToolEnd):
            return result
        context = self.context(call.call_id, step)
        arguments = _plain(call.arguments)
        before = ToolEnd(context, self._agent, call.name, arguments, result.text, result.is_error)
        moment, verdict = await self.run(before)
        if isinstance(verdict, Block):
            return ToolResult(call.call_id, verdict.reason, call.name, is_error=True)
        if moment is before:
            return result
        return msgspec.structs.replace(result, content=moment.result)

    async def step_started(self, name: str, call_id: str, step: int) -> str:
        """Return why a durable step must not run, or ''."""
        _, verdict = await self.run(StepStart(self.context(call_id, step), self._agent, name))
        return verdict.reason if isinstance(verdict, Block) else ""

    async def step_ended(self, name: str, value: Any, error: str, call_id: str, step: int) -> tuple[Any, str]:
        """Return the value and the error of a durable step for the journal."""
        moment, verdict = await self.run(
            StepEnd(self.context(call_id, step), self._agent, name, _plain(value), error)
        )
        return (None, verdict.reason) if isinstance(verdict, Block) else (moment.value, error)

    async def model_started(
        self, request: ModelRequest, step: int, *, fixed: bool = False
    ) -> tuple[ModelRequest, Answer | None]:
        """Return the request of a model call, and its answer if a hook has given one. Raises ``TurnFailed``."""
        if not self.has(ModelStart):
            return request, None
        before = ModelStart(
            self.context("", step), self._agent, step, request.model, request.system, _copied(request.messages),
            _plain(request.params),
        )  # fmt: skip
        moment, verdict = await self.run(before, fixed=fixed)
        _raise_blocked(verdict)
        if moment is not before:
            request = msgspec.structs.replace(
                request, **{name: getattr(moment, name) for name in ModelStart.replaces}
            )
        return request, verdict if isinstance(verdict, Answer) else None

    async def model_ended(self, answer: StepResult, step: int) -> tuple[StepResult, Block | None]:
        """Return the answer of a model to keep, and ``Block`` if a hook blocks it."""
        if not self.has(ModelEnd):
            return answer, None
        [message] = _copied([answer.message])
        context = self.context("", step)
        before = ModelEnd(
            context, self._agent, step, answer.model, answer.message.text, message, answer.usage
        )
        moment, verdict = await self.run(before)
        if isinstance(verdict, Block):
            return answer, verdict
        if moment is before:
            return answer, None
        parts = _with_text(answer.message.parts, moment.text)
        return msgspec.structs.replace(
            answer, message=msgspec.structs.replace(answer.message, parts=parts)
        ), None


async def hooks_of_turn(
    hooks: Sequence[Hook[Any]], toolbox: ToolBox, context: Context, agent: AgentSpec, request: TurnRequest,
    journal: Journal,
) -> Hooks | None:  # fmt: skip
    """Run the hooks for the input of a turn, and return all hooks; None if there are none.

    ``request`` then has the turn's final input: replacements by hooks also apply to later attempts. Raises
    ``TurnFailed`` if a hook blocks the turn.
    """
    request.messages = input_of(journal.entries, request.messages)
    if not hooks:
        return None
    found = Hooks(hooks, toolbox.threads, context, agent.name)
    request.messages = await found.started(request.messages, journal)
    return found


class HookedProvider:
    """A provider whose calls run the hooks. Their time does not count towards the time limits of the service.

    With ``fixed``, hooks cannot replace anything of a request.
    """

    def __init__(self, provider: Provider, hooks: Hooks, meter: Meter, *, fixed: bool = False) -> None:
        self.provider = provider
        self.fixed = fixed
        self.hooks = hooks
        self.meter = meter
        self.name = provider.name

    def stream(self, request: ModelRequest) -> Any:
        """Return a call; it supports only ``into``."""
        return _HookedCall(self, request)

    async def aclose(self) -> None:
        """Close the provider."""
        await self.provider.aclose()


class _HookedCall:
    """One call of a ``HookedProvider``."""

    def __init__(self, hooked: HookedProvider, request: ModelRequest) -> None:
        self._hooked = hooked
        self._request = request
        self._stream: object = None

    @property
    def counted(self) -> Usage:
        """What the service has counted so far."""
        return getattr(self._stream, "counted", Usage())

    async def into(self, outlet: Outlet) -> StepResult:
        """Make the call, and return its answer as changed by the hooks.

        Raises as ``Provider.stream`` does, and ``TurnFailed``.
        """
        hooks, meter = self._hooked.hooks, self._hooked.meter
        step = outlet.step if isinstance(outlet, StepEvents) else 0
        with _pausing(outlet):
            request, given = await hooks.model_started(self._request, step, fixed=self._hooked.fixed)
        if request.model != self._request.model:
            meter.check_price(request.model)
        held = _Held(outlet) if hooks.holds else None
        answer = await self._answer(request, given, held or outlet)
        with _pausing(outlet):
            kept, blocked = await hooks.model_ended(answer, step)
        if blocked is not None:
            meter.count(answer.usage, answer.model, request.model)
            if held is None and isinstance(outlet, StepEvents):
                outlet.withdraw(WITHDRAWN)
            _raise_blocked(blocked)
        text = None if kept is answer else kept.message.text
        if held is not None:
            await held.release(text)
        elif text is not None:
            if isinstance(outlet, StepEvents):
                outlet.withdraw(WITHDRAWN)
            outlet.append(TextPiece(text))
        return kept

    async def _answer(self, request: ModelRequest, given: Answer | None, outlet: Outlet) -> StepResult:
        if given is None:
            self._stream = stream = self._hooked.provider.stream(request)
            return await answered(stream, outlet)
        outlet.append(TextPiece(given.text))
        return StepResult(Message.assistant(given.text), Usage(), "end", None, request.model)


class _Held:
    """An outlet that holds an answer back until the hooks have accepted it."""

    full = False

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._held: list[Increment] = []

    @property
    def step(self) -> int:
        """The step whose answer it holds back."""
        return getattr(self._outlet, "step", 0)

    @property
    def received(self) -> int:
        """How many bytes of the answer have arrived."""
        return getattr(self._outlet, "received", 0)

    def append(self, increment: Increment) -> None:
        """Keep an increment. It counts as received for the time limits of the call."""
        self._held.append(increment)
        if isinstance(self._outlet, StepEvents):
            self._outlet.heard = True
            if isinstance(increment, TextPiece):
                self._outlet.held += byte_size(increment.text)

    async def drain(self) -> None:
        """Return at once: the size of an answer is limited elsewhere."""

    def read_from(self, source: Source | None) -> None:
        """Do nothing, because no reader waits for what is held back."""

    async def release(self, text: str | None) -> None:
        """Pass everything on, with ``text`` in place of the original text if given."""
        outlet, replaced = self._outlet, text is not None
        if isinstance(outlet, StepEvents):
            outlet.held = 0
        held = [one for one in self._held if not (replaced and isinstance(one, TextPiece))]
        for increment in [*held, *([TextPiece(text)] if text is not None else [])]:
            outlet.append(increment)
            if outlet.full:
                await outlet.drain()


@contextmanager
def _pausing(outlet: Outlet) -> Generator[None]:
    """Exclude the time of hooks from the time limits of a call."""
    if not isinstance(outlet, StepEvents):
        yield
        return
    outlet.paused = True
    try:
        yield
    finally:
        outlet.paused = False


def _raise_blocked(verdict: Verdict | None) -> None:
    if isinstance(verdict, Block):
        raise TurnFailed(verdict.reason, code="hook_failed" if isinstance(verdict, _Failed) else "blocked")


def _with_text(parts: Sequence[Part], text: str) -> list[Part]:
    """Return the parts with the first text replaced by this one, and the other texts removed."""
    place = next((n for n, part in enumerate(parts) if isinstance(part, Text)), len(parts))
    before, after = parts[:place], parts[place:]
    return [*before, Text(text), *(part for part in after if not isinstance(part, Text))]


def _copied(messages: Sequence[Message]) -> list[Message]:
    """Return copies, so that a hook does not change the originals by accident."""
    return msgspec.convert(msgspec.to_builtins(messages), list[Message])


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _checked(moment: Moment, verdict: object, *, fixed: bool = False) -> Verdict | None:
    """Return a hook's verdict with its values converted for the turn. Raises if it is invalid here."""
    if verdict is None:
        return None
    if isinstance(verdict, Replace):
        allowed = () if fixed else moment.replaces
        if wrong := [name for name in verdict.changes if name not in allowed]:
            raise TypeError(f"{type(moment).__name__} does not let hooks replace {wrong[0]} here")
        return Replace(**{name: _READ.get(name, _text)(value) for name, value in verdict.changes.items()})
    if not isinstance(verdict, moment.verdicts):
        raise TypeError(f"{type(moment).__name__} does not take a {type(verdict).__name__}")
    if isinstance(verdict, Block):
        _text(verdict.reason)
    elif isinstance(verdict, Answer):
        _text(verdict.text)
    return cast("Verdict", verdict)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is expected, not {type(value).__name__}")
    value.encode()  # lone surrogates cannot be stored
    return value


def _object(value: Any) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])


_READ: dict[str, Callable[[Any], Any]] = {
    "input": to_input,
    "messages": to_messages,
    "system": lambda value: None if value is None else _text(value),
    "params": _object,
    "arguments": _object,
    "value": partial(plain_result, "a hook"),
}
