"""Builds the input of the agent loop from the agent, the turn and the session, for every runtime."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from antiphon.input.request import AgentSpec, OutputSpec, TurnRequest
from antiphon.input.values import now_ms
from antiphon.model import CallerTool, Message, Timeouts
from antiphon.session.work import AgentLike, Work
from antiphon.tools import Context, Tool
from antiphon.tools.approval import ApprovalRule
from antiphon.tools.caller import caller_tools
from antiphon.tools.children import ChildTool
from antiphon.window import Window, window_of
from antiphon_worker.loop.costs import Meter
from antiphon_worker.loop.files import TurnFiles
from antiphon_worker.loop.handoffs import Transfers
from antiphon_worker.loop.hooks import Hooks
from antiphon_worker.loop.toolbox import tool_specs
from antiphon_worker.providers.base import Provider, ToolSpec
from antiphon_worker.providers.http.limits import Gate
from antiphon_worker.resilience import Fallback

MAX_STEPS = 32

_NAME = re.compile(r"\{([^\W\d]\w*)\}")


class Rules(Struct, frozen=True):
    """The rules of an agent, in addition to those of its tools.

    ``own`` is the rule of the agent itself. ``sent`` is the rule of an inline agent for the tools of an App: it may
    make more calls wait, but cannot approve calls that wait regardless of it.
    """

    own: ApprovalRule = ApprovalRule()
    sent: ApprovalRule = ApprovalRule()


class ChildTurns(Protocol):
    """The child turns of one turn."""

    def begun(self, call_id: str) -> str:
        """Return the name of the agent that was started for a call, or ''."""
        ...

    async def ask(self, tool: ChildTool, text: str, context: Context) -> str:
        """Run an agent for the call of this context, and return its answer. Raises ``ToolError``."""
        ...

    async def stop(self) -> None:
        """Cancel the children whose calls have no results."""
        ...


class LoopInput(Struct):
    """The input of the agent loop for one turn.

    ``window`` selects the part of the session's history that becomes ``history``. ``notes`` are sent between the
    history and the new messages, and are not stored. ``tools`` and ``caller_tools`` are the tools that the model may
    call, and ``rules`` determine which calls wait for an approval. ``timeouts`` apply to the model calls, and
    ``fallback`` has the models that answer if this one fails. Calls wait at ``gate`` for rate limits. ``meter``
    counts what the turn uses against its limits. ``cache_key`` is the session's id. ``hooks`` is None for a turn
    without hooks, and ``transfers`` for an agent without hand-offs; the tools of hand-offs are among ``tools``.
    ``children`` runs the agents that the model, tools or a function call; without agents among the tools, it is None
    until the first one runs. ``files`` are the session's stored files. ``charge`` wraps the provider of a turn
    function's model calls: for budgets, kept requests, or both.
    """

    model: str
    system: str | None = None
    history: list[Message] = field(default_factory=list)
    new_messages: list[Message] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)
    tools: Sequence[Tool[..., Any]] = ()
    output: OutputSpec | None = None
    params: dict[str, Any] = field(default_factory=dict)
    max_steps: int = MAX_STEPS
    window: Window = Window()
    timeouts: Timeouts | None = None
    fallback: Fallback | None = None
    gate: Gate | None = None
    meter: Meter = field(default_factory=Meter)
    caller_tools: Sequence[CallerTool] = ()
    max_tool_calls: int | None = None
    rules: Rules = Rules()
    cache_key: str = ""
    hooks: Hooks | None = None
    transfers: Transfers | None = None
    children: ChildTurns | None = None
    begin_children: Callable[[], ChildTurns] | None = None
    files: TurnFiles | None = None
    charge: Callable[[Provider], Provider] | None = None

    def running_children(self) -> ChildTurns:
        """Return the children of the turn; create them on first use."""
        if self.children is None:
            assert self.begin_children is not None
            self.children = self.begin_children()
        return self.children

    @property
    def offered(self) -> list[ToolSpec]:
        """The definitions of all tools for a model."""
        offered = tool_specs(self.tools)
        for one in self.caller_tools:
            offered.append(ToolSpec(one.name, one.description, one.parameters))
        return offered


def loop_input(
    agent: AgentLike | AgentSpec,
    turn: Work | TurnRequest,
    tools: Sequence[Tool[..., Any]],
    system: str | None,
    variables: Mapping[str, Any],
    rules: Rules,
    meter: Meter | None = None,
) -> LoopInput:
    """Return the input of a turn, without the history.

    Parameters of the turn override those of the agent. ``system`` is the system prompt of the turn or its session,
    and overrides the agent's. Raises ``UsageError`` if the agent's window is not valid, and ``InvalidTool`` if a
    client-side tool has the name of another tool.
    """
    params = {**agent.params, **turn.params}
    meter = meter or Meter()
    most_steps, limited = agent.max_steps or MAX_STEPS, meter.limits.steps
    prompt, of_caller = system or agent.system, [*agent.caller_tools, *turn.caller_tools]
    return LoopInput(
        model=params.pop("model", None) or agent.model,
        system=fill_prompt(prompt, variables) if prompt else None,
        new_messages=turn.messages,
        tools=tools,
        output=turn.output,
        params=params,
        max_steps=most_steps if limited is None else min(most_steps, limited),
        window=window_of(agent.window),
        meter=meter,
        caller_tools=caller_tools(of_caller, tools) if of_caller else (),
        max_tool_calls=turn.max_tool_calls,
        rules=rules,
    )


def fill_prompt(prompt: str, variables: Mapping[str, Any]) -> str:
    """Replace each ``{name}`` in the prompt by the variable with that name. Other braces stay unchanged.

    >>> fill_prompt('Greet {user}. Answer as {"text": …}, not {format}.', {"user": "Alice"})
    'Greet Alice. Answer as {"text": …}, not {format}.'
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return _text(variables[name]) if name in variables else found[0]

    return _NAME.sub(value, prompt) if variables else prompt


def stamp(
    asked: Sequence[Message], said: Sequence[Message], turn_id: str, asked_at: int, author: str | None = None
) -> list[Message]:
    """Set the ids of a turn's messages, the time of its input and the agent of its answers, before they are stored.

    The time of the input is that of the submission. The loop has set the times of the later messages.
    """
    for message in asked:
        message.created = message.created or asked_at
    messages = [*asked, *said]
    for number, message in enumerate(messages, 1):
        message.id = f"{turn_id}.{number}"
        message.turn_id = turn_id
        message.created = message.created or now_ms()  # if an older release wrote the journal
        if message.role == "assistant":
            message.agent = message.agent or author
    for message in asked:
        message.in_charge = None  # only a hand-off sets this
    return messages


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
