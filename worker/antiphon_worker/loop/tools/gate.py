"""Which tool calls wait for a decision, and what a decision makes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import ToolArgumentsInvalid
from antiphon.model import AtLimit, CallerTool, Decision, OpenCall, Text, ToolCall, ToolResult
from antiphon.tools import Context
from antiphon.tools.approval import ApprovalRule
from antiphon_worker.loop.answers.schema_check import misfits
from antiphon_worker.loop.tools.calls import is_stop
from antiphon_worker.loop.tools.toolbox import AnyTool, ToolBox

__all__ = ["Gate", "Rules", "as_approved", "told"]

log = logging.getLogger("antiphon.tools")

RULE_SECONDS = 60.0


class Rules(Struct, frozen=True):
    """The rules of an agent beside those of its tools.

    ``own`` is the rule of the agent itself. ``sent`` is that of an agent that came with the turn to an App: it may
    let more calls wait, but a call that waits without it is not approved because ``sent`` says so.
    """

    own: ApprovalRule = ApprovalRule()
    sent: ApprovalRule = ApprovalRule()


class Gate:
    """Says of each call whether it waits: for an approval, or for a result from the caller."""

    def __init__(self, toolbox: ToolBox, rules: Rules, caller_tools: Sequence[CallerTool]) -> None:
        self._toolbox = toolbox
        self._rules = rules
        self._caller_tools = {tool.name: tool for tool in caller_tools}
        of_agent = rules != Rules()
        self._asked = {
            name: tool for name, tool in toolbox.tools.items() if of_agent or tool.approval.rule is not False
        }
        self.open = not self._asked and not self._caller_tools  # no call ever waits

    def of_caller(self, call: ToolCall) -> bool:
        return call.name in self._caller_tools

    async def waiting(self, calls: Sequence[ToolCall], opened: Collection[str]) -> list[OpenCall]:
        """Return those of the calls that wait. Of those in ``opened``, which have waited before, no rule is asked."""
        found = await asyncio.gather(*(self._waits(call, call.call_id in opened) for call in calls))
        return [one for one in found if one is not None]

    def misfit(self, call: ToolCall) -> str:
        """Return why the arguments of a call of the caller's tool do not fit, '' if they do."""
        tool = self._caller_tools.get(call.name)
        if tool is None:
            return ""
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
        """The time limit is the tool's, else that of its agent."""
        own, sent = self._rules.own, self._rules.sent
        limit = next((one for one in (tool.approval, own) if one.seconds is not None), None)
        if limit is None and sent.seconds is not None:
            limit = sent
            if required and sent.at_limit == "approve":
                limit = msgspec.structs.replace(sent, at_limit="reject")
        return _opened(call, "approval", limit and limit.seconds, limit.at_limit if limit else "reject")

    async def _says(self, rule: ApprovalRule, call: ToolCall, given: Any) -> bool:
        """Whether the rule wants a decision about the call. A rule that fails, or takes too long, wants one."""
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


def _fits(tool: AnyTool, call: ToolCall) -> bool:
    """False if the call cannot run: nobody needs to approve it, and the model is told why."""
    if call.invalid:
        return False
    try:
        tool.bind(call.arguments, Context())
    except ToolArgumentsInvalid:
        return False
    except BaseException:  # noqa: BLE001 - a type of the tool's own may raise anything; then it does so in the call
        return True
    return True


def _copied(given: Any) -> Any:
    """A copy, so that a rule cannot change what is run."""
    kind = ToolCall if isinstance(given, ToolCall) else dict[str, Any]
    return msgspec.convert(msgspec.to_builtins(given), kind)


def _opened(call: ToolCall, kind: Any, seconds: float | None, at_limit: AtLimit) -> OpenCall:
    return OpenCall(call.call_id, call.name, call.arguments, kind, seconds, at_limit)


def as_approved(call: ToolCall, decision: Decision | None) -> ToolCall:
    """Return the call as it was approved: with the arguments of whoever approved it, if there are any."""
    if decision is None or decision.arguments is None:
        return call
    return ToolCall(call.call_id, call.name, decision.arguments)


def told(result: ToolResult, decision: Decision | None) -> ToolResult:
    """Return the result as the model is told it: it learns that a call ran with other arguments than its own."""
    if decision is None or decision.arguments is None:
        return result
    text = msgspec.json.encode(decision.arguments).decode()
    note = f"[{decision.by or 'Whoever approved the call'} changed the arguments to {text}]"
    content = result.content
    content = f"{note}\n{content}" if isinstance(content, str) else [Text(note), *content]
    return msgspec.structs.replace(result, content=content)
