"""The response resource of a turn, and the events of its stream.

Numbers count from the turn's first event, so that a reader may go on at any gateway (``starting_after``). A model call
that begins again leaves an item with the status ``incomplete``; those of ``response.completed`` count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.events import Event
from antiphon.model import OpenCall, Response, Usage
from antiphon.session.turn_info import TurnInfo
from antiphon_gateway.openai.items import (
    call_item,
    items_of,
    message_item,
    output_item,
    reasoning_item,
    usage_of,
)

PREFIX = "resp_"
STATUS = {
    "queued": "queued", "waiting": "queued", "running": "in_progress", "retrying": "in_progress",
    "suspended": "in_progress", "finished": "completed", "failed": "failed", "cancelled": "cancelled",
}  # fmt: skip
INCOMPLETE = {"max_tokens": "max_output_tokens", "content_filter": "content_filter"}


def response_id(turn: str, part: int = 0) -> str:
    """Return the id of the response that a turn is, or of one that follows results of the caller's tools."""
    return f"{PREFIX}{turn}.{part}" if part else PREFIX + turn


def turn_and_part(name: str) -> tuple[str, int] | None:
    """Return the turn that a response is of, and how often the caller's tools had answered before; None if invalid."""
    turn, dot, part = name.removeprefix(PREFIX).partition(".")
    if not name.startswith(PREFIX) or not turn or (dot and not (part.isascii() and part.isdigit())):
        return None
    return turn, int(part or 0)


def resource(info: TurnInfo, outcome: Response | None = None) -> dict[str, Any]:
    """Return the response that a turn is, with its ``outcome`` if it has finished."""
    echo: dict[str, Any] = info.metadata.get("openai") or {}
    found: dict[str, Any] = {
        "id": response_id(info.turn_id), "object": "response", "created_at": info.created // 1000,
        "completed_at": None, "status": STATUS[info.status], "incomplete_details": None,
        "model": echo.get("model") or info.agent or "", "previous_response_id": echo.get("previous_response_id"),
        "instructions": echo.get("instructions"), "output": [], "error": None, "tools": echo.get("tools") or [],
        "tool_choice": echo.get("tool_choice") or "auto",
        "truncation": "disabled", "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "text": echo.get("text") or {"format": {"type": "text"}}, "top_p": echo.get("top_p", 1.0),
        "presence_penalty": echo.get("presence_penalty", 0.0), "frequency_penalty": echo.get("frequency_penalty", 0.0),
        "top_logprobs": 0, "temperature": echo.get("temperature", 1.0), "reasoning": echo.get("reasoning"),
        "usage": None, "max_output_tokens": echo.get("max_output_tokens"), "max_tool_calls": None,
        "store": echo.get("store", True), "background": echo.get("background", False),
        "service_tier": echo.get("service_tier") or "default", "metadata": echo.get("metadata") or {},
        "safety_identifier": echo.get("safety_identifier"), "prompt_cache_key": echo.get("prompt_cache_key"),
        "conversation": {"id": info.session_id},
    }  # fmt: skip
    found["text"].setdefault("format", {"type": "text"})
    if outcome is not None:
        with_outcome(found, outcome, info.turn_id, info.ended)
    elif info.status in ("failed", "cancelled"):
        found["output"] = items_of(info.messages, info.turn_id)
        found["usage"] = usage_of(info.usage)
    if info.status == "failed":
        found["error"] = {"code": info.code or "turn_failed", "message": info.error or "The turn failed."}
    return found


def with_outcome(found: dict[str, Any], outcome: Response, turn: str, ended: int | None) -> None:
    """Fill in what a turn that has finished brought."""
    reason = INCOMPLETE.get(outcome.stop_reason)
    found["status"] = "incomplete" if reason else "completed"
    found["incomplete_details"] = {"reason": reason} if reason else None
    found["completed_at"] = None if reason or not ended else ended // 1000
    found["output"] = items_of(outcome.messages, turn)
    found["usage"] = usage_of(outcome.usage)


DONE = b"data: [DONE]\n\n"
KINDS = {
    "text_delta": "text",
    "refusal_delta": "refusal",
    "reasoning_delta": "reasoning",
    "tool_call_delta": "call",
}
ENDED = {"completed": "response.completed", "incomplete": "response.incomplete"}


def encode(event: dict[str, Any]) -> bytes:
    """Return an event as one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


class ResponseStream:
    """Converts the events of one turn. ``response`` is its resource when the turn was submitted.

    A turn that waits for results of the caller's tools ends a response; the next one goes on behind them. ``part`` says
    how often that has happened before. ``over`` is true behind the last event.
    """

    def __init__(self, response: dict[str, Any], turn_id: str, part: int = 0) -> None:
        self._response: dict[str, Any] = {
            **response,
            "status": "queued",
            "output": [],
            "usage": None,
            "error": None,
        }
        self._response |= {"completed_at": None, "incomplete_details": None}
        self._response["id"] = response_id(turn_id, part)
        if part:
            self._response["previous_response_id"] = response_id(turn_id, part - 1)
        self.over = False
        self._part_number = self._skips = part
        self._theirs: set[str] = (
            set()
        )  # calls of the caller's tools that the turn waits for, or has waited for
        self._waits = False
        self._done: list[dict[str, Any]] = []
        self._done_before = 0  # how many of them are of earlier steps
        self._usage = Usage()
        self._turn = turn_id
        self._number = self._index = 0
        self._step = self._place = 0
        self._kind = self._call = self._text = ""
        self._item: dict[str, Any] = {}

    def events(self, event: Event) -> list[dict[str, Any]]:
        """Return the events for an event of the turn, in order."""
        found = self._skipped(event) if self._skips else self._told(event)
        for one in found:
            one["sequence_number"] = self._number
            self._number += 1
        return found

    def broken(self, error: dict[str, Any]) -> dict[str, Any]:
        """Return the event after which the rest is lost, because events are no longer kept."""
        self.over = True
        return {"type": "error", "sequence_number": self._number, "error": error}

    def _skipped(self, event: Event) -> list[dict[str, Any]]:
        """Look for the place where this response begins."""
        if event.type == "turn_suspended":
            self._suspend(event.calls)
        elif event.type == "turn_resumed" and self._waits:
            self._waits, self._skips = False, self._skips - 1
            if not self._skips:
                self._response["status"] = "in_progress"
                return [self._whole("response.created"), self._whole("response.in_progress")]
        return []

    def _suspend(self, calls: Iterable[OpenCall]) -> None:
        theirs = {call.call_id for call in calls if call.kind == "tool"}
        self._waits = bool(theirs)
        self._theirs |= theirs

    def _told(self, event: Event) -> list[dict[str, Any]]:
        match event.type:
            case "turn_queued":
                found = [self._whole("response.created"), self._whole("response.queued")]
            case "turn_started":
                self._response["status"] = "in_progress"
                found = [self._whole("response.in_progress")]
            case "text_delta" | "refusal_delta" | "reasoning_delta":
                found = [*self._begin(KINDS[event.type], event.step), *self._delta(event.text)]
            case "tool_call_delta":
                found = [
                    *self._begin("call", event.step, event.call_id, event.name),
                    *self._delta(event.arguments),
                ]
            case "tool_call":
                found = self._whole_call(event)
            case "tool_result":
                given = event.call_id in self._theirs
                found = self._end("completed") if given else [
                    *self._end("completed"), *self._result(event.call_id, event.result)
                ]  # fmt: skip
            case "step_finished":
                self._usage += event.usage
                found = self._end("completed")
            case "turn_retrying":
                found = self._end("incomplete")
                del self._done[self._done_before :]
                self._step = 0
            case "turn_suspended":
                self._suspend(event.calls)
                found = self._asked(event.calls) if self._waits else []
            case "turn_finished" | "turn_failed" | "turn_cancelled":
                found = [*self._end("incomplete"), self._outcome(event)]
            case _:
                found = []
        return found

    def _asked(self, calls: Iterable[OpenCall]) -> list[dict[str, Any]]:
        """The response ends with the calls of the caller's tools."""
        found = self._end("completed")
        told = {item.get("call_id") for item in self._done}
        for call in calls:
            if call.call_id not in told:
                found += self._begin("call", self._step, call.call_id, call.name)
                found += [*self._delta(msgspec.json.encode(call.arguments).decode()), *self._end("completed")]
        self.over = True
        self._response |= {"status": "completed", "output": self._done, "usage": usage_of(self._usage)}
        return [*found, self._whole("response.completed")]

    def _whole(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "response": {**self._response}}

    def _outcome(self, event: Any) -> dict[str, Any]:
        self.over = True
        if event.type == "turn_finished":
            with_outcome(self._response, event.response, self._turn, event.at)
            if self._part_number:
                self._response |= {"output": self._done, "usage": usage_of(self._usage)}
            return self._whole(ENDED[self._response["status"]])
        if event.type == "turn_cancelled":
            self._response |= {"status": "incomplete", "incomplete_details": {"reason": "cancelled"}}
            return self._whole("response.incomplete")
        self._response |= {"status": "failed", "error": {"code": event.code, "message": event.message}}
        return self._whole("response.failed")

    def _begin(self, kind: str, step: int, call: str = "", function: str = "") -> list[dict[str, Any]]:
        """Begin an item, unless one is open."""
        if self._kind == kind and self._call == call:
            return []
        ended = self._end("completed")
        if step != self._step:
            self._place, self._done_before = 0, len(self._done)
        self._step, self._kind, self._call, self._text = step, kind, call, ""
        name = f"{self._turn}_{step}_{self._place}"
        if kind == "call":
            self._item = call_item(name, call, function, "", "in_progress")
        elif kind == "reasoning":
            self._item = reasoning_item(name, "")
        else:
            self._item = message_item(name, "in_progress")
        added = {"type": "response.output_item.added", "output_index": self._index, "item": {**self._item}}
        if kind == "call":
            return [*ended, added]
        return [
            *ended,
            added,
            {"type": "response.content_part.added", **self._where(), "part": self._part("")},
        ]

    def _delta(self, text: str) -> list[dict[str, Any]]:
        self._text += text
        where = self._where()
        match self._kind:
            case "text":
                return [{"type": "response.output_text.delta", **where, "delta": text, "logprobs": []}]
            case "call":
                del where["content_index"]
                return [{"type": "response.function_call_arguments.delta", **where, "delta": text}]
            case kind:
                return [{"type": f"response.{kind}.delta", **where, "delta": text}]

    def _end(self, status: str) -> list[dict[str, Any]]:
        """End the item that is open, if there is one."""
        if not self._kind:
            return []
        where, text = self._where(), self._text
        if self._kind == "call":
            del where["content_index"]
            done = [{"type": "response.function_call_arguments.done", **where, "arguments": text}]
            self._item["arguments"] = text
        else:
            said = {"refusal": text} if self._kind == "refusal" else {"text": text}
            if self._kind == "text":
                said["logprobs"] = []  # type: ignore[assignment]
            name = "output_text" if self._kind == "text" else self._kind
            done = [
                {"type": f"response.{name}.done", **where, **said},
                {"type": "response.content_part.done", **where, "part": self._part(text)},
            ]
            self._item["content"] = [self._part(text)]
        if self._kind != "reasoning":
            self._item["status"] = status
        done.append({"type": "response.output_item.done", "output_index": self._index, "item": self._item})
        if status == "completed":
            self._done.append(self._item)
        self._kind = self._call = ""
        self._index += 1
        self._place += 1
        return done

    def _whole_call(self, event: Any) -> list[dict[str, Any]]:
        """A tool call that is complete: what came of it in pieces ends; of one that came at once all is told."""
        if self._kind == "call" and self._call == event.call_id:
            return self._end("completed")
        if self._step == event.step and self._item.get("call_id") == event.call_id:
            return []
        arguments = msgspec.json.encode(event.arguments).decode()
        begun = self._begin("call", event.step, event.call_id, event.name)
        return [*begun, *self._delta(arguments), *self._end("completed")]

    def _result(self, call: str, result: str) -> list[dict[str, Any]]:
        item = output_item(call, result, self._turn)
        kinds = "response.output_item.added", "response.output_item.done"
        found = [{"type": kind, "output_index": self._index, "item": item} for kind in kinds]
        self._done.append(item)
        self._index += 1
        return found

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": self._index, "content_index": 0}

    def _part(self, text: str) -> dict[str, Any]:
        match self._kind:
            case "refusal":
                return {"type": "refusal", "refusal": text}
            case "reasoning":
                return {"type": "reasoning_text", "text": text}
            case _:
                return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
