"""Approval rules of tool calls, and the decisions that callers make about pending ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, cast, get_args

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidTool, ToolRaised, UsageError
from antiphon.events import ChildEvent, Event, TurnSuspended
from antiphon.input.limits import check_depth, check_size
from antiphon.input.values import duration, is_a
from antiphon.model import AtLimit, Decision, OpenCall, ToolCall, encode
from antiphon.tools.results import content_of
from antiphon.tools.threads import Threads

Answer: TypeAlias = bool | Awaitable[bool]
ToolRule: TypeAlias = bool | Callable[[dict[str, Any]], Answer]
AgentRule: TypeAlias = bool | Iterable[str] | Callable[[ToolCall], Answer]


class ApprovalRule(Struct, frozen=True):
    """Which calls wait: all, none, those of some tools, or those for which a function returns True.

    A tool's function receives the arguments, an agent's function the whole call. ``seconds`` is how long a call waits;
    None is forever.
    """

    rule: bool | tuple[str, ...] | Callable[[Any], Answer] = False
    seconds: float | None = None
    at_limit: AtLimit = "reject"

    @property
    def plain(self) -> bool | list[str]:
        """Return the rule as plain data. A function becomes True, which is never less strict."""
        return [*self.rule] if isinstance(self.rule, tuple) else self.rule is not False


def tool_rule(tool: str, rule: object, seconds: float | timedelta | None, at_limit: object) -> ApprovalRule:
    """Check the rule of a tool. Raises ``InvalidTool``."""
    if not isinstance(rule, bool) and not callable(rule):
        raise InvalidTool(
            f"approval= of the tool {tool} must be True, False or a function of the arguments, not {rule!r}."
        )
    try:
        limit = duration(seconds, f"approval_timeout= of the tool {tool}")
        return ApprovalRule(cast("ToolRule", rule), limit, check_at_limit(at_limit, "approval_at_limit"))
    except UsageError as exc:
        raise InvalidTool(exc.message) from exc


def agent_rule(
    rule: object, seconds: float | timedelta | None, at_limit: object, known: Sequence[str]
) -> ApprovalRule:
    """Check the rule of an agent. Raises ``UsageError``.

    ``known`` are the names of its tools, or the beginnings of names, which end with ``__``.
    """
    found: Any = rule
    if isinstance(rule, str) or not (isinstance(rule, bool | Iterable) or callable(rule)):
        raise UsageError(
            f"approval= must be True, a list of names of tools or a function of the call, not {rule!r}."
        )
    if not isinstance(found, bool) and not callable(found):
        found = tuple(cast("Iterable[Any]", rule))
        for name in found:
            if name not in known and "".join(str(name).partition("__")[:2]) not in known:
                raise UsageError(
                    f"approval= names {name!r}, but the agent's tools are: {', '.join(known) or 'none'}."
                )
    return ApprovalRule(
        cast("Any", found),
        duration(seconds, "approval_timeout"),
        check_at_limit(at_limit, "approval_at_limit"),
    )


def check_at_limit(value: object, name: str) -> AtLimit:
    """Check what happens when a call has waited too long. Raises ``UsageError``."""
    if value not in get_args(AtLimit):
        raise UsageError(f"{name}= must be 'reject', 'approve' or 'fail', not {value!r}.")
    return cast("AtLimit", value)


Verdict: TypeAlias = bool | str | Mapping[str, Any]
OnTool: TypeAlias = Callable[[OpenCall], Any]
OnApproval: TypeAlias = Callable[[OpenCall], Verdict | Awaitable[Verdict]]

CALLER = "the caller"

_THREADS = Threads()


def asked_by(event: Event) -> list[OpenCall]:
    """Return the pending tool calls of a suspension event, of the turn itself or of a child turn below it."""
    match event:
        case TurnSuspended():
            return event.calls
        case ChildEvent() if event.event.get("type") == TurnSuspended.type:
            found = msgspec.convert(event.event.get("calls", []), list[OpenCall])
            return [
                msgspec.structs.replace(call, call_id=f"{event.child_id}:{call.call_id}") for call in found
            ]
        case _:
            return []


async def answers(
    calls: Sequence[OpenCall], on_tool: OnTool | None, on_approval: OnApproval | None
) -> AsyncGenerator[Decision, None]:
    """Ask the caller's functions about the calls, one after the other. A call without a function stays pending.

    The return value of ``on_tool`` is the result; an exception becomes an error that the model reads. ``on_approval``
    returns True, False, the reason to reject the call, or arguments to approve it with; its exceptions are raised.
    Synchronous functions run in a thread.
    """
    for call in calls:
        if call.kind == "tool" and on_tool is not None:
            yield await _result(call, on_tool)
        elif call.kind == "approval" and on_approval is not None:
            yield _verdict(call, await _THREADS.ask(on_approval, call))


async def _result(call: OpenCall, on_tool: OnTool) -> Decision:
    try:
        return result_of(call.call_id, await _THREADS.ask(on_tool, call), None, is_error=False)
    except Exception as exc:  # noqa: BLE001 - as in a tool, the model reads any exception
        return result_of(call.call_id, f"{type(exc).__name__}: {exc}", None, is_error=True)


def _verdict(call: OpenCall, verdict: Any) -> Decision:
    if verdict is True:
        return approval_of(call.call_id, CALLER, None)
    if isinstance(verdict, Mapping):
        return approval_of(call.call_id, CALLER, cast("Mapping[str, Any]", verdict))
    if verdict is False:
        return rejection_of(call.call_id, CALLER, None)
    if isinstance(verdict, str):
        return rejection_of(call.call_id, CALLER, verdict)
    raise UsageError(
        f"on_approval= must return True, False, a reason or new arguments, not {verdict!r} ({call.name})."
    )


def approval_of(call_id: str, by: str | None, arguments: Mapping[str, Any] | None) -> Decision:
    """Return the decision that approves a call, with other arguments if given. Raises ``UsageError``."""
    found = None if arguments is None else _plain(arguments)
    return _checked(Decision(_text(call_id, "call_id"), "approve", _name(by), arguments=found))


def rejection_of(call_id: str, by: str | None, reason: str | None) -> Decision:
    """Return the decision that rejects a call. Raises ``UsageError``."""
    why = None if reason is None else _text(reason, "reason")
    return _checked(Decision(_text(call_id, "call_id"), "reject", _name(by), why))


def result_of(call_id: str, result: Any, by: str | None, *, is_error: bool) -> Decision:
    """Return the decision that gives a call its result, any value that a tool may return. Raises ``UsageError``."""
    if not is_a(is_error, bool):
        raise UsageError(f"is_error= must be True or False, not {is_error!r}.")
    try:
        content = content_of(result)
    except ToolRaised as exc:
        raise UsageError(exc.message) from exc
    call = _text(call_id, "call_id")
    return _checked(Decision(call, "result", _name(by), content=content, is_error=is_error))


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if not is_a(arguments, Mapping):
        raise UsageError(f"arguments= must be a dictionary, not {type(arguments).__name__}.")
    try:
        found = msgspec.json.decode(msgspec.json.encode(dict(arguments)), type=dict[str, Any])
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"arguments= cannot be written as JSON: {exc}.") from exc
    check_depth(found, "arguments=")
    return found


def _checked(decision: Decision) -> Decision:
    try:
        check_size("decision_bytes", len(encode(decision)), "The decision in bytes")
    except (UnicodeEncodeError, TypeError) as exc:
        raise UsageError(f"The decision cannot be written as JSON: {exc}.") from exc
    return decision


def _name(by: str | None) -> str | None:
    return None if by is None else _text(by, "by")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UsageError(f"{name}= must be a non-empty string, not {value!r}.")
    return value
