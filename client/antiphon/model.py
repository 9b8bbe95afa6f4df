"""The values of a conversation: messages and their parts, tool calls, usage, responses.

Pure values, immutable by convention, without identity or storage. Their JSON form is frozen: it is what stands
in Redis, in saved sessions and on the channels. Readers ignore fields they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord

__all__ = [
    "File",
    "Image",
    "Item",
    "Message",
    "Part",
    "Reasoning",
    "Refusal",
    "Response",
    "Role",
    "Status",
    "StopReason",
    "Text",
    "ToolCall",
    "ToolOutcome",
    "ToolResult",
    "Usage",
    "decode_message",
    "encode",
]

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)

Status = Literal["queued", "waiting", "running", "retrying", "suspended", "finished", "failed", "cancelled"]
TERMINAL: frozenset[str] = frozenset({"finished", "failed", "cancelled"})

StopReason = Literal[
    "end", "max_tokens", "stop_sequence", "tool_use", "refusal", "content_filter", "limit", "interrupted"
]


class Text(Struct, tag="text", tag_field="type", omit_defaults=True):
    """Plain text. ``annotations`` are the provider's own (citations), whole; ``item`` is what else it said of it."""

    text: str
    annotations: list[dict[str, Any]] = field(default_factory=list)
    item: dict[str, Any] | None = None


class Reasoning(Struct, tag="reasoning", tag_field="type", omit_defaults=True):
    """What a model thought. ``item`` is the provider's own block, whole, for the next request to the same service."""

    text: str = ""
    item: dict[str, Any] | None = None


class ToolCall(Struct, tag="tool_call", tag_field="type", omit_defaults=True):
    """A tool call that the model asked for.

    ``raw`` is the provider's exact text of the arguments where it is not the compact form of ``arguments``;
    where that text is no JSON object, ``arguments`` is empty and ``raw`` says what came.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None
    item: dict[str, Any] | None = None

    @classmethod
    def from_text(
        cls, call_id: str, name: str, text: str | None, item: dict[str, Any] | None = None
    ) -> ToolCall:
        """Read the arguments as a provider sent them; empty and null mean no arguments."""
        text = text or ""
        try:
            arguments = msgspec.json.decode(text) if text.strip() else {}
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return cls(call_id, name, {}, text, item)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return cls(call_id, name, {}, text, item)
        compact = msgspec.json.encode(arguments).decode()
        return cls(call_id, name, arguments, None if text == compact or not text.strip() else text, item)

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text, exactly as the provider sent them."""
        if self.raw is not None and not self.invalid:
            return self.raw
        return msgspec.json.encode(self.arguments).decode()

    @property
    def invalid(self) -> bool:
        """True where the model's arguments were not a JSON object."""
        if self.raw is None or self.arguments:
            return False
        try:
            return msgspec.json.decode(self.raw) not in ({}, None)
        except (msgspec.DecodeError, RecursionError):
            return True


class Image(Struct, tag="image", tag_field="type", omit_defaults=True):
    """A picture: ``url``, or ``data`` (base64) with ``media_type``."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None
    detail: str | None = None


class File(Struct, tag="file", tag_field="type", omit_defaults=True):
    """A document: ``url``, ``data`` (base64) with ``media_type``, or the provider's ``file_id``."""

    url: str | None = None
    data: str | None = None
    file_id: str | None = None
    media_type: str | None = None
    name: str | None = None


class Refusal(Struct, tag="refusal", tag_field="type", omit_defaults=True):
    """The model declined, in its own words."""

    text: str


class Item(Struct, tag="item", tag_field="type", omit_defaults=True):
    """A provider's own item (server tools, searches, generated images), kept whole. ``provider`` says whose."""

    provider: str
    item: dict[str, Any]


class ToolResult(Struct, tag="tool_result", tag_field="type", omit_defaults=True):
    """What a tool call returned, or why it failed."""

    call_id: str
    content: str | list[Text | Image | File] = ""
    name: str = ""
    is_error: bool = False

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, Text))


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Image | File | Refusal | Item


class Message(Struct, omit_defaults=True):
    """One entry of a history.

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

    @classmethod
    def user(cls, content: str | Sequence[Part]) -> Message:
        """What the user says: text, or parts (text, images, files).

        >>> Message.user([Text("What is this?"), Image(url="https://example.com/a.png")]).text
        'What is this?'
        """
        return cls("user", _parts(content))

    @classmethod
    def assistant(cls, content: str | Sequence[Part]) -> Message:
        """What the model said.

        >>> Message.assistant("It is Paris.").role
        'assistant'
        """
        return cls("assistant", _parts(content))

    @classmethod
    def system(cls, content: str | Sequence[Part]) -> Message:
        """An instruction.

        >>> Message.system("The user has paid.").role
        'system'
        """
        return cls("system", _parts(content))

    @classmethod
    def tool(cls, results: Sequence[ToolResult]) -> Message:
        """The results of one step's tool calls.

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
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls that the model asked for.

        >>> call = ToolCall("call_1", "get_weather", {"city": "Paris"})
        >>> Message.assistant([Text("Let me see."), call]).tool_calls[0].arguments
        {'city': 'Paris'}
        """
        return [part for part in self.parts if isinstance(part, ToolCall)]

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results of tool calls.

        >>> Message.tool([ToolResult("call_1", "no such city", is_error=True)]).tool_results[0].is_error
        True
        """
        return [part for part in self.parts if isinstance(part, ToolResult)]

    def to_json(self) -> bytes:
        """The JSON that is stored and sent; ``decode_message`` reads it.

        >>> Message.user("Hi").to_json()
        b'{"role":"user","parts":[{"type":"text","text":"Hi"}]}'
        """
        return encode(self)

    def copied(self) -> Message:
        """A copy that shares nothing with this one.

        >>> message = Message.user("Hi")
        >>> message.copied() == message, message.copied().parts[0] is message.parts[0]
        (True, False)
        """
        return decode_message(encode(self))

    def to_dict(self) -> dict[str, Any]:
        """The message in plain types; ``messages=`` and ``add_message`` take it again.

        >>> Message.user("Hi").to_dict()
        {'role': 'user', 'parts': [{'type': 'text', 'text': 'Hi'}]}
        """
        return msgspec.to_builtins(self)


class Usage(Struct, omit_defaults=True):
    """Tokens as the provider counted them. ``input_tokens`` includes cached and cache-written ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            sum(costs) if costs else None,
        )


class ToolOutcome(Struct, omit_defaults=True):
    """A tool call of a response together with its result."""

    call_id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    result: str | None = None
    is_error: bool = False


class Response(Struct, omit_defaults=True):
    """What a turn brought: the answer and all that led to it."""

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

    def to_json(self) -> bytes:
        return encode(self)

    def to_dict(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
_KNOWN_PARTS = {cls.__struct_config__.tag for cls in get_args(Part)}


def encode(value: Any) -> bytes:
    """The JSON form of any value of this module."""
    return _encoder.encode(value)


def decode_message(data: bytes | str) -> Message:
    """Read a stored message. Parts of an unknown type are kept as ``Item``. Raises ``CorruptRecord``."""
    try:
        return _message_decoder.decode(data)
    except msgspec.ValidationError:
        return _decode_newer_message(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"A stored message is not readable: {exc}.") from exc


def _decode_newer_message(data: bytes | str) -> Message:
    """A message with parts that this release does not know yet."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        fields["parts"] = [
            part if part.get("type") in _KNOWN_PARTS else {"type": "item", "provider": "", "item": part}
            for part in fields.get("parts", [])
        ]
        return msgspec.convert(fields, Message)
    except (msgspec.DecodeError, UnicodeError, RecursionError, AttributeError, TypeError) as exc:
        raise CorruptRecord(f"A stored message is not readable: {exc}.") from exc


def _parts(content: str | Sequence[Part]) -> list[Part]:
    return [Text(content)] if isinstance(content, str) else list(content)
