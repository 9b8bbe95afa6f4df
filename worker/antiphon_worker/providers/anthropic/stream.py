"""Decodes the answers of the Messages API: content blocks, which start, grow and stop."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import ProviderStreamBroken
from antiphon.model import Item, Message, Part, Reasoning, StopReason, Text, ToolCall, Usage
from antiphon_worker.providers.base import (
    Increments,
    ItemPart,
    ReasoningPiece,
    StepResult,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.providers.errors import error_of_body
from antiphon_worker.providers.stream.json_text import (
    Mending,
    as_dict,
    as_dicts,
    as_int,
    as_text,
    as_torn_text,
    cost_of,
    is_object,
    read_any,
)

_STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "refusal": "refusal",
    "pause_turn": "tool_use",  # the service paused its own tools: the loop calls it again to continue
}
_PLAIN_TOOL_USE = frozenset({"type", "id", "name", "input"})


class _Delta(Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: dict[str, Any] | None = None
    stop_reason: str | None = None


class _Event(Struct):
    type: str | None = None
    index: int = 0
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _Block:
    """A content block that is being streamed: its start and its additions."""

    __slots__ = ("start", "texts")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.texts: list[str] = []  # of its text or thinking, or of the JSON of its input

    def whole(self) -> dict[str, Any]:
        """Return the block as the service would have sent it in one piece. An input that is not JSON stays text."""
        block, added = self.start, "".join(self.texts)
        kind = block.get("type")
        if kind == "text" or kind == "thinking":
            block[kind] = added
        elif added.strip():
            try:
                block["input"] = msgspec.json.decode(added)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                block["input"] = added
        return block


class AnthropicDecoder:
    """Reads one answer of the Messages API."""

    def __init__(self, provider: str, model: str) -> None:
        self.finished = False
        self._provider = provider
        self._model = model
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}
        self._torn = (
            False  # true once the lenient reader was used: a text may begin or end with half a character
        )
        self._mending: dict[int, Mending] = {}

    def event(self, name: bytes, data: bytes, out: Increments) -> None:
        try:
            event = _decode(data)
        except (msgspec.MsgspecError, UnicodeError):
            if data.strip() in (b"", b"[DONE]"):
                return
            event = _lenient_event(read_any(data))
            self._torn = True
        kind = event.type
        if kind == "content_block_delta":
            delta = event.delta
            block = self._blocks.get(event.index)
            if delta is not None and block is not None:
                self._delta(event.index, block, delta, data, out)
        elif kind == "content_block_start":
            self._start(event.index, event.content_block or {}, out)
        elif kind == "content_block_stop":
            self._stop(event.index, out)
        elif kind == "message_start":
            self._message(event.message or {})
        elif kind == "message_delta":
            if event.delta is not None and event.delta.stop_reason is not None:
                self._stop_reason = event.delta.stop_reason
            self._count(event.usage or {})
        elif kind == "message_stop":
            self.finished = True
        elif kind == "error" or name == b"error" or kind is None:
            raise error_of_body(self._provider, read_any(data))

    def whole(self, body: bytes, out: Increments) -> None:
        message = as_dict(read_any(body)) or {}
        if message.get("type") != "message" and not isinstance(message.get("content"), list):
            raise error_of_body(self._provider, message, default=ProviderStreamBroken)
        self._message(message)
        for index, block in enumerate(as_dicts(message.get("content"))):
            self._start(index, block, out)
            self._stop(index, out)
        self._stop_reason = as_text(message.get("stop_reason"))
        self.finished = True

    def result(self, out: Increments) -> StepResult:
        if not self.finished and self._stop_reason is None:
            raise ProviderStreamBroken(f"The answer of {self._provider} ended without its last event.")
        for index, mending in self._mending.items():
            if mending.held:
                self._said(self._blocks[index], mending.rest(), out)
        parts = [
            part for index in sorted(self._blocks) if (part := self._part(self._blocks[index])) is not None
        ]
        stop_reason = _STOP_REASONS.get(self._stop_reason or "", "end")
        if stop_reason == "end" and any(isinstance(part, ToolCall) for part in parts):
            stop_reason = "tool_use"
        message = Message("assistant", parts, provider=self._provider, model=self._model)
        return StepResult(message, usage_of(self._usage), stop_reason, self._stop_reason, self._model)

    def _message(self, message: dict[str, Any]) -> None:
        self._model = as_text(message.get("model")) or self._model
        self._count(as_dict(message.get("usage")) or {})

    def _count(self, usage: dict[str, Any]) -> None:
        """Merge counts of tokens. Later ones are totals and replace earlier ones, unless they are missing."""
        self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _start(self, index: int, start: dict[str, Any], out: Increments) -> None:
        block = self._blocks[index] = _Block(start)
        kind = start.get("type")
        if kind == "text" or kind == "thinking":
            said = as_text(start.get(kind)) or ""
            start[kind] = ""
            if said:
                self._said_text(index, block, said, out)
            for citation in as_dicts(start.get("citations")):
                out.append(ItemPart(citation))
        elif kind == "tool_use":
            given = start.get("input")
            text = msgspec.json.encode(given).decode() if given else ""
            out.append(ToolCallPiece(as_text(start.get("id")) or "", as_text(start.get("name")) or "", text))

    def _delta(self, index: int, block: _Block, delta: _Delta, data: bytes, out: Increments) -> None:
        kind = delta.type
        if kind == "text_delta":
            if delta.text:
                self._said_text(index, block, delta.text, out)
        elif kind == "input_json_delta":
            if delta.partial_json:
                block.texts.append(delta.partial_json)
                if block.start.get("type") == "tool_use":
                    out.append(ToolCallPiece(as_text(block.start.get("id")) or "", "", delta.partial_json))
        elif kind == "thinking_delta":
            if delta.thinking:
                self._said_text(index, block, delta.thinking, out)
        elif kind == "signature_delta":
            block.start["signature"] = delta.signature
        elif kind == "citations_delta" and delta.citation is not None:
            block.start["citations"] = [*(block.start.get("citations") or ()), delta.citation]
            out.append(ItemPart(delta.citation))
        else:
            self._unknown_delta(block, data)

    def _unknown_delta(self, block: _Block, data: bytes) -> None:
        """Apply a delta of an unknown kind: append its texts to those of the block, and replace all other fields."""
        fields: dict[str, Any] = (as_dict(read_any(data)) or {}).get("delta") or {}
        for name, value in fields.items():
            before = block.start.get(name)
            if name != "type":
                block.start[name] = (
                    before + value if isinstance(before, str) and isinstance(value, str) else value
                )

    def _said_text(self, index: int, block: _Block, text: str, out: Increments) -> None:
        if self._torn:
            text = self._mending.setdefault(index, Mending()).piece(text)
        if text:
            self._said(block, text, out)

    def _said(self, block: _Block, text: str, out: Increments) -> None:
        block.texts.append(text)
        out.append(ReasoningPiece(text) if block.start.get("type") == "thinking" else TextPiece(text))

    def _stop(self, index: int, out: Increments) -> None:
        block = self._blocks.get(index)
        if block is not None and not _is_plain(block.start):
            out.append(ItemPart(block.whole()))
            block.texts.clear()

    def _part(self, block: _Block) -> Part | None:
        start = block.start
        kind = start.get("type")
        if kind == "text":
            text = block.whole()["text"]
            citations = as_dicts(start.get("citations"))
            return Text(text, citations) if text or citations else None
        if kind == "thinking":
            whole = block.whole()
            return Reasoning(whole["thinking"], whole)
        if kind == "redacted_thinking":
            return Reasoning("", start)
        if kind == "tool_use":
            return _tool_call(block)
        return Item(self._provider, block.whole())


def _is_plain(block: dict[str, Any]) -> bool:
    return block.get("type") in ("text", "thinking", "redacted_thinking", "tool_use")


def _tool_call(block: _Block) -> ToolCall:
    start = block.start
    text = "".join(block.texts)
    if not text.strip() and start.get("input"):
        text = msgspec.json.encode(start["input"]).decode()
    more = {name: value for name, value in start.items() if value is not None and name not in _PLAIN_TOOL_USE}
    return ToolCall.from_text(
        as_text(start.get("id")) or "",
        as_text(start.get("name")) or "",
        text,
        {"type": "tool_use", **more} if more else None,
    )


def usage_of(usage: dict[str, Any]) -> Usage:
    """Read the token counts. The service's ``input_tokens`` exclude tokens read from and written to the cache."""
    read = as_int(usage.get("cache_read_input_tokens")) or 0
    written = as_int(usage.get("cache_creation_input_tokens")) or 0
    details = as_dict(usage.get("output_tokens_details")) or {}
    return Usage(
        (as_int(usage.get("input_tokens")) or 0) + read + written,
        as_int(usage.get("output_tokens")) or 0,
        read,
        written,
        as_int(details.get("thinking_tokens")) or as_int(details.get("reasoning_tokens")) or 0,
        cost_of(usage),
    )


def _lenient_event(value: object) -> _Event:
    """Read an event whose fields have unusual types, and leave out invalid values."""
    if not is_object(value):
        raise ValueError("an event is not a JSON object")
    return _Event(
        as_text(value.get("type")),
        as_int(value.get("index")) or 0,
        _lenient_delta(value.get("delta")),
        as_dict(value.get("content_block")),
        as_dict(value.get("message")),
        as_dict(value.get("usage")),
    )


def _lenient_delta(delta: object) -> _Delta | None:
    if not is_object(delta):
        return None
    return _Delta(
        as_text(delta.get("type")),
        as_torn_text(delta.get("text")),
        as_torn_text(delta.get("thinking")),
        as_text(delta.get("partial_json")),
        as_text(delta.get("signature")),
        as_dict(delta.get("citation")),
        as_text(delta.get("stop_reason")),
    )
