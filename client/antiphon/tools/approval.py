"""Rules that say which tool calls wait until somebody approves them, and how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, cast, get_args

from msgspec import Struct

from antiphon.errors import InvalidTool, UsageError
from antiphon.input.values import duration
from antiphon.model import AtLimit, ToolCall

__all__ = ["AgentRule", "ApprovalRule", "ToolRule", "agent_rule", "check_at_limit", "tool_rule"]

Answer: TypeAlias = bool | Awaitable[bool]
ToolRule: TypeAlias = bool | Callable[[dict[str, Any]], Answer]
AgentRule: TypeAlias = bool | Iterable[str] | Callable[[ToolCall], Answer]


class Named(Protocol):
    """A tool."""

    name: str


class ApprovalRule(Struct, frozen=True):
    """Which calls wait: all, none, those of some tools, or those for which a function returns True.

    The function of a tool gets the arguments, that of an agent the whole call. ``seconds`` is how long a call waits;
    None is forever.
    """

    rule: bool | tuple[str, ...] | Callable[[Any], Answer] = False
    seconds: float | None = None
    at_limit: AtLimit = "reject"

    @property
    def plain(self) -> bool | list[str]:
        """The rule as plain data. A function becomes True, which is never less strict."""
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
    rule: object, seconds: float | timedelta | None, at_limit: object, tools: Iterable[Named]
) -> ApprovalRule:
    """Check the rule of an agent that has these tools. Raises ``UsageError``."""
    known = [tool.name for tool in tools]
    found: Any = rule
    if isinstance(rule, str) or not (isinstance(rule, bool | Iterable) or callable(rule)):
        raise UsageError(
            f"approval= must be True, a list of names of tools or a function of the call, not {rule!r}."
        )
    if not isinstance(found, bool) and not callable(found):
        found = tuple(cast("Iterable[Any]", rule))
        for name in found:
            if name not in known:
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
