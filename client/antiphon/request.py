"""What travels with a turn: the input, the agent, and how to run it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord
from antiphon.model import Message
from antiphon.window import Window

__all__ = ["AgentSpec", "OutputSpec", "TurnRequest", "decode_request"]


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
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise CorruptRecord(f"A stored turn request is not readable: {exc}.") from exc
