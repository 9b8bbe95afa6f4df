"""The revision of an agent: a short hash of everything that changes how it behaves."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from antiphon.errors import UsageError
from antiphon.input.values import is_a
from antiphon.tools.approval import ApprovalRule
from antiphon.tools.children import ChildTool

if TYPE_CHECKING:
    from antiphon.hooks import Hook
    from antiphon.input.request import AgentSpec
    from antiphon.mcp import MCP
    from antiphon.memory.declaration import Memory
    from antiphon.model.usage import Limits
    from antiphon.tools import Tool

DIGITS = 12
OPERATIONAL = ("queue", "retry", "timeouts", "version")
"""Fields outside the revision: they affect how turns reach the model, not what it is asked or may do."""


_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Described(Protocol):
    """An agent."""

    @property
    def tools(self) -> Sequence[Tool[..., Any]]: ...
    @property
    def approval(self) -> ApprovalRule: ...
    @property
    def memory(self) -> Memory | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def hooks(self) -> Sequence[Hook[Any]]: ...
    @property
    def mcp(self) -> Sequence[MCP | str]: ...

    def described(self) -> AgentSpec: ...


def revision_of(
    agent: Described,
    *,
    memory: Memory | None = None,
    limits: Limits | None = None,
    hooks: Sequence[Hook[Any]] = (),
    servers: Sequence[MCP] = (),
) -> str:
    """Return the revision of an agent whose App has this ``memory`` and these ``limits`` and ``hooks`` for all.

    ``servers`` are those that the App declares for the agent. The tools that MCP servers list do not count.
    Functions count by their names: Python's code and addresses differ between processes and versions.
    """
    spec: dict[str, Any] = msgspec.to_builtins(agent.described())
    whole = {name: value for name, value in spec.items() if name not in OPERATIONAL}
    whole["tools"] = [_tool(tool) for tool in agent.tools]
    whole["approval"] = _rule(agent.approval)
    whole["memory"] = _memory(agent.memory or memory)
    whole["label"] = agent.label
    whole["app_limits"] = None if limits is None else msgspec.to_builtins(limits.named())
    if named := [hook.name for hook in [*hooks, *agent.hooks]]:
        whole["hooks"] = named
    if agent.mcp:
        whole["mcp"] = [one if isinstance(one, str) else one.described() for one in servers or agent.mcp]
    return digest_of(whole)


def checked_label(label: Any) -> str | None:
    """Check the label of a revision. Raises ``UsageError``."""
    if label is not None and not (is_a(label, str) and _LABEL.fullmatch(label)):
        raise UsageError(f"label= must be 1 to 64 letters, digits, '_', '.' and '-', not {label!r}.")
    return label


def digest_of(whole: Mapping[str, Any]) -> str:
    """Return a short hash of JSON, independent of the order of its members.

    >>> digest_of({"a": 1, "b": None}) == digest_of({"b": None, "a": 1})
    True
    """
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()[:DIGITS]


def _tool(tool: Tool[..., Any]) -> dict[str, Any]:
    child = {"agent": tool.agent.name, "seconds": tool.wait_seconds} if isinstance(tool, ChildTool) else {}
    return child | {
        "name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict,
        "timeout": tool.timeout, "at_most_once": tool.at_most_once, "approval": _rule(tool.approval),
    }  # fmt: skip


def _rule(rule: ApprovalRule) -> list[Any]:
    return [_named(rule.rule) if callable(rule.rule) else rule.rule, rule.seconds, rule.at_limit]


def _memory(memory: Memory | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    facts = memory.facts
    return {
        "name": memory.name, "scope": memory.scope, "recall": memory.recall, "count": memory.count,
        "tokens": memory.tokens, "filter": None if memory.filter is None else _named(memory.filter),
        "facts": None if facts is None else [
            facts.name, facts.provider, facts.model, facts.params, facts.instructions, facts.most,
        ],
    }  # fmt: skip


def _named(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
