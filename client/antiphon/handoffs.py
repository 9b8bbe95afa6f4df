"""Hand-offs: which agents an agent may pass a turn to, and what they receive.

>>> from antiphon import Agent
>>> from antiphon.handoffs import Handoff
>>> billing = Agent("scripted", "any", name="billing", system="You answer questions about invoices.")
>>> support = Agent("scripted", "any", name="support", handoffs=[Handoff(billing, after="stay")])
>>> [one.tool for one in support.handoffs]
['transfer_to_billing']
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.request import AfterHandoff, AgentSpec, HandoffSpec, PassedOn
from antiphon.input.values import check_word

__all__ = ["Handoff"]

_UNUSABLE = re.compile(r"[^a-zA-Z0-9_-]")
LONGEST_TOOL_NAME = 64


class Named(Protocol):
    """A tool."""

    name: str


class Target(Protocol):
    """An agent."""

    name: str | None
    handoffs: list[Handoff]

    def described(self) -> AgentSpec: ...
    def alone(self) -> AgentSpec: ...


class Handoff(Struct, frozen=True):
    """An agent to which another one may pass a turn: ``Agent(…, handoffs=[Handoff(billing, history="input")])``.

    ``agent`` is an ``Agent``, or the name of one in the workers' Apps. ``history`` is what it receives: ``"all"`` (the
    session's history, the input and the turn's messages so far), ``"turn"`` (without the history) or ``"input"``
    (only the input). ``after`` determines which agent answers the session's next turns: ``"return"`` is the one
    that they name, ``"stay"`` the agent that took over this turn. ``description`` is for the model: when to hand over.

    >>> Handoff("billing", description="For questions about invoices.").after
    'return'
    """

    agent: Target | str
    history: PassedOn = "all"
    after: AfterHandoff = "return"
    description: str | None = None

    @property
    def name(self) -> str:
        """The name of the agent.

        >>> Handoff("billing").name
        'billing'
        """
        return self.agent if isinstance(self.agent, str) else self.agent.name or ""

    @property
    def tool(self) -> str:
        """The name of the tool that the model calls to hand over.

        >>> Handoff("second level").tool
        'transfer_to_second_level'
        """
        return tool_of(self.name)

    def spec(self) -> HandoffSpec:
        """Return the hand-off as plain data, without its agent.

        >>> Handoff("billing", history="turn").spec().history
        'turn'
        """
        return HandoffSpec(self.name, self.description or "", self.history, self.after)


def tool_of(name: str) -> str:
    """Return the name of the tool that a model calls to hand over to the agent with this name."""
    return f"transfer_to_{_UNUSABLE.sub('_', name)}"[:LONGEST_TOOL_NAME]


def checked_handoffs(given: Any, own: str | None, tools: Iterable[Named]) -> list[Handoff]:
    """Return the checked hand-offs of the agent ``own``. ``tools`` are its other tools. Raises ``UsageError``."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"handoffs= must be a list of Agents, names of agents or Handoffs, not {given!r}.")
    found = [_checked(one, own) for one in cast("Iterable[Any]", given)]
    taken = {tool.name for tool in tools}
    for one in found:
        if one.tool in taken:
            raise UsageError(
                f"The hand-off to {one.name!r} needs the tool {one.tool!r}, and the agent has another one with that "
                "name: rename the other tool, or give each agent of handoffs= a different name."
            )
        taken.add(one.tool)
    return found


def _checked(given: Any, own: str | None) -> Handoff:
    one = given if isinstance(given, Handoff) else Handoff(given)
    if not (isinstance(one.agent, str) or callable(getattr(one.agent, "described", None))) or not one.name:
        raise UsageError(f"handoffs= needs Agents with a name=, names of agents or Handoffs, not {given!r}.")
    if one.name == own:
        raise UsageError(f"The agent {own!r} cannot hand a turn over to itself: leave it out of handoffs=.")
    check_word(one.history, PassedOn, "history=")
    check_word(one.after, AfterHandoff, "after=")
    if one.description is not None and not isinstance(cast("Any", one.description), str):
        raise UsageError(f"description= of a Handoff must be text, not {one.description!r}.")
    return one


def with_targets(agent: Target, known: dict[str, Target] | None = None) -> AgentSpec:
    """Return an agent in the form that is sent with a turn, with the agents that it hands over to, each once.

    Raises ``UsageError`` if one of them cannot be sent, or if two have the same name.
    """
    known = {} if known is None else known
    known[agent.name or ""] = agent
    spec = agent.alone()
    for one, handoff in zip(spec.handoffs, agent.handoffs, strict=True):
        if isinstance(handoff.agent, str):
            continue
        if one.name not in known:
            one.agent = with_targets(handoff.agent, known)
        elif known[one.name] is not handoff.agent:
            raise UsageError(
                f"Two agents that hand over turns have the name {one.name!r}: give each its own."
            )
    return spec


def found_within(agent: AgentSpec, name: str) -> AgentSpec | None:
    """Return the agent with this name among those that were sent with an agent, or None."""
    for one in agent.handoffs:
        if one.agent is not None:
            found = one.agent if one.name == name else found_within(one.agent, name)
            if found is not None:
                return found
    return None


def without_targets(agent: AgentSpec) -> Any:
    """Return an agent as plain data, without the agents that were sent with it."""
    if not agent.handoffs:
        return msgspec.to_builtins(agent)
    handoffs = [msgspec.structs.replace(one, agent=None) for one in agent.handoffs]
    return msgspec.to_builtins(msgspec.structs.replace(agent, handoffs=handoffs))
