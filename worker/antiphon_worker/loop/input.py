"""Builds the input of the agent loop from the agent, the turn and the session, for every runtime."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.input.request import AgentSpec, OutputSpec, TurnRequest
from antiphon.model import Message
from antiphon.session.work import AgentLike, Work
from antiphon.tools import Tool
from antiphon.window import Window, window_of

__all__ = ["MAX_STEPS", "LoopInput", "fill_prompt", "loop_input", "stamp"]

MAX_STEPS = 32

_NAME = re.compile(r"\{([^\W\d]\w*)\}")


class LoopInput(Struct):
    """The input of the agent loop for one turn.

    ``window`` selects the part of the session's history that becomes ``history``. ``tools`` are the tools that the
    model may call.
    """

    model: str
    system: str | None = None
    history: list[Message] = field(default_factory=list)
    new_messages: list[Message] = field(default_factory=list)
    tools: Sequence[Tool[..., Any]] = ()
    output: OutputSpec | None = None
    params: dict[str, Any] = field(default_factory=dict)
    max_steps: int = MAX_STEPS
    window: Window = Window()


def loop_input(
    agent: AgentLike | AgentSpec,
    turn: Work | TurnRequest,
    tools: Sequence[Tool[..., Any]],
    system: str | None,
    variables: Mapping[str, Any],
) -> LoopInput:
    """Return the input of a turn, without the history.

    Parameters of the turn override those of the agent. ``system`` is the session's own system prompt, which overrides
    the agent's. Raises ``UsageError`` if the agent's window is not valid.
    """
    params = {**agent.params, **turn.params}
    prompt = system or agent.system
    return LoopInput(
        model=params.pop("model", None) or agent.model,
        system=fill_prompt(prompt, variables) if prompt else None,
        new_messages=turn.messages,
        tools=tools,
        output=turn.output,
        params=params,
        max_steps=agent.max_steps or MAX_STEPS,
        window=window_of(agent.window),
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


def stamp(messages: Sequence[Message], turn_id: str, author: str | None = None) -> list[Message]:
    """Set the turn id and the time of messages, and the name of the agent on answers, before they are stored."""
    now = int(time.time() * 1000)
    for message in messages:
        message.turn_id = turn_id
        message.created = message.created or now
        if message.role == "assistant":
            message.agent = message.agent or author
    return list(messages)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
