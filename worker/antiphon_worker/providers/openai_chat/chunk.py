"""The chunks of Chat Completions in their wire format.

A typed decoder reads nearly all chunks. A chunk that does not match is read again, leniently. Most chunks contain only
a piece of text; of these only the text is read.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.model import Usage
from antiphon_worker.providers.stream.json_text import (
    as_dict,
    as_dicts,
    as_int,
    as_list,
    as_text,
    as_torn_text,
    cost_of,
    is_list,
    is_object,
    read_any,
)


class Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: dict[str, Any] | None = None
    extra_content: dict[str, Any] | None = None  # Gemini's thought signature


class Delta(Struct):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: Function | None = None
    annotations: list[dict[str, Any]] | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    images: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None
    executed_tools: list[dict[str, Any]] | None = None
    extra_content: dict[str, Any] | None = None

    def says_nothing(self) -> bool:
        """Return whether every field is missing or empty. Some servers write all fields of their types."""
        return not any(_filled(getattr(self, name)) for name in self.__struct_fields__)


class Choice(Struct):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    error: Any = None
    usage: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None


class Chunk(Struct):
    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: str | None = None
    error: Any = None
    object: str | None = None
    x_groq: dict[str, Any] | None = None
    citations: list[Any] | None = None
    search_results: list[Any] | None = None
    torn: bool = False  # the lenient reader sets it: a text may begin or end with half a character


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


_decode = msgspec.json.Decoder(Chunk).decode
_decode_plain = msgspec.json.Decoder(_PlainChunk).decode


def plain_text(data: bytes) -> str | None:
    """Return the piece of text of a chunk that holds nothing else, or None if the chunk must be read whole."""
    try:
        return _decode_plain(data).choices[0].delta.content
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def read_chunk(data: bytes) -> Chunk:
    """Read a chunk, or a whole answer. Raises ``ValueError`` or ``RecursionError``."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeError):
        return _lenient_chunk(read_any(data))


def real(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an object, or None for an empty one, which is the zero value of a server's type."""
    return value if _filled(value) else None


def real_function(function: Function | None) -> Function | None:
    return function if function is not None and (function.name or function.arguments) else None


def _filled(value: object) -> bool:
    if is_object(value):
        return any(map(_filled, value.values()))
    if is_list(value):
        return any(map(_filled, value))
    if isinstance(value, Function):
        return bool(value.name or value.arguments)
    return bool(value)


def merged(known: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Extend a growing object: append its texts and replace all other fields."""
    for name, value in more.items():
        before = known.get(name)
        joins = (
            isinstance(value, str)
            and isinstance(before, str)
            and name in ("data", "transcript", "text", "summary")
        )
        known[name] = before + value if joins and isinstance(before, str) else value
    return known


def merged_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join reasoning blocks from their pieces, which share an ``index`` and a type."""
    blocks: list[dict[str, Any]] = []
    for piece in details:
        last = blocks[-1] if blocks else None
        same = (
            last is not None
            and "index" in piece
            and all(last.get(name) == piece.get(name) for name in ("index", "type"))
        )
        if last is not None and same:
            merged(last, piece)
        else:
            blocks.append(dict(piece))
    return blocks


def reasoning_of_details(details: list[dict[str, Any]]) -> str:
    """Return the text of reasoning blocks: thoughts or their summaries. Encrypted blocks have no text."""
    return "".join(as_text(block.get("text")) or as_text(block.get("summary")) or "" for block in details)


def usage_of(usage: dict[str, Any] | None) -> Usage:
    """Read the token counts. Servers report cached tokens in several places."""
    if usage is None:
        return Usage()
    prompt = as_dict(usage.get("prompt_tokens_details")) or {}
    completion = as_dict(usage.get("completion_tokens_details")) or {}
    cached = (
        as_int(prompt.get("cached_tokens"))
        or as_int(usage.get("prompt_cache_hit_tokens"))
        or as_int(usage.get("cached_tokens"))
    )
    return Usage(
        as_int(usage.get("prompt_tokens")) or 0,
        as_int(usage.get("completion_tokens")) or 0,
        cached or 0,
        as_int(prompt.get("cache_write_tokens")) or 0,
        as_int(completion.get("reasoning_tokens")) or as_int(usage.get("reasoning_tokens")) or 0,
        cost_of(usage),
    )


def _lenient_chunk(value: object) -> Chunk:
    """Read a chunk whose fields have unusual types, and leave out invalid values."""
    if not is_object(value):
        raise ValueError("a chunk is not a JSON object")
    choices = value.get("choices")
    return Chunk(
        choices=[_lenient_choice(c) for c in choices if is_object(c)] if is_list(choices) else None,
        usage=as_dict(value.get("usage")),
        model=as_text(value.get("model")),
        id=as_text(value.get("id")),
        error=value.get("error"),
        object=as_text(value.get("object")),
        x_groq=as_dict(value.get("x_groq")),
        citations=as_list(value.get("citations")),
        search_results=as_list(value.get("search_results")),
        torn=True,
    )


def _lenient_choice(choice: dict[str, Any]) -> Choice:
    return Choice(
        index=as_int(choice.get("index")),
        delta=_lenient_delta(choice.get("delta")),
        message=_lenient_delta(choice.get("message")),
        finish_reason=as_text(choice.get("finish_reason")),
        error=choice.get("error"),
        usage=as_dict(choice.get("usage")),
        logprobs=as_dict(choice.get("logprobs")),
    )


def _lenient_delta(delta: object) -> Delta | None:
    if not is_object(delta):
        return None
    content = delta.get("content")
    reasoning = delta.get("reasoning")
    if is_object(reasoning):
        reasoning = reasoning.get("content")
    calls = delta.get("tool_calls")
    return Delta(
        content=as_dicts(content) if is_list(content) else as_torn_text(content),
        reasoning_content=as_torn_text(delta.get("reasoning_content")),
        reasoning=as_torn_text(reasoning),
        refusal=as_torn_text(delta.get("refusal")),
        tool_calls=[_lenient_call(c) for c in calls if is_object(c)] if is_list(calls) else None,
        function_call=_lenient_function(delta.get("function_call")),
        annotations=as_dicts(delta.get("annotations")),
        reasoning_details=as_dicts(delta.get("reasoning_details")),
        images=as_dicts(delta.get("images")),
        audio=as_dict(delta.get("audio")),
        executed_tools=as_dicts(delta.get("executed_tools")),
        extra_content=as_dict(delta.get("extra_content")),
    )


def _lenient_call(call: dict[str, Any]) -> CallDelta:
    return CallDelta(
        as_int(call.get("index")),
        as_text(call.get("id")),
        _lenient_function(call.get("function")),
        as_dict(call.get("custom")),
        as_dict(call.get("extra_content")),
    )


def _lenient_function(function: object) -> Function | None:
    if not is_object(function):
        return None
    arguments = function.get("arguments")
    return Function(as_text(function.get("name")), as_dict(arguments) or as_text(arguments))
