"""Decodes the answers of Chat Completions, from OpenAI and from compatible servers with their differences.

A typed decoder reads nearly all chunks. A chunk that does not match is read again, leniently. Most chunks contain only
a piece of text, and only the text of these is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Literal, TypeGuard, TypeVar

import msgspec
from msgspec import Struct

from antiphon.errors import ProviderStreamBroken
from antiphon.model import Item, Part, Reasoning, Refusal, StopReason, Text, ToolCall
from antiphon_worker.providers.base import Increments, ItemPart, StepResult, TextPiece, ToolCallPiece
from antiphon_worker.providers.errors import error_of_body
from antiphon_worker.providers.stream.decoder import PIECES, Decoder, UsageNames
from antiphon_worker.providers.stream.json_text import (
    Mending,
    Torn,
    as_dict,
    as_said,
    as_text,
    is_list,
    is_object,
    read_any,
)

T = TypeVar("T")

_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",
    "tool_calls": "tool_use",
    "tool_use": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
}
_SAID = ("text", "refusal", "thinking", "reasoning")
"""The types of parts that are text. A content object of another type is a JSON answer that the server decoded."""
PLAIN_TRIES = 4
"""After this many chunks that are not plain text, such as tool calls, chunks are no longer tried as plain text."""


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: dict[str, Any] | None = None
    extra_content: dict[str, Any] | None = None  # Gemini's thought signature


class _Thought(Struct):
    content: Torn | None = None


class _Delta(Struct):
    content: dict[str, Any] | Torn | list[Any] | None = None
    reasoning_content: Torn | None = None
    reasoning: _Thought | Torn | None = None
    refusal: Torn | None = None
    tool_calls: list[_CallDelta] | None = None
    function_call: _Function | None = None
    annotations: list[dict[str, Any]] | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    images: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None
    executed_tools: list[dict[str, Any]] | None = None
    extra_content: dict[str, Any] | None = None


class _Choice(Struct):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    error: Any = None
    usage: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: str | None = None
    error: Any = None
    object: str | None = None
    x_groq: dict[str, Any] | None = None
    citations: list[Any] | None = None
    search_results: list[Any] | None = None


class _PlainDelta(Struct, forbid_unknown_fields=True):
    content: str
    role: str | None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None
    reasoning_content: None = None
    reasoning: None = None
    audio: None = None


class _PlainChoice(Struct):
    delta: _PlainDelta
    index: Literal[0] = 0
    finish_reason: None = None
    error: None = None
    usage: None = None
    logprobs: None = None


class _PlainChunk(Struct):
    choices: tuple[_PlainChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: None = None
    error: None = None
    x_groq: None = None
    citations: None = None
    search_results: None = None


_decode_plain = msgspec.json.Decoder(_PlainChunk).decode


def plain_text(data: bytes) -> str | None:
    """Return the piece of text of a chunk that holds nothing else, or None if the chunk must be read whole."""
    try:
        return _decode_plain(data).choices[0].delta.content
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


class _Said:
    """A text, a reasoning or a refusal that is being streamed."""

    __slots__ = ("annotations", "item", "kind", "pieces")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.annotations: list[dict[str, Any]] = []
        self.item: dict[str, Any] | None = None

    def part(self) -> Part | None:
        text = "".join(self.pieces)
        if not (text or self.annotations or self.item):
            return None
        if self.kind == "text":
            return Text(text, self.annotations, self.item)
        return Refusal(text) if self.kind == "refusal" else Reasoning(text, self.item)


class _Call:
    """A tool call that is being streamed."""

    __slots__ = ("arguments", "call_id", "item", "names")

    def __init__(self, call_id: str | None) -> None:
        self.call_id = call_id or f"call_{uuid.uuid4().hex[:24]}"
        self.names: list[str] = []
        self.arguments: list[str] = []
        self.item: dict[str, Any] | None = None

    def name(self, offered: frozenset[str]) -> str:
        """Return the name, which arrives in pieces or, from some servers, whole with every piece."""
        joined = "".join(self.names)
        if joined in offered:
            return joined
        return next((name for name in self.names if name in offered), joined)

    def part(self, offered: frozenset[str]) -> ToolCall:
        name, text = self.name(offered), "".join(self.arguments)
        if self.item is not None and self.item.get("type") == "custom":
            return ToolCall(self.call_id, name, {"input": text}, None, self.item)
        return ToolCall.from_text(self.call_id, name, text, self.item)


class ChatDecoder(Decoder):
    """Decodes one answer of Chat Completions. If there are several choices, it reads only the first."""

    EVENT = _Chunk
    USAGE = UsageNames(
        input=("prompt_tokens",),
        output=("completion_tokens",),
        cached=("prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
        written=("prompt_tokens_details.cache_write_tokens",),
        reasoning=("completion_tokens_details.reasoning_tokens", "reasoning_tokens"),
    )

    def __init__(self, provider: str, model: str, offered: frozenset[str] = frozenset()) -> None:
        super().__init__(provider, model)
        self._offered = offered  # names of the tools in the request
        self._begun = False
        self._answered = False
        self._finish_reason: str | None = None
        self._parts: list[_Said | _Call | Item] = []  # in the order of their first pieces
        self._last: _Said | None = (
            None  # where text of its kind goes: a piece of another kind begins a new part
        )
        self._calls: dict[int, _Call] = {}
        self._last_call: _Call | None = None
        self._function_call: _Call | None = None
        self._mending: dict[str, Mending] = {}
        self._details: list[dict[str, Any]] = []
        self._details_alone = True  # no other field has held reasoning
        self._executed: dict[Any, dict[str, Any]] = {}  # tools that the service ran, by index
        self._sources: dict[str, list[Any] | None] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self._audio: dict[str, Any] | None = None
        # How many more failures to allow for reading chunks as plain text, once the model is known.
        self._plain = 0

    def event(self, name: bytes, data: bytes, out: Increments) -> None:
        if self._plain and not name:
            text = plain_text(data)
            if text is not None:
                if text:
                    self._answered, last = True, self._last
                    if last is None or last.kind != "text":
                        last = self._said("text")
                    last.pieces.append(text)
                    out.append(TextPiece(text))
                return
            self._plain -= 1
        try:
            chunk: Any = self._decode(data)
        except (msgspec.MsgspecError, UnicodeError):
            chunk = self._lenient(data)
            if chunk is None:
                self.finished = self.finished or bool(data.strip())
                return
        if chunk.error is not None or name == b"error" or chunk.object == "error":
            raise error_of_body(self._provider, read_any(data))
        self._chunk(chunk, out)

    def _chunk(self, chunk: _Chunk, out: Increments) -> None:
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice, self._content_of(choice), out)
        if chunk.usage is not None:
            self._usage = chunk.usage
        elif chunk.x_groq is not None:
            self._usage = as_dict(chunk.x_groq.get("usage")) or self._usage
        if chunk.citations or chunk.search_results:
            self._sources = {"citations": chunk.citations, "search_results": chunk.search_results}
        if chunk.model:
            self._model = chunk.model
            if not self._begun:
                self._begun, self._plain = True, PLAIN_TRIES
        if self._torn:
            self._plain = 0

    def whole(self, body: bytes, out: Increments) -> None:
        chunk = read_any(body)
        if not is_object(chunk) or chunk.get("error") is not None or not is_list(chunk.get("choices")):
            raise error_of_body(self._provider, chunk, default=ProviderStreamBroken)
        self.event(b"", body, out)
        self.finished = True

    def result(self, out: Increments) -> StepResult:
        if not self.finished and self._finish_reason is None:
            raise self._broken_off()
        self._torn = False
        for kind, mending in self._mending.items():
            if mending.held:
                self._text(kind, mending.rest(), out)
        self._keep_the_rest()
        made = (one if isinstance(one, Item) else self._part(one) for one in self._parts)
        parts = [part for part in made if part is not None]
        reason = _STOP_REASONS.get((self._finish_reason or "").lower(), "end")
        result = self._step(parts, reason, self._finish_reason, self._usage)
        if self._executed and reason == "tool_use" and not result.message.tool_calls:
            result.stop_reason = "end"  # the service ran its tools itself
        return result

    def _part(self, made: _Said | _Call) -> Part | None:
        return made.part() if isinstance(made, _Said) else made.part(self._offered)

    def _said(self, kind: str) -> _Said:
        """Return the part to which a piece of this kind belongs."""
        last = self._last
        if last is None or last.kind != kind:
            last = self._last = _Said(kind)
            self._parts.append(last)
        return last

    def _first(self, kind: str) -> _Said:
        """Return the first part of this kind, or a new one."""
        found = (part for part in self._parts if isinstance(part, _Said) and part.kind == kind)
        return next(found, None) or self._said(kind)

    def _append(self, part: _Call | Item) -> None:
        self._parts.append(part)
        self._last = None

    def _append_item(self, item: dict[str, Any], out: Increments) -> None:
        self._append(Item(self._provider, item))
        out.append(ItemPart(item))

    def _content_of(self, choice: _Choice) -> _Delta | None:
        """Return the content of a choice: a piece, or the whole message, which may come with an empty piece."""
        delta = choice.delta
        if choice.message is None or self._answered or _filled(delta):
            return delta
        return choice.message

    def _choice(self, choice: _Choice, delta: _Delta | None, out: Increments) -> None:
        if delta is not None:
            content = delta.content
            if content is not None and content not in ("", []):
                self._answered = True
                self._content(content, out)
            for call in delta.tool_calls or ():
                self._tool_call(call, out)
            self._others(delta, out)
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        if choice.usage is not None:
            self._usage = choice.usage
        for name, values in (choice.logprobs or {}).items():
            if is_list(values) and values:
                self._logprobs.setdefault(name, []).extend(values)
        if choice.error is not None:
            raise error_of_body(self._provider, {"error": choice.error})

    def _others(self, delta: _Delta, out: Increments) -> None:
        if delta.reasoning_details or delta.reasoning_content or delta.reasoning:
            self._reasonings(delta, out)
        if delta.refusal:
            self._text("refusal", delta.refusal, out)
        if delta.function_call is not None and _filled(delta.function_call):
            self._legacy_call(delta.function_call, out)
        if delta.annotations:
            self._said("text").annotations.extend(delta.annotations)
            for annotation in delta.annotations:
                out.append(ItemPart(annotation))
        for image in delta.images or ():
            self._append_item(image, out)
        if delta.audio and _filled(delta.audio):
            self._audio = _merged(self._audio or {}, delta.audio)
        for tool in delta.executed_tools or ():
            _merged(self._executed.setdefault(tool.get("index", len(self._executed)), {}), tool)
        if delta.extra_content and _filled(delta.extra_content):
            self._keep("extra_content", delta.extra_content)

    def _content(self, content: dict[str, Any] | str | list[Any], out: Increments) -> None:
        """Read content that is a text, a list of parts (Mistral), a part, or a decoded JSON answer."""
        if is_list(content):
            for part in content:
                if isinstance(part, str):
                    self._text("text", part, out)
                elif is_object(part):
                    self._content_part(part, out)
        elif is_object(content) and content.get("type") in _SAID:
            self._content_part(content, out)
        else:
            self._text("text", as_said(content) or "", out)

    def _content_part(self, part: dict[str, Any], out: Increments) -> None:
        kind = part.get("type")
        if kind == "thinking" or kind == "reasoning":
            thought = part.get("thinking") or part.get("text")
            pieces = thought if is_list(thought) else [{"text": thought}]
            text = "".join(as_text(piece.get("text")) or "" for piece in pieces if is_object(piece))
            if text:
                self._reasoning("thinking", text, out)
        elif kind == "refusal":
            self._text("refusal", as_text(part.get("refusal")) or "", out)
        elif isinstance(part.get("text"), str):
            self._text("text", part["text"], out)
        else:
            self._append_item(part, out)

    def _reasonings(self, delta: _Delta, out: Increments) -> None:
        thought = delta.reasoning.content if isinstance(delta.reasoning, _Thought) else delta.reasoning
        if delta.reasoning_details:
            self._reasoning_details(delta.reasoning_details, bool(delta.reasoning_content or thought), out)
        if delta.reasoning_content:
            self._reasoning("reasoning_content", delta.reasoning_content, out)
        elif thought:
            self._reasoning("reasoning", thought, out)

    def _reasoning(self, source: str, text: str, out: Increments) -> None:
        self._answered = True
        self._details_alone = False
        pieces = self._text("reasoning", text, out)
        if pieces.item is None:
            pieces.item = {"type": source}

    def _text(self, kind: str, text: str, out: Increments) -> _Said:
        """Add a piece of text, and emit its complete characters."""
        if self._torn:
            text = self._mending.setdefault(kind, Mending()).piece(text)
        said = self._last
        if said is None or said.kind != kind:
            said = self._said(kind)
        if text:
            said.pieces.append(text)
            out.append(PIECES[kind](text))
        return said

    def _reasoning_details(self, details: list[dict[str, Any]], elsewhere: bool, out: Increments) -> None:
        """Keep the blocks. If no other field holds the reasoning, use their text. Encrypted blocks have none."""
        self._details += details
        self._details_alone = self._details_alone and not elsewhere
        texts = [as_text(block.get("text")) or as_text(block.get("summary")) or "" for block in details]
        if self._details_alone and any(texts):
            self._answered = True
            self._text("reasoning", "".join(texts), out)

    def _keep_the_rest(self) -> None:
        """Keep what belongs to the whole answer: OpenRouter's reasoning blocks (later requests must repeat them
        unchanged), audio, the service's tools, sources and probabilities."""
        if self._details:
            blocks = _merged_details(self._details)
            self._first("reasoning").item = {"type": "reasoning_details", "reasoning_details": blocks}
        if self._audio is not None:
            self._append(Item(self._provider, {"type": "audio", **self._audio}))
        if self._executed:
            tools = list(self._executed.values())
            self._append(Item(self._provider, {"type": "executed_tools", "executed_tools": tools}))
        for name, value in [*self._sources.items(), ("logprobs", self._logprobs)]:
            if value:
                self._keep(name, value)

    def _keep(self, name: str, value: Any) -> None:
        """Keep a service's annotations together with the text."""
        text = self._first("text")
        text.item = {**(text.item or {}), name: value}

    def _tool_call(self, delta: _CallDelta, out: Increments) -> None:
        custom = delta.custom if _filled(delta.custom) and not _filled(delta.function) else None
        function = delta.function or _Function()
        if custom is not None:
            function = _Function(as_text(custom.get("name")), as_text(custom.get("input")))
        known = self._call_of(delta, function)
        call = known or self._new_call(delta.id)
        if known is None and custom is not None:
            call.item = {"type": "custom"}
        if known is None and delta.index is not None:
            self._calls[delta.index] = call
        self._last_call = call
        if _filled(delta.extra_content):
            call.item = {"type": "function", **(call.item or {}), "extra_content": delta.extra_content}
        self._extend(call, function, known is None, out)

    def _legacy_call(self, function: _Function, out: Increments) -> None:
        known = self._function_call
        self._function_call = known or self._new_call(None)
        self._extend(self._function_call, function, known is None, out)

    def _new_call(self, call_id: str | None) -> _Call:
        call = _Call(call_id)
        self._append(call)
        return call

    def _extend(self, call: _Call, function: _Function, new: bool, out: Increments) -> None:
        self._answered = True
        given = function.arguments or ""
        arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        if function.name:
            call.names.append(function.name)
        if arguments:
            call.arguments.append(arguments)
        if new or arguments:
            out.append(ToolCallPiece(call.call_id, (function.name or "") if new else "", arguments))

    def _call_of(self, delta: _CallDelta, function: _Function) -> _Call | None:
        """Return the call that a piece belongs to, or None for a new call.

        ``index`` identifies a call. If a server omits it, or sends 0 for all calls, the id does: another id begins a
        new call, unless the arguments so far are an incomplete fragment.
        """
        call = self._last_call if delta.index is None else self._calls.get(delta.index)
        if call is None or not delta.id or delta.id == call.call_id:
            return call
        arguments = "".join(call.arguments)
        if not arguments.strip():
            return call if function.name and function.name in call.names else None
        return None if _is_object(arguments) else call


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False


def _filled(value: T | None) -> TypeGuard[T]:
    """Return whether a value is neither missing nor empty. Some servers send objects with only empty fields."""
    if is_object(value):
        return any(map(_filled, value.values()))
    if is_list(value):
        return any(map(_filled, value))
    if isinstance(value, _Function):
        return bool(value.name or value.arguments)
    if isinstance(value, Struct):
        return any(_filled(getattr(value, name)) for name in value.__struct_fields__)
    return bool(value)


def _merged(known: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Extend a growing object: append its texts and replace all other fields."""
    for name, value in more.items():
        before = known.get(name)
        if (
            isinstance(value, str)
            and isinstance(before, str)
            and name in ("data", "transcript", "text", "summary")
        ):
            value = before + value
        known[name] = value
    return known


def _merged_details(details: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join reasoning blocks from their pieces, which share an ``index`` and a type."""
    blocks: list[dict[str, Any]] = []
    for piece in details:
        last = blocks[-1] if blocks else None
        if last and "index" in piece and all(last.get(name) == piece.get(name) for name in ("index", "type")):
            _merged(last, piece)
        else:
            blocks.append(dict(piece))
    return blocks
