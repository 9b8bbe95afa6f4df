"""Decodes the answers of the Messages API: content blocks, which start, grow and stop."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from antiphon.errors import ProviderStreamBroken
from antiphon.model import Item, Part, Reasoning, StopReason, Text, ToolCall
from antiphon_worker.providers.base import Increments, ItemPart, StepResult, ToolCallPiece
from antiphon_worker.providers.errors import error_of_body
from antiphon_worker.providers.stream.decoder import Decoder, Growing, UsageNames
from antiphon_worker.providers.stream.json_text import Torn, as_dict, as_dicts, as_said, as_text, read_any

_STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "refusal": "refusal",
    "pause_turn": "tool_use",  # the service paused its own tools: the loop calls it again to continue
    "compaction": "tool_use",  # it paused after a summary, as requested
}
CONTAINER = "container"
"""The type of our own item for the container in which the service's tools ran, for the next requests."""
_KINDS = {"text": "text", "thinking": "reasoning"}
_PLAIN = ("text", "thinking", "redacted_thinking", "tool_use")
_PLAIN_TOOL_USE = frozenset({"type", "id", "name", "input"})


class _Delta(Struct):
    type: str | None = None
    text: Torn | None = None
    thinking: Torn | None = None
    partial_json: str | None = None
    signature: str | None = None
    citation: dict[str, Any] | None = None
    stop_reason: str | None = None
    container: dict[str, Any] | None = None


class _Event(Struct):
    type: str | None = None
    index: int = 0
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class AnthropicDecoder(Decoder):
    """Decodes one answer of the Messages API."""

    EVENT = _Event
    USAGE = UsageNames(
        cached=("cache_read_input_tokens",),
        written=("cache_creation_input_tokens",),
        reasoning=("output_tokens_details.thinking_tokens", "output_tokens_details.reasoning_tokens"),
        cache_apart=True,
    )

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self._stop_reason: str | None = None
        self._blocks: dict[int, Growing] = {}
        self._container: dict[str, Any] | None = None

    def whole(self, body: bytes, out: Increments) -> None:
        message = as_dict(read_any(body)) or {}
        if message.get("type") != "message" and not isinstance(message.get("content"), list):
            raise error_of_body(self._provider, message, default=ProviderStreamBroken)
        self._begin(message)
        for index, block in enumerate(as_dicts(message.get("content"))):
            self._start(index, block, out)
            self._stop(index, out)
        self._stop_reason = as_text(message.get("stop_reason"))
        self.finished = True

    def result(self, out: Increments) -> StepResult:
        if not self.finished and self._stop_reason is None:
            raise self._broken_off()
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        self._torn = False
        for block in blocks:
            for kind, mending in block.mending.items():
                self._say(block, kind, mending.rest(), out)
        parts = [part for block in blocks if (part := self._part(block)) is not None]
        if self._container is not None:
            parts.append(Item(self._provider, {"type": CONTAINER, **self._container}))
        self._count_summaries()
        reason = _STOP_REASONS.get(self._stop_reason or "", "end")
        return self._step(parts, reason, self._stop_reason, self._usage)

    def _take_start(self, event: _Event, data: bytes, out: Increments) -> None:
        self._start(event.index, event.content_block or {}, out)

    def _take_delta(self, event: _Event, data: bytes, out: Increments) -> None:
        delta, block = event.delta, self._blocks.get(event.index)
        if delta is None or block is None:
            return
        kind = delta.type
        if kind == "text_delta":
            self._say(block, "text", delta.text or "", out)
        elif kind == "thinking_delta":
            self._say(block, "reasoning", delta.thinking or "", out)
        elif kind == "input_json_delta":
            if delta.partial_json:
                block.add("arguments", delta.partial_json)
                if block.item.get("type") == "tool_use":
                    out.append(ToolCallPiece(as_text(block.item.get("id")) or "", "", delta.partial_json))
        elif kind == "signature_delta":
            block.item["signature"] = delta.signature
        elif kind == "citations_delta" and delta.citation is not None:
            block.item["citations"] = [*(block.item.get("citations") or ()), delta.citation]
            out.append(ItemPart(delta.citation))
        else:
            _extend(block.item, (as_dict(read_any(data)) or {}).get("delta") or {})

    def _take_stop(self, event: _Event, data: bytes, out: Increments) -> None:
        self._stop(event.index, out)

    def _take_message(self, event: _Event, data: bytes, out: Increments) -> None:
        self._begin(event.message or {})

    def _take_message_delta(self, event: _Event, data: bytes, out: Increments) -> None:
        if event.delta is not None and event.delta.stop_reason is not None:
            self._stop_reason = event.delta.stop_reason
        if event.delta is not None:
            self._container = event.delta.container or self._container
        self._count(event.usage or {})

    def _take_message_stop(self, event: _Event, data: bytes, out: Increments) -> None:
        self.finished = True

    TAKES: ClassVar[dict[str, Any]] = {
        "content_block_delta": _take_delta,
        "content_block_start": _take_start,
        "content_block_stop": _take_stop,
        "message_start": _take_message,
        "message_delta": _take_message_delta,
        "message_stop": _take_message_stop,
    }

    def _begin(self, message: dict[str, Any]) -> None:
        self._model = as_text(message.get("model")) or self._model
        self._container = as_dict(message.get("container")) or self._container
        self._count(as_dict(message.get("usage")) or {})

    def _count(self, usage: dict[str, Any]) -> None:
        """Merge token counts. Later counts are totals and replace earlier ones, unless they are missing."""
        self._usage |= {name: value for name, value in usage.items() if value is not None}

    def _count_summaries(self) -> None:
        """Add the tokens of the service's summaries, which its totals leave out."""
        for one in as_dicts(self._usage.pop("iterations", None)):
            if one.get("type") == "compaction":
                for name, value in one.items():
                    if name.endswith("_tokens") and isinstance(value, int):
                        self._usage[name] = (self._usage.get(name) or 0) + value

    def _start(self, index: int, item: dict[str, Any], out: Increments) -> None:
        block = self._blocks[index] = Growing(item)
        kind = item.get("type")
        if kind == "text" or kind == "thinking":
            text = as_said(item.get(kind)) or ""
            item[kind] = ""
            self._say(block, _KINDS[kind], text, out)
            for citation in as_dicts(item.get("citations")):
                out.append(ItemPart(citation))
        elif kind == "tool_use":
            given = item.get("input")
            text = msgspec.json.encode(given).decode() if given else ""
            out.append(ToolCallPiece(as_text(item.get("id")) or "", as_text(item.get("name")) or "", text))

    def _stop(self, index: int, out: Increments) -> None:
        block = self._blocks.get(index)
        if block is not None and block.item.get("type") not in _PLAIN:
            out.append(ItemPart(_whole(block)))
            block.added.clear()

    def _part(self, block: Growing) -> Part | None:
        item = _whole(block)
        match item.get("type"):
            case "text":
                citations = as_dicts(item.get("citations"))
                return Text(item["text"], citations) if item["text"] or citations else None
            case "thinking":
                return Reasoning(item["thinking"], item)
            case "redacted_thinking":
                return Reasoning("", item)
            case "tool_use":
                return _tool_call(block)
            case _:
                return Item(self._provider, item)


def _whole(block: Growing) -> dict[str, Any]:
    """Return the block as the service would have sent it in one piece. An input that is not JSON stays text."""
    item = block.item
    kind = item.get("type")
    if kind == "text" or kind == "thinking":
        item[kind] = block.said(_KINDS[kind])
    elif kind != "tool_use" and (added := block.said("arguments") + block.said("text")).strip():
        try:
            item["input"] = msgspec.json.decode(added)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            item["input"] = added
    return item


def _tool_call(block: Growing) -> ToolCall:
    item = block.item
    text = block.said("arguments")
    if not text.strip() and item.get("input"):
        text = msgspec.json.encode(item["input"]).decode()
    more = {name: value for name, value in item.items() if value is not None and name not in _PLAIN_TOOL_USE}
    return ToolCall.from_text(
        as_text(item.get("id")) or "",
        as_text(item.get("name")) or "",
        text,
        {"type": "tool_use", **more} if more else None,
    )


def _extend(item: dict[str, Any], delta: dict[str, Any]) -> None:
    """Apply a delta of an unknown kind: append its texts to those of the block, and replace all other fields."""
    for name, value in delta.items():
        before = item.get(name)
        if name != "type":
            item[name] = before + value if isinstance(before, str) and isinstance(value, str) else value
