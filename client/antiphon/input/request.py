"""What travels with a turn: the input, the agent, and how to run it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord, InvalidMessage, UsageError
from antiphon.input.ids import check_queue
from antiphon.input.limits import check_depth, check_plain, check_size
from antiphon.input.parameters import check_secrets
from antiphon.model import Item, Message, ToolCall
from antiphon.window import Window, window_of

__all__ = [
    "AgentSpec",
    "OutputSpec",
    "Travelling",
    "TurnRequest",
    "check_request",
    "decode_request",
    "encode_request",
    "queue_of",
    "travelling_agent",
]


class AgentSpec(Struct, omit_defaults=True):
    """An agent that travels: everything but code and keys. ``tools`` are names that the worker's App knows.

    ``queue`` is where its turns go unless they, or their session, have one of their own.
    """

    provider: str
    model: str
    name: str | None = None
    system: str | None = None
    tools: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    window: int | Window | None = None
    queue: str | None = None


class OutputSpec(Struct, omit_defaults=True):
    """Structured output asked for: a JSON schema; the Python type stays with the caller."""

    name: str
    schema: dict[str, Any]
    strict: bool = True


class TurnRequest(Struct, omit_defaults=True):
    """One input and how to work on it.

    ``agent`` is a name that the worker's App knows, or the agent itself. ``messages`` are what the turn adds in
    front of the answer, usually one user message. ``timeout`` is in seconds, from the start of a run.
    """

    messages: list[Message]
    agent: str | AgentSpec | None = None
    params: dict[str, Any] = field(default_factory=dict)
    output: OutputSpec | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    version: int = 1

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(TurnRequest)


def decode_request(data: bytes) -> TurnRequest:
    """Read a stored request. Raises ``CorruptRecord``."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"A stored turn request is not readable: {exc}.") from exc


@runtime_checkable
class Travelling(Protocol):
    """An agent that can travel with a turn."""

    def spec(self) -> AgentSpec: ...


def encode_request(request: TurnRequest) -> bytes:
    """The stored form of a request. Raises ``InvalidMessage`` where it cannot be encoded, ``LimitReached``.

    Keys of services never travel: raises ``UsageError``.
    """
    try:
        payload = request.to_json()
        msgspec.json.decode(payload, type=TurnRequest)
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError, RecursionError) as exc:
        raise InvalidMessage(f"The turn cannot be encoded: {exc}.") from exc
    check_request(request, len(payload))
    check_secrets(request.params)
    if isinstance(request.agent, AgentSpec):
        check_secrets(request.agent.params)
    return payload


def check_request(request: TurnRequest, size: int) -> None:
    """Hold a request, which is stored in so many bytes, to the limits. Raises ``LimitReached``."""
    check_size("request_bytes", size, "The turn in bytes", "Pass large files by URL.")
    if request.params:
        check_plain("params", request.params)
    if request.metadata:
        check_plain("metadata", request.metadata)
    if request.output is not None:
        check_depth(request.output.schema, "The schema of the output")
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, Item | ToolCall):
                check_depth(msgspec.to_builtins(part), "A message")
    if isinstance(request.agent, AgentSpec):
        if request.agent.params:
            check_plain("params", request.agent.params)
        if request.agent.system:
            check_size("system_bytes", len(request.agent.system.encode()), "The agent's system prompt")
        if request.agent.max_steps:
            check_size("max_steps", request.agent.max_steps, "The agent's max_steps")


def travelling_agent(agent: str | AgentSpec | Travelling | None) -> str | AgentSpec | None:
    if agent is None or isinstance(agent, str):
        return agent
    if not isinstance(agent, AgentSpec) and isinstance(agent, Travelling):  # a protocol takes long to look at
        agent = agent.spec()
    if isinstance(agent, AgentSpec):
        window_of(agent.window)
        return agent
    raise UsageError(f"agent= takes an agent's name or an Agent, not {type(agent).__name__}.")


def queue_of(agent: str | AgentSpec | None) -> str:
    """The queue of an agent that travels, '' where it has none. Raises ``UsageError``."""
    return "" if agent is None or isinstance(agent, str) or agent.queue is None else check_queue(agent.queue)
