"""Decodes the answers of the Responses API: output items, which are added, grow and are done, and the response."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.errors import ProviderError, ProviderStreamBroken
from antiphon.model import Item, Message, Part, Reasoning, Refusal, StopReason, Text, ToolCall, Usage
from antiphon_worker.providers.base import (
    Increment,
    Increments,
    ItemPart,
    ReasoningPiece,
    RefusalPiece,
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

_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}
_PLAIN_CALL = frozenset({"type", "id", "call_id", "name", "arguments", "status"})
_ENDINGS = (
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "response.done",
)
_ANSWER_ITEMS = ("message", "reasoning", "function_call", "custom_tool_call")


class _Event(Struct):
    type: str | None = None
    delta: str | None = None
    output_index: int = 0
    item: dict[str, Any] | None = None
    annotation: dict[str, Any] | None = None
    response: Raw = Raw()


_decode = msgspec.json.Decoder(_Event).decode
_read = msgspec.json.decode


class _OutputItem:
    """An output item that is being streamed: its start and its additions."""

    __slots__ = ("done", "item", "mending", "said")

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item
        self.done = False
        self.said: dict[str, list[str]] = {}  # by kind: text, refusal, reasoning, arguments
        self.mending: dict[str, Mending] = {}

    def add(self, kind: str, text: str) -> None:
        pieces = self.said.get(kind)
        if pieces is None:
            pieces = self.said[kind] = []
        pieces.append(text)

    def heard(self, kind: str) -> str:
        return "".join(self.said.get(kind, ()))


class ResponsesDecoder:
    """Reads one answer of the Responses API."""

    def __init__(self, provider: str, model: str) -> None:
        self.finished = False
        self._provider = provider
        self._model = model
        self._items: dict[int, _OutputItem] = {}
        self._response: dict[str, Any] | None = None
        self._torn = False

    def event(self, name: bytes, data: bytes, out: Increments) -> None:
        try:
            event = _decode(data)
        except (msgspec.MsgspecError, UnicodeError):
            if data.strip() in (b"", b"[DONE]"):
                return
            event = _lenient_event(read_any(data))
            self._torn = True
        kind = event.type
        if kind == "response.output_text.delta":
            self._text(event, "text", out)
        elif (
            kind == "response.function_call_arguments.delta"
            or kind == "response.custom_tool_call_input.delta"
        ):
            self._arguments(event, out)
        elif kind == "response.reasoning_summary_text.delta" or kind == "response.reasoning_text.delta":
            self._text(event, "reasoning", out)
        elif kind == "response.refusal.delta":
            self._text(event, "refusal", out)
        else:
            self._rare(kind, event, name, data, out)

    def whole(self, body: bytes, out: Increments) -> None:
        response = as_dict(read_any(body)) or {}
        if not isinstance(response.get("output"), list):
            raise error_of_body(self._provider, response, default=ProviderStreamBroken)
        self._end(response, out)

    def result(self, out: Increments) -> StepResult:
        response = self._response
        if response is None:
            raise ProviderStreamBroken(f"The answer of {self._provider} ended without its last event.")
        parts: list[Part] = []
        for item in self._output(response):
            parts += _parts(self._provider, item)
        message = Message("assistant", parts, provider=self._provider, model=self._model)
        usage = usage_of(as_dict(response.get("usage")) or {})
        return StepResult(
            message, usage, _stop_reason(response, message), as_text(response.get("status")), self._model
        )

    def _rare(self, kind: str | None, event: _Event, name: bytes, data: bytes, out: Increments) -> None:
        if kind == "response.output_item.added":
            self._added(event.output_index, event.item or {}, out)
        elif kind == "response.output_item.done":
            self._done(event.output_index, event.item or {}, out)
        elif kind == "response.output_text.annotation.added":
            if event.annotation is not None:
                out.append(ItemPart(event.annotation))
        elif kind in _ENDINGS:
            self._end(self._read_response(event, data), out)
        elif kind == "error" or name == b"error" or kind is None:
            raise error_of_body(self._provider, read_any(data))

    def _read_response(self, event: _Event, data: bytes) -> dict[str, Any]:
        try:
            response = _read(event.response)
        except (msgspec.MsgspecError, UnicodeError):
            value = read_any(data)
            response = as_dict(value.get("response") if is_object(value) else None)
        return response if is_object(response) else {"status": (event.type or "").rpartition(".")[2]}

    def _text(self, event: _Event, kind: str, out: Increments) -> None:
        text = event.delta
        if not text:
            return
        item = self._items.get(event.output_index)
        if item is None:
            item = self._items[event.output_index] = _OutputItem(
                {"type": "message" if kind != "reasoning" else kind}
            )
        if self._torn:
            text = item.mending.setdefault(kind, Mending()).piece(text)
        item.add(kind, text)
        if text:
            out.append(_piece(kind, text))

    def _arguments(self, event: _Event, out: Increments) -> None:
        item = self._items.get(event.output_index)
        if item is not None and event.delta:
            item.add("arguments", event.delta)
            out.append(ToolCallPiece(_call_id(item.item), "", event.delta))

    def _added(self, index: int, item: dict[str, Any], out: Increments) -> None:
        self._items[index] = _OutputItem(item)
        if item.get("type") in ("function_call", "custom_tool_call"):
            out.append(ToolCallPiece(_call_id(item), as_text(item.get("name")) or "", ""))

    def _done(self, index: int, item: dict[str, Any], out: Increments) -> None:
        known = self._items.get(index)
        if known is None or known.done:
            self._added(index, item, out)
            known = self._items[index]
        known.item, known.done = item, True
        if item.get("type") not in _ANSWER_ITEMS:
            out.append(ItemPart(item))
            return
        for kind, text in _texts(item):
            missing = _missing(known.heard(kind), text)
            if missing:
                known.add(kind, missing)
                call = kind == "arguments"
                out.append(ToolCallPiece(_call_id(item), "", missing) if call else _piece(kind, missing))

    def _end(self, response: dict[str, Any], out: Increments) -> None:
        """Read the complete response, which may hold more than the events before."""
        status = response.get("status")
        if status == "failed" or response.get("error"):
            raise error_of_body(self._provider, {"error": response.get("error") or "the response failed"})
        if status in ("cancelled", "queued", "in_progress"):
            raise _unfinished(self._provider, str(status))
        self._response = response
        self._model = as_text(response.get("model")) or self._model
        for index, item in enumerate(as_dicts(response.get("output"))):
            known = self._items.get(index)
            if known is None or not known.done:
                self._done(index, item, out)
        self.finished = True

    def _output(self, response: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the items of the complete response or, if it has none, those of the events."""
        output = as_dicts(response.get("output"))
        if output or not self._items:
            return output
        return [_made(self._items[index]) for index in sorted(self._items)]


def _made(known: _OutputItem) -> dict[str, Any]:
    """Build an item from its pieces, if the service never sent it whole."""
    item = known.item
    if known.done:
        return item
    kind = item.get("type")
    if kind == "message":
        content = [{"type": "output_text", "text": known.heard("text")}]
        if known.said.get("refusal"):
            content.append({"type": "refusal", "refusal": known.heard("refusal")})
        return {**item, "content": content}
    if kind == "reasoning":
        return {**item, "summary": [{"type": "summary_text", "text": known.heard("reasoning")}]}
    if kind == "function_call":
        return {**item, "arguments": known.heard("arguments") or item.get("arguments")}
    if kind == "custom_tool_call":
        return {**item, "input": known.heard("arguments") or item.get("input")}
    return item


def _unfinished(provider: str, status: str) -> ProviderError:
    return ProviderStreamBroken(f"{provider} ended the answer with the status {status}. Try again later.")


def _piece(kind: str, text: str) -> Increment:
    if kind == "text":
        return TextPiece(text)
    return ReasoningPiece(text) if kind == "reasoning" else RefusalPiece(text)


def _missing(heard: str, text: str) -> str:
    """Return the rest of a whole text after the pieces that have arrived."""
    return text[len(heard) :] if text.startswith(heard) else ""


def _call_id(item: dict[str, Any]) -> str:
    return as_text(item.get("call_id")) or as_text(item.get("id")) or ""


def _texts(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the texts of an item by kind."""
    kind = item.get("type")
    if kind == "message":
        content = as_dicts(item.get("content"))
        texts = [(k, _joined(content, f)) for k, f in (("text", "text"), ("refusal", "refusal"))]
    elif kind == "reasoning":
        texts = [("reasoning", reasoning_text(item))]
    else:
        texts = [("arguments", as_text(item.get("arguments")) or as_text(item.get("input")) or "")]
    return texts


def _joined(parts: list[dict[str, Any]], name: str) -> str:
    return "".join(as_text(part.get(name)) or "" for part in parts)


def reasoning_text(item: dict[str, Any]) -> str:
    """Return the text of a reasoning item: its summary or, if the server shows it, the reasoning itself."""
    return _joined(as_dicts(item.get("summary")), "text") or _joined(as_dicts(item.get("content")), "text")


def _parts(provider: str, item: dict[str, Any]) -> list[Part]:
    kind = item.get("type")
    if kind == "message":
        return _message_parts(provider, item)
    if kind == "reasoning":
        return [Reasoning(reasoning_text(item), item)]
    if kind == "function_call":
        more = {name for name, value in item.items() if value is not None} - _PLAIN_CALL
        name, text = as_text(item.get("name")) or "", as_text(item.get("arguments"))
        return [ToolCall.from_text(_call_id(item), name, text, item if more else None)]
    if kind == "custom_tool_call":
        given = {"input": as_text(item.get("input")) or ""}
        return [ToolCall(_call_id(item), as_text(item.get("name")) or "", given, None, item)]
    return [Item(provider, item)]


def _message_parts(provider: str, item: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    phase = {"phase": item["phase"]} if item.get("phase") else {}
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    for part in as_dicts(content):
        if isinstance(part.get("text"), str):
            if part["text"] or part.get("annotations"):
                logprobs = {"logprobs": part["logprobs"]} if part.get("logprobs") else {}
                parts.append(
                    Text(part["text"], as_dicts(part.get("annotations")), {**phase, **logprobs} or None)
                )
        elif part.get("type") == "refusal":
            parts.append(Refusal(as_text(part.get("refusal")) or ""))
        else:
            parts.append(Item(provider, part))
    return parts


def _stop_reason(response: dict[str, Any], message: Message) -> StopReason:
    if response.get("status") == "incomplete":
        details = as_dict(response.get("incomplete_details")) or {}
        return _INCOMPLETE.get(as_text(details.get("reason")) or "", "limit")
    if message.tool_calls:
        return "tool_use"
    refused = any(isinstance(part, Refusal) for part in message.parts)
    return "refusal" if refused and not message.text else "end"


def usage_of(usage: dict[str, Any]) -> Usage:
    """Read the token counts."""
    given = as_dict(usage.get("input_tokens_details")) or {}
    made = as_dict(usage.get("output_tokens_details")) or {}
    return Usage(
        as_int(usage.get("input_tokens")) or 0,
        as_int(usage.get("output_tokens")) or 0,
        as_int(given.get("cached_tokens")) or 0,
        as_int(given.get("cache_write_tokens")) or 0,
        as_int(made.get("reasoning_tokens")) or 0,
        cost_of(usage),
    )


def _lenient_event(value: object) -> _Event:
    """Read an event whose fields have unusual types, and leave out invalid values."""
    if not is_object(value):
        raise ValueError("an event is not a JSON object")
    return _Event(
        as_text(value.get("type")),
        as_torn_text(value.get("delta")),
        as_int(value.get("output_index")) or 0,
        as_dict(value.get("item")),
        as_dict(value.get("annotation")),
    )
