"""The stored request of a turn: its input, its agent and its options."""

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
    """An agent as plain data, without code and keys. ``tools`` are names of tools in the worker's App.

    ``queue`` is used for turns if neither the turn nor its session names a queue.
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
    """The JSON schema of the requested structured output."""

    name: str
    schema: dict[str, Any]
    strict: bool = True


class TurnRequest(Struct, omit_defaults=True):
    """The input of a turn and the options for running it.

    ``agent`` is the agent, or the name of an agent in the worker's App. ``messages`` are added to the history before
    the answer, usually one user message. ``timeout`` is in seconds from the start of a run.
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
        raise CorruptRecord(f"The stored request of a turn cannot be read: {exc}.") from exc


@runtime_checkable
class Travelling(Protocol):
    """An agent that can be sent with a turn."""

    def spec(self) -> AgentSpec: ...


def encode_request(request: TurnRequest) -> bytes:
    """Return the stored form of a request.

    Raises ``InvalidMessage`` if it cannot be encoded, ``LimitReached`` if it is too large, and ``UsageError`` if it
    contains a secret.
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
    """Check a request against the limits. ``size`` is its stored size in bytes. Raises ``LimitReached``."""
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
    if not isinstance(agent, AgentSpec) and isinstance(
        agent, Travelling
    ):  # a protocol check is slow, so it comes last
        agent = agent.spec()
    if isinstance(agent, AgentSpec):
        window_of(agent.window)
        return agent
    raise UsageError(f"agent= must be an agent's name or an Agent, not {type(agent).__name__}.")


def queue_of(agent: str | AgentSpec | None) -> str:
    """Return the queue of an agent that is sent with a turn, or '' if it has none. Raises ``UsageError``."""
    return "" if agent is None or isinstance(agent, str) or agent.queue is None else check_queue(agent.queue)
