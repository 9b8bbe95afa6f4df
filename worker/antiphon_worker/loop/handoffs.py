"""Hand-offs within the agent loop: the tools that pass a turn on, and their journal entries.

A hand-off is a tool call like any other, with approvals and hooks. It runs last, after all other calls of its answer
have results. Its result and the entry ``HandedOver`` are one write, so that every attempt at the turn agrees on the
agent in charge. The loop then ends, and a new loop with the other agent continues from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from antiphon.events import Handoff
from antiphon.handoffs import tool_of
from antiphon.input.request import HandoffSpec
from antiphon.model import ToolCall, ToolResult
from antiphon.model.revisions import Revision
from antiphon.tools import Tool
from antiphon_worker.loop.steps import HandedOver, Step

DESCRIPTION = "Hand the conversation over to the agent {name}, who then answers in your place."
DONE = "The agent {name} continues from here."
ONLY_ONE = "This tool was not run: an answer can hand over only once, and {name} was named first."
LONGEST_REASON = 1_000


class HandOff(Exception):
    """Another agent continues the turn: the journal has the hand-off."""


class Transfers(Struct):
    """The hand-offs that an agent may make. ``rules`` maps the names of their tools to them.

    ``most_steps`` is the limit of model calls for all agents of the turn together. ``revisions`` are those of the
    App.
    """

    source: str
    rules: dict[str, HandoffSpec]
    most_steps: int
    revisions: Mapping[str, Revision]

    @classmethod
    def of(
        cls, source: str, handoffs: Sequence[HandoffSpec], most_steps: int, revisions: Mapping[str, Revision]
    ) -> Transfers:
        return cls(source, {tool_of(one.name): one for one in handoffs}, most_steps, revisions)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """The tools of the hand-offs."""
        return [_tool(one.name, one.description) for one in self.rules.values()]

    def among(self, calls: Sequence[ToolCall]) -> ToolCall | None:
        """Return the first hand-off among these calls of an answer, or None."""
        return next((call for call in calls if call.name in self.rules), None)

    def refusal(self, step: Step, call: ToolCall) -> str:
        """Return why a call is not run (another hand-off of its answer precedes it), or ''."""
        first = self.among(step.entry.message.tool_calls)
        if call.name not in self.rules or first is None or first.call_id == call.call_id:
            return ""
        return ONLY_ONE.format(name=self.rules[first.name].name)

    def made(self, step: Step, results: Sequence[ToolResult]) -> HandedOver | None:
        """Return the hand-off that these results have made, or None."""
        for result in results:
            rule = self.rules.get(result.name)
            if rule is not None and not result.is_error:
                call = next(one for one in step.entry.message.tool_calls if one.call_id == result.call_id)
                known = self.revisions.get(rule.name)
                return HandedOver(
                    step.entry.step, self.source, rule.name, _reason(call), rule.history, rule.after,
                    known.id if known else "", self.most_steps,
                )  # fmt: skip
        return None


def handoff_event(entry: HandedOver) -> Handoff:
    """Return the event of a hand-off."""
    return Handoff(step=entry.step, source=entry.source, target=entry.target, reason=entry.reason)


@lru_cache(maxsize=256)
def _tool(name: str, description: str) -> Tool[..., Any]:
    async def transfer(reason: str = "") -> str:
        """Hand over.

        Args:
            reason: Why, in one sentence.
        """
        return DONE.format(name=name)

    about = DESCRIPTION.format(name=name)
    return Tool(transfer, name=tool_of(name), description=f"{about} {description}".strip())


def _reason(call: ToolCall) -> str:
    reason: Any = call.arguments.get("reason")
    return reason[:LONGEST_REASON] if isinstance(reason, str) else ""
