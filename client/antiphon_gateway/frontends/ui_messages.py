"""Converts events and messages to those of the AI SDK's UI message stream. Pure functions, without HTTP and Redis.

https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antiphon.errors import InvalidMessage
from antiphon.events import Event
from antiphon.model import (
    Decision,
    File,
    Image,
    Message,
    OpenCall,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from antiphon_gateway.frontends.answers import Answer

__all__ = ["DONE", "UiStream", "answers_of", "encode", "input_of", "ui_messages"]

DONE = b"data: [DONE]\n\n"
FINISH = {"end": "stop", "max_tokens": "length", "content_filter": "content-filter", "tool_use": "tool-calls"}
TEXTS = {"text_delta": "text", "refusal_delta": "text", "reasoning_delta": "reasoning"}


def encode(part: Mapping[str, Any]) -> bytes:
    """Return a part as one server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(part)


class UiStream:
    """Converts the events of one turn to parts of one message, whose id is that of the turn.

    A model call that begins again takes back what it had said in its step, with ``reset-step``.
    """

    def __init__(self, turn_id: str) -> None:
        self._turn = turn_id
        self._begun = self._in_step = False
        self._open = ""  # the kind of text that is being written
        self._texts = 0
        self._calls: set[str] = set()
        self._of_step: set[str] = set()
        self._approvals: set[str] = set()
        self._rejected: set[str] = set()

    def parts(self, event: Event) -> list[dict[str, Any]]:
        """Return the parts that tell of an event, in order."""
        found: list[dict[str, Any]] = []
        if not self._begun:
            self._begun = True
            found.append({"type": "start", "messageId": self._turn})
        match event.type:
            case "text_delta" | "refusal_delta" | "reasoning_delta":
                found += self._text(TEXTS[event.type], event.text)
            case "tool_call_delta":
                found += self._called(event.call_id, event.name)
                part = {
                    "type": "tool-input-delta",
                    "toolCallId": event.call_id,
                    "inputTextDelta": event.arguments,
                }
                found.append(part)
            case "tool_call":
                found += self._called(event.call_id, event.name)
                found.append(_called(event.call_id, event.name, event.arguments))
            case "tool_result" if event.call_id in self._rejected:
                found.append({"type": "tool-output-denied", "toolCallId": event.call_id})
            case "tool_result":
                found.append(_output(event.call_id, event.result, event.is_error))
            case "step_finished" if not event.rejected:
                found += [*self._closed(), *self._end_step()]
            case "step_finished" | "turn_retrying":
                found += self._taken_back()
            case _:
                found += [*_data(event), *self._waits(event), *self._ended(event)]
        return found

    def suspended(self) -> list[dict[str, Any]]:
        """Return the parts that end the stream of a turn that waits for somebody."""
        return [*self._closed(), *self._end_step(), {"type": "finish", "finishReason": "tool-calls"}]

    def _waits(self, event: Event) -> list[dict[str, Any]]:
        match event.type:
            case "turn_suspended":
                return self._asked(event.calls)
            case "turn_resumed":
                return self._decided(event.decisions)
            case _:
                return []

    def _asked(self, calls: Iterable[OpenCall]) -> list[dict[str, Any]]:
        """Calls that wait for a person. The id of an approval is that of its call; one for a result is just open."""
        found: list[dict[str, Any]] = []
        for call in calls:
            if call.call_id not in self._calls:
                found += [
                    *self._called(call.call_id, call.name),
                    _called(call.call_id, call.name, call.arguments),
                ]
            if call.kind == "approval":
                self._approvals.add(call.call_id)
                found.append(
                    {"type": "tool-approval-request", "approvalId": call.call_id, "toolCallId": call.call_id}
                )
        return found

    def _decided(self, decisions: Iterable[Decision]) -> list[dict[str, Any]]:
        self._rejected |= {one.call_id for one in decisions if one.kind == "reject"}
        return [_decision(one) for one in decisions if one.call_id in self._approvals]

    def _taken_back(self) -> list[dict[str, Any]]:
        """The step begins again. What stands before it, such as results of tools, stays."""
        if not self._in_step:
            return []
        self._calls -= self._of_step
        self._of_step, self._open = set(), ""
        return [{"type": "reset-step"}]

    def _ended(self, event: Event) -> list[dict[str, Any]]:
        match event.type:
            case "turn_finished":
                reason = FINISH.get(event.response.stop_reason if event.response else "end", "other")
                return [*self._closed(), *self._end_step(), {"type": "finish", "finishReason": reason}]
            case "turn_failed":
                return [*self._closed(), {"type": "error", "errorText": event.message}]
            case "turn_cancelled":
                return [*self._closed(), {"type": "abort", "reason": event.reason}]
            case _:
                return []

    def _text(self, kind: str, text: str) -> list[dict[str, Any]]:
        found = self._step()
        if self._open != kind:
            found += self._closed()
            self._open = kind
            self._texts += 1
            found.append({"type": f"{kind}-start", "id": f"{self._texts}"})
        return [*found, {"type": f"{kind}-delta", "id": f"{self._texts}", "delta": text}]

    def _called(self, call: str, name: str) -> list[dict[str, Any]]:
        if call in self._calls:
            return []
        self._calls.add(call)
        self._of_step.add(call)
        part = {"type": "tool-input-start", "toolCallId": call, "toolName": name, "dynamic": True}
        return [*self._step(), *self._closed(), part]

    def _closed(self) -> list[dict[str, Any]]:
        kind, self._open = self._open, ""
        return [{"type": f"{kind}-end", "id": f"{self._texts}"}] if kind else []

    def _step(self) -> list[dict[str, Any]]:
        begins, self._in_step = not self._in_step, True
        return [{"type": "start-step"}] if begins else []

    def _end_step(self) -> list[dict[str, Any]]:
        ends, self._in_step, self._of_step = self._in_step, False, set()
        return [{"type": "finish-step"}] if ends else []


def _called(call: str, name: str, arguments: Any) -> dict[str, Any]:
    part = {"type": "tool-input-available", "toolCallId": call, "toolName": name}
    return {**part, "input": arguments, "dynamic": True}


def _decision(one: Decision) -> dict[str, Any]:
    part = {"type": "tool-approval-response", "approvalId": one.call_id, "approved": one.kind == "approve"}
    return part if one.reason is None else {**part, "reason": one.reason}


def _data(event: Event) -> list[dict[str, Any]]:
    match event.type:
        case "tool_progress":
            data = {"name": event.name, "text": event.text, "fraction": event.fraction}
            return [{"type": "data-progress", "id": event.call_id, "data": data}]
        case "custom":
            return [{"type": f"data-{event.name}", "data": event.data}]
        case "output_delta":
            return [{"type": "data-output", "id": "output", "data": event.output}]
        case _:
            return []


def _output(call: str, result: str, is_error: bool) -> dict[str, Any]:
    if is_error:
        return {"type": "tool-output-error", "toolCallId": call, "errorText": result, "dynamic": True}
    return {"type": "tool-output-available", "toolCallId": call, "output": result, "dynamic": True}


def answers_of(message: Mapping[str, Any]) -> list[Answer]:
    """Return what a message of the assistant says about its tool calls: approvals, rejections and results."""
    found: list[Answer] = []
    for part in message.get("parts") or ():
        match part:
            case {
                "toolCallId": str(call),
                "state": "approval-responded",
                "approval": {"approved": bool(yes)} as said,
            }:
                found.append(Answer(call, "approve") if yes else Answer(call, "reject", said.get("reason")))
            case {"toolCallId": str(call), "state": "output-available", "output": output}:
                found.append(Answer(call, "result", output))
            case {"toolCallId": str(call), "state": "output-error", "errorText": error}:
                found.append(Answer(call, "result", error, is_error=True))
            case _:
                continue
    return found


def input_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a UI message of the user says, for ``submit``. Raises ``InvalidMessage``."""
    parts = message.get("parts")
    if message.get("role") != "user" or not isinstance(parts, list):
        raise InvalidMessage("The last message must be one of the user's, with parts.")
    return {"role": "user", "content": [_input_part(part) for part in parts]}


def _input_part(part: Any) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "file", "url": str(url), "mediaType": str(kind)} if kind.startswith("image/"):
            return {"type": "image_url", "image_url": url}
        case {"type": "file", "url": str(url)}:
            how = "file_data" if url.startswith("data:") else "file_url"
            return {"type": "file", "file": {how: url, "filename": part.get("filename")}}
        case _:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidMessage(f"A part of the type {kind!r} cannot be sent: use text and file.")


def ui_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return a history as UI messages. What a turn answered is one message, whose id is that of the turn."""
    found: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for message in messages:
        if message.role in ("user", "system"):
            name = message.id or f"{message.turn_id}.input"
            found.append({"id": name, "role": message.role, "parts": _shown(message, calls)})
            continue
        same = found and found[-1]["role"] == "assistant" and found[-1]["id"] == message.turn_id
        if not same:
            found.append({"id": message.turn_id or message.id, "role": "assistant", "parts": []})
        step = [{"type": "step-start"}] if message.role == "assistant" else []
        found[-1]["parts"] += [*step, *_shown(message, calls)]
    return found


def _shown(message: Message, calls: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text():
                parts.append({"type": "text", "text": part.text, "state": "done"})
            case Refusal():
                parts.append({"type": "text", "text": part.text, "state": "done"})
            case Reasoning() if part.text:
                parts.append({"type": "reasoning", "text": part.text, "state": "done"})
            case ToolCall():
                call = {"type": "dynamic-tool", "toolName": part.name, "toolCallId": part.call_id}
                calls[part.call_id] = {**call, "state": "input-available", "input": part.arguments}
                parts.append(calls[part.call_id])
            case ToolResult() if part.call_id in calls:
                ended = {"state": "output-error", "errorText": part.text} if part.is_error else {
                    "state": "output-available", "output": part.text
                }  # fmt: skip
                calls[part.call_id].update(ended)
            case Image() | File() if part.url:
                parts.append({"type": "file", "url": part.url, "mediaType": part.media_type or "image/*"})
            case _:
                continue
    return parts
