"""The values of a conversation: messages and their parts, tool calls, usage, responses.

Pure values, immutable by convention, without identity or storage. Their JSON form is frozen: Redis, saved sessions
and channels contain it. Readers ignore fields they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord
from antiphon.model.budget import Budget, BudgetState
from antiphon.model.parts import (
    NO_ARGUMENTS,
    Arguments,
    File,
    Image,
    Item,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from antiphon.model.resilience import FallbackModel, Retry, ServiceAnswer, Timeouts
from antiphon.model.revisions import Rollout
from antiphon.model.suspension import (
    AtLimit,
    CallerTool,
    Decision,
    DecisionKind,
    OpenCall,
    OpenCallKind,
    Wait,
)
from antiphon.model.usage import Limits, Usage

__all__ = [
    "AtLimit", "Budget", "BudgetState", "CallerTool", "Decision", "DecisionKind", "FallbackModel", "File",
    "Image", "InCharge", "Item", "Limits", "Message", "OpenCall", "OpenCallKind", "Part", "Reasoning", "Refusal",
    "Response", "Retry", "Role", "Rollout", "ServiceAnswer", "Status", "StopReason", "Text", "Timeouts", "ToolCall",
    "ToolOutcome", "ToolResult", "TurnStep", "Usage", "Wait", "decode_history", "decode_message", "encode",
    "with_ids",
]  # fmt: skip

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)

Status = Literal["queued", "waiting", "running", "retrying", "suspended", "finished", "failed", "cancelled"]
TERMINAL: frozenset[str] = frozenset({"finished", "failed", "cancelled"})

StopReason = Literal[
    "end", "max_tokens", "stop_sequence", "tool_use", "refusal", "content_filter", "limit", "interrupted"
]


class InCharge(Struct, omit_defaults=True):
    """The agent that answers a session's next turns, in place of the requested one (``asked``)."""

    agent: str
    asked: str = ""


class Message(Struct, omit_defaults=True):
    """One entry of a history.

    ``id`` identifies a message while it is in the history: pass it to ``session.rewind``, ``fork`` and ``edit``.
    ``created`` is the message's time in ms since 1970. A message that was never stored has neither.

    ``interrupted`` marks the last message of a turn that was stopped and kept its output. A page of history may also
    show turns that are pending or failed: ``status``, ``error`` and ``user_error`` (the sentence for end users)
    describe such a turn; a message of the history has none of them. ``decisions``, on a message with tool results,
    record who decided about these calls, and when. ``by`` names the user whose turn added the message. ``in_charge``,
    on the last message of a turn, names the agent that stays after a hand-off.

    >>> Message.user("What's the capital of France?").text
    "What's the capital of France?"
    """

    role: Role
    parts: list[Part] = field(default_factory=list)
    agent: str | None = None
    turn_id: str | None = None
    created: int | None = None
    provider: str | None = None
    model: str | None = None
    id: str | None = None
    interrupted: bool = False
    status: Status | None = None
    error: str | None = None
    decisions: list[Decision] = field(default_factory=list)
    user_error: str | None = None
    by: str | None = None
    in_charge: InCharge | None = None

    @classmethod
    def user(cls, content: str | Sequence[Part]) -> Message:
        """Return a user message: text, or parts (text, images, files).

        >>> Message.user([Text("What is this?"), Image(url="https://example.com/a.png")]).text
        'What is this?'
        """
        return cls("user", _parts(content))

    @classmethod
    def assistant(cls, content: str | Sequence[Part]) -> Message:
        """Return a message of the model.

        >>> Message.assistant("It is Paris.").role
        'assistant'
        """
        return cls("assistant", _parts(content))

    @classmethod
    def system(cls, content: str | Sequence[Part]) -> Message:
        """Return a system message, an instruction.

        >>> Message.system("The user has paid.").role
        'system'
        """
        return cls("system", _parts(content))

    @classmethod
    def tool(cls, results: Sequence[ToolResult]) -> Message:
        """Return a message with the results of one step's tool calls.

        >>> Message.tool([ToolResult("call_1", "20 degrees")]).tool_results[0].text
        '20 degrees'
        """
        return cls("tool", list(results))

    @property
    def text(self) -> str:
        """The text parts, joined.

        >>> Message.assistant([Text("It is "), Text("Paris.")]).text
        'It is Paris.'
        """
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls that the model requested.

        >>> call = ToolCall("call_1", "get_weather", {"city": "Paris"})
        >>> Message.assistant([Text("Let me see."), call]).tool_calls[0].arguments
        {'city': 'Paris'}
        """
        return [part for part in self.parts if type(part) is ToolCall]

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results of tool calls.

        >>> Message.tool([ToolResult("call_1", "no such city", is_error=True)]).tool_results[0].is_error
        True
        """
        return [part for part in self.parts if type(part) is ToolResult]

    def to_json(self) -> bytes:
        """Return the JSON that is stored and sent; ``decode_message`` reads it.

        >>> Message.user("Hi").to_json()
        b'{"role":"user","parts":[{"type":"text","text":"Hi"}]}'
        """
        return encode(self)

    def copied(self) -> Message:
        """Return a copy that shares nothing with this message.

        >>> message = Message.user("Hi")
        >>> message.copied() == message, message.copied().parts[0] is message.parts[0]
        (True, False)
        """
        return decode_message(encode(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the message in plain types, as ``messages=`` and ``add_message`` accept it.

        >>> Message.user("Hi").to_dict()
        {'role': 'user', 'parts': [{'type': 'text', 'text': 'Hi'}]}
        """
        return msgspec.to_builtins(self)


class ToolOutcome(Struct, omit_defaults=True):
    """A tool call of a response together with its result."""

    call_id: str
    name: str
    arguments: Arguments = NO_ARGUMENTS
    result: str | None = None
    is_error: bool = False


class TurnStep(Struct):
    """A finished step of a turn, as its stop conditions see it: the answer, the results of its calls, its usage."""

    step: int
    message: Message
    results: list[ToolResult]
    usage: Usage


class Response(Struct, omit_defaults=True):
    """The result of a turn: the answer, and everything that led to it.

    If ``stop_reason`` is ``limit``, ``limit`` names what ended the turn: one of its ``Limits``, or a stop condition.
    """

    text: str = ""
    output: Any = None
    tool_calls: list[ToolOutcome] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = "end"
    raw_stop_reason: str | None = None
    model: str | None = None
    turn_id: str = ""
    session_id: str = ""
    limit: str | None = None

    def to_json(self) -> bytes:
        return encode(self)

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
_KNOWN_PARTS = {cls.__struct_config__.tag for cls in get_args(Part)}


def encode(value: Any) -> bytes:
    """Return the JSON form of any value of this module."""
    return _encoder.encode(value)


def decode_message(data: bytes | str) -> Message:
    """Read a stored message. Parts of an unknown type are kept as ``Item``. Raises ``CorruptRecord``."""
    try:
        return _message_decoder.decode(data)
    except msgspec.ValidationError:
        return _decode_newer_message(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"Cannot decode stored message: {exc}.") from exc


def decode_history(page: Iterable[bytes], start: int) -> list[Message]:
    """Read the messages of a history from index ``start`` on, each with its id. Raises ``CorruptRecord``."""
    return with_ids([decode_message(data) for data in page], start)


def with_ids(messages: list[Message], start: int = 0) -> list[Message]:
    """Give an id to messages without one, stored by an older release: it contains their index."""
    for index, message in enumerate(messages, start):
        if message.id is None:
            message.id = f"{message.turn_id}.h{index}" if message.turn_id else f"h{index}"
    return messages


def _decode_newer_message(data: bytes | str) -> Message:
    """Read a message with parts that this release does not know."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        fields["parts"] = [
            part if part.get("type") in _KNOWN_PARTS else {"type": "item", "provider": "", "item": part}
            for part in fields.get("parts", [])
        ]
        return msgspec.convert(fields, Message)
    except (msgspec.DecodeError, UnicodeError, RecursionError, AttributeError, TypeError) as exc:
        raise CorruptRecord(f"Cannot decode stored message: {exc}.") from exc


def _parts(content: str | Sequence[Part]) -> list[Part]:
    return [Text(content)] if isinstance(content, str) else list(content)
