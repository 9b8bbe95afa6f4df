"""Decodes the answers of the Responses API: output items, which are added, grow and are done, and the response."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Raw, Struct

from antiphon.errors import ProviderStreamBroken
from antiphon.model import Item, Part, Reasoning, Refusal, StopReason, Text, ToolCall
from antiphon_worker.providers.base import Increments, ItemPart, StepResult, ToolCallPiece
from antiphon_worker.providers.errors import error_of_body
from antiphon_worker.providers.openai_responses.local_calls import local_call
from antiphon_worker.providers.stream.decoder import Decoder, Growing
from antiphon_worker.providers.stream.json_text import (
    Torn,
    as_dict,
    as_dicts,
    as_said,
    as_text,
    is_object,
    read_any,
)

_INCOMPLETE: dict[str, StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}
_TEXTS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_ENDINGS = tuple(
    f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled", "done")
)
_PLAIN_CALL = frozenset({"type", "id", "call_id", "name", "arguments", "status"})
_CALLS = ("function_call", "custom_tool_call")
_ANSWER_ITEMS = ("message", "reasoning", *_CALLS)


class Event(Struct):
    type: str | None = None
    delta: Torn | None = None
    output_index: int = 0
    item: dict[str, Any] | None = None
    annotation: dict[str, Any] | None = None
    response: Raw = Raw()


class ResponsesDecoder(Decoder):
    """Decodes one answer of the Responses API."""

    EVENT: ClassVar[type[Any]] = Event

    def __init__(self, provider: str, model: str, tools: frozenset[str] = frozenset()) -> None:
        super().__init__(provider, model)
        self._tools = tools  # of the agent, which may run calls of tools that the service declares
        self._items: dict[int, Growing] = {}
        self._response: dict[str, Any] | None = None

    def whole(self, body: bytes, out: Increments) -> None:
        response = as_dict(read_any(body)) or {}
        if not isinstance(response.get("output"), list):
            raise error_of_body(self._provider, response, default=ProviderStreamBroken)
        self._end(response, out)

    def result(self, out: Increments) -> StepResult:
        response = self._response
        if response is None:
            raise self._broken_off()
        parts = [
            part for item in self._output(response) for part in _parts(self._provider, item, self._tools)
        ]
        usage, reason = as_dict(response.get("usage")), _stop_reason(response)
        return self._step(parts, reason, as_text(response.get("status")), usage)

    def _take_text(self, event: Event, data: bytes, out: Increments) -> None:
        if not event.delta:
            return
        kind = _TEXTS[event.type or ""]
        item = self._items.get(event.output_index)
        if item is None:
            kind_of_item = kind if kind == "reasoning" else "message"
            item = self._items[event.output_index] = Growing({"type": kind_of_item})
        self._say(item, kind, event.delta, out)

    def _take_arguments(self, event: Event, data: bytes, out: Increments) -> None:
        item = self._items.get(event.output_index)
        if item is not None and event.delta:
            item.add("arguments", event.delta)
            out.append(ToolCallPiece(_call_id(item.item), "", event.delta))

    def _take_added(self, event: Event, data: bytes, out: Increments) -> None:
        self._added(event.output_index, event.item or {}, out)

    def _take_done(self, event: Event, data: bytes, out: Increments) -> None:
        self._done(event.output_index, event.item or {}, out)

    def _take_annotation(self, event: Event, data: bytes, out: Increments) -> None:
        if event.annotation is not None:
            out.append(ItemPart(event.annotation))

    def _take_ending(self, event: Event, data: bytes, out: Increments) -> None:
        try:
            response = msgspec.json.decode(event.response)
        except (msgspec.MsgspecError, UnicodeError):
            value = read_any(data)
            response = as_dict(value.get("response") if is_object(value) else None)
        self._end(response if is_object(response) else {"status": (event.type or "").rpartition(".")[2]}, out)

    TAKES: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(_TEXTS, _take_text),
        **dict.fromkeys(_ARGUMENTS, _take_arguments),
        "response.output_item.added": _take_added,
        "response.output_item.done": _take_done,
        "response.output_text.annotation.added": _take_annotation,
        **dict.fromkeys(_ENDINGS, _take_ending),
    }

    def _added(self, index: int, item: dict[str, Any], out: Increments) -> None:
        self._items[index] = Growing(item)
        if item.get("type") in _CALLS:
            out.append(ToolCallPiece(_call_id(item), as_text(item.get("name")) or "", ""))

    def _done(self, index: int, item: dict[str, Any], out: Increments) -> None:
        known = self._items.get(index)
        if known is None or known.done:
            self._added(index, item, out)
            known = self._items[index]
        known.item, known.done = item, True
        if item.get("type") not in _ANSWER_ITEMS:
            call = local_call(item, self._tools)
            if call is None:
                out.append(ItemPart(item))
            else:
                out.append(ToolCallPiece(call.call_id, call.name, ""))
                out.append(ToolCallPiece(call.call_id, "", call.arguments_text))
            return
        for kind, text in _texts(item):
            said = known.said(kind)
            missing = text[len(said) :] if text.startswith(said) else ""
            if missing and kind == "arguments":
                known.add(kind, missing)
                out.append(ToolCallPiece(_call_id(item), "", missing))
            elif missing:
                known.mending.pop(kind, None)
                self._say(known, kind, missing, out)

    def _end(self, response: dict[str, Any], out: Increments) -> None:
        """Read the complete response, which may hold more than the events before."""
        status = response.get("status")
        if status == "failed" or response.get("error"):
            raise error_of_body(self._provider, {"error": response.get("error") or "the response failed"})
        if status in ("cancelled", "queued", "in_progress"):
            raise ProviderStreamBroken(
                f"{self._provider} ended the answer with the status {status}. Try again later."
            )
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
        return output or [_whole(self._items[index]) for index in sorted(self._items)]


def _whole(known: Growing) -> dict[str, Any]:
    """Return the complete item, made of its pieces if the service never sent it whole."""
    item = known.item
    match None if known.done else item.get("type"):
        case "message":
            content = [{"type": "output_text", "text": known.said("text")}]
            if refusal := known.said("refusal"):
                content.append({"type": "refusal", "refusal": refusal})
            return {**item, "content": content}
        case "reasoning":
            return {**item, "summary": [{"type": "summary_text", "text": known.said("reasoning")}]}
        case "function_call":
            return {**item, "arguments": known.said("arguments") or item.get("arguments")}
        case "custom_tool_call":
            return {**item, "input": known.said("arguments") or item.get("input")}
        case _:
            return item


def _call_id(item: dict[str, Any]) -> str:
    return as_text(item.get("call_id")) or as_text(item.get("id")) or ""


def _texts(item: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the texts of an item by kind."""
    kind = item.get("type")
    if kind == "message":
        content = as_dicts(item.get("content"))
        return [("text", _joined(content, "text")), ("refusal", _joined(content, "refusal"))]
    if kind == "reasoning":
        return [("reasoning", _reasoning_text(item))]
    return [("arguments", as_text(item.get("arguments")) or as_text(item.get("input")) or "")]


def _joined(parts: list[dict[str, Any]], name: str) -> str:
    return "".join(as_said(part.get(name)) or "" for part in parts)


def _reasoning_text(item: dict[str, Any]) -> str:
    """Return the text of a reasoning item: its summary or, if the server shows it, the reasoning itself."""
    return _joined(as_dicts(item.get("summary")), "text") or _joined(as_dicts(item.get("content")), "text")


def _parts(provider: str, item: dict[str, Any], tools: frozenset[str]) -> list[Part]:
    name = as_text(item.get("name")) or ""
    match item.get("type"):
        case "message":
            return _message_parts(provider, item)
        case "reasoning":
            return [Reasoning(_reasoning_text(item), item)]
        case "function_call":
            more = {field for field, value in item.items() if value is not None} - _PLAIN_CALL
            text = as_text(item.get("arguments"))
            return [ToolCall.from_text(_call_id(item), name, text, item if more else None)]
        case "custom_tool_call":
            given = {"input": as_text(item.get("input")) or ""}
            return [ToolCall(_call_id(item), name, given, None, item)]
        case _:
            return [local_call(item, tools) or Item(provider, item)]


def _message_parts(provider: str, item: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    phase = {"phase": item["phase"]} if item.get("phase") else {}
    content = item.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    for part in as_dicts(content):
        text, annotations = as_said(part.get("text")), as_dicts(part.get("annotations"))
        if text is not None:
            if text or annotations:
                logprobs = {"logprobs": part["logprobs"]} if part.get("logprobs") else {}
                parts.append(Text(text, annotations, {**phase, **logprobs} or None))
        elif part.get("type") == "refusal":
            parts.append(Refusal(as_text(part.get("refusal")) or ""))
        else:
            parts.append(Item(provider, part))
    return parts


def _stop_reason(response: dict[str, Any]) -> StopReason:
    if response.get("status") != "incomplete":
        return "end"
    details = as_dict(response.get("incomplete_details")) or {}
    return _INCOMPLETE.get(as_text(details.get("reason")) or "", "limit")
