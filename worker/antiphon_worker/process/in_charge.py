"""Determines the agent in charge of a turn: the one it asks for, or the one it was handed to.

Within a turn, the journal has the hand-offs. Across turns, the last message of the last turn names the agent that
stays, so that a rewound, forked or restored session has the agent that its history ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.handoffs import found_within
from antiphon.input.request import AgentSpec, TurnRequest
from antiphon.model import InCharge, Message, decode_message
from antiphon.tools.caller import caller_tools
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.app import App
from antiphon_worker.loop.handoffs import Transfers
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import HandedOver, JournalEntry, Routed, variables_of
from antiphon_worker.loop.visible_history import LoadedHistory


class Charge(Struct, frozen=True):
    """The agent in charge of a turn. ``asked`` is the agent to request from the App.

    ``first`` is False for an agent other than the turn's own: the turn's instructions and parameters do not apply to
    it. ``handed`` is the hand-off that put it in charge. ``stays`` names the agent for the session's next turns.
    """

    asked: str | AgentSpec | None
    first: bool = True
    handed: HandedOver | None = None
    stays: InCharge | None = None
    begins: bool = True
    """Whether the turn has begun with this agent, so that the turn's revision is that agent's."""
    model: str | None = None
    """The model that a router has chosen for this agent."""

    def request(self, request: TurnRequest) -> TurnRequest:
        """Return the part of a request that applies to this agent."""
        part = request if self.first else msgspec.structs.replace(request, params={}, instructions=None)
        return (
            msgspec.structs.replace(part, params=part.params | {"model": self.model}) if self.model else part
        )

    def brought(self, request: TurnRequest) -> dict[str, Any]:
        """Return the parameters that the turn brings for this agent, without a model chosen by a router."""
        if not self.first:
            return {}
        return request.params | ({"caller_tools": True} if request.caller_tools else {})

    def variables(self, before: dict[str, Any], entries: Sequence[JournalEntry]) -> dict[str, Any]:
        """Return the session's variables for the system prompt: those at the hand-off."""
        if (handed := self.handed) is None:
            return before
        earlier = takewhile(lambda entry: getattr(entry, "step", 0) <= handed.step, entries)
        return variables_of(earlier) or before

    def prepare(self, inp: LoopInput, agent: AgentSpec, history: LoadedHistory, app: App) -> None:
        """Add the agent's hand-offs to the input of the loop, and remove what was not passed on to the agent.

        Raises ``InvalidTool`` if a client-side tool of the turn has the name of a hand-off.
        """
        most = inp.max_steps
        if (handed := self.handed) is not None:
            most = handed.most_steps or most
            inp.max_steps = min(most, handed.step + inp.max_steps)
            if handed.history != "all":
                history.messages, history.start, history.counted, history.summary = [], 0, None, None
        if agent.handoffs:
            inp.transfers = Transfers.of(agent.name or "", agent.handoffs, most, app.revisions)
            caller_tools(inp.caller_tools, inp.transfers.tools)
            inp.tools = [*inp.tools, *inp.transfers.tools]

    def mark(self, messages: Sequence[Message]) -> None:
        """Let the last message of the turn name the agent that stays."""
        if messages and self.stays is not None:
            messages[-1].in_charge = self.stays


def charge_of(turn: ClaimedTurn, asked: str | AgentSpec | None, entries: Sequence[JournalEntry]) -> Charge:
    """Return the agent now in charge of a turn that asks for ``asked``, or for a router's choice."""
    routed = next((entry for entry in entries if isinstance(entry, Routed)), None) if entries else None
    asked = routed.agent if routed is not None and routed.agent is not None else asked
    handed = [entry for entry in entries if isinstance(entry, HandedOver)] if entries else []
    own = asked.name or "" if isinstance(asked, AgentSpec) else asked or ""
    first = _left_by(turn.history, own)
    if not handed and first == own:
        return Charge(asked, model=routed.model if routed else None)
    name = handed[-1].target if handed else first
    stays = next((one.target for one in reversed(handed) if one.after == "stay"), first)
    sent = found_within(asked, name) if isinstance(asked, AgentSpec) else None
    return Charge(
        asked if name == own else sent or name,
        name == own,
        handed[-1] if handed else None,
        None if stays == own else InCharge(stays, own),
        name == first,
        routed.model if routed and not handed else None,
    )


def _left_by(history: Sequence[bytes], own: str) -> str:
    """Return the agent that the last turn left in charge for turns that ask for ``own``; by default ``own``."""
    for data in reversed(history):
        if b'"in_charge"' in data:
            charge = decode_message(data).in_charge
            if charge is not None:
                return charge.agent if charge.asked == own else own
        if b'"turn_id"' in data:
            break
    return own
