"""The response resource of a turn, and the events of its stream.

Numbers count from the turn's first event, so that a reader may continue at any gateway (``starting_after``). A model
call that begins again leaves an item with the status ``incomplete``; those of ``response.completed`` count.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from antiphon.events import Event, StepFinished, ToolResultEvent, TurnRetrying, TurnSuspended
from antiphon.model import Reasoning, Response
from antiphon.session.turn_info import TurnInfo
from antiphon_gateway.openai.errors import turn_failure
from antiphon_gateway.openai.items import (
    Seal,
    call_item,
    items_of,
    message_item,
    output_item,
    reasoning_item,
    usage_of,
)
from antiphon_gateway.turn_stream import Part, TurnStream

PREFIX = "resp_"
STATUS = {
    "queued": "queued", "waiting": "queued", "running": "in_progress", "retrying": "in_progress",
    "suspended": "in_progress", "finished": "completed", "failed": "failed", "cancelled": "cancelled",
}  # fmt: skip
FOR_APPROVAL = "approval_required"
INCOMPLETE = {"max_tokens": "max_output_tokens", "content_filter": "content_filter"}


def response_id(turn: str, part: int = 0) -> str:
    """Return the id of a turn's response, or of one that follows results of the caller's tools."""
    return f"{PREFIX}{turn}.{part}" if part else PREFIX + turn


def turn_and_part(name: str) -> tuple[str, int] | None:
    """Return the turn of a response, and how often the caller's tools had answered before it; None if invalid."""
    turn, dot, part = name.removeprefix(PREFIX).partition(".")
    if not name.startswith(PREFIX) or not turn or (dot and not (part.isascii() and part.isdigit())):
        return None
    return turn, int(part or 0)


def resource(info: TurnInfo, outcome: Response | None = None, seal: Seal | None = None) -> dict[str, Any]:
    """Return the response of a turn, with its ``outcome`` if it has finished.

    ``seal`` encrypts reasoning, for a request that includes that.
    """
    echo: dict[str, Any] = info.metadata.get("openai") or {}
    found: dict[str, Any] = {
        "id": response_id(info.turn_id), "object": "response", "created_at": info.created // 1000,
        "completed_at": None, "status": STATUS[info.status], "incomplete_details": None,
        "model": echo.get("model") or info.agent or "", "previous_response_id": echo.get("previous_response_id"),
        "instructions": echo.get("instructions"), "output": [], "error": None, "tools": echo.get("tools") or [],
        "tool_choice": echo.get("tool_choice") or "auto",
        "truncation": echo.get("truncation") or "disabled",
        "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "text": echo.get("text") or {"format": {"type": "text"}}, "top_p": echo.get("top_p", 1.0),
        "presence_penalty": echo.get("presence_penalty", 0.0), "frequency_penalty": echo.get("frequency_penalty", 0.0),
        "top_logprobs": echo.get("top_logprobs") or 0, "temperature": echo.get("temperature", 1.0),
        "reasoning": echo.get("reasoning"),
        "usage": None, "max_output_tokens": echo.get("max_output_tokens"), "max_tool_calls": echo.get("max_tool_calls"),
        "store": echo.get("store", True), "background": echo.get("background", False),
        "service_tier": echo.get("service_tier") or "default", "metadata": echo.get("metadata") or {},
        "safety_identifier": echo.get("safety_identifier"), "prompt_cache_key": echo.get("prompt_cache_key"),
        "conversation": {"id": info.session_id},
    }  # fmt: skip
    found["text"].setdefault("format", {"type": "text"})
    if outcome is not None:
        with_outcome(found, outcome, info.turn_id, info.ended, seal)
    elif info.status in ("failed", "cancelled"):
        found["output"] = items_of(info.messages, info.turn_id, seal)
        found["usage"] = usage_of(info.usage)
    if info.status == "failed":
        found["error"] = error_in(info.code or "", info.error or "", found["model"])
    return found


def error_in(code: str, message: str, model: str) -> dict[str, Any]:
    """Return why a response failed."""
    told = turn_failure(code, message, model)
    return {"code": told.code, "message": told.detail}


def with_outcome(
    found: dict[str, Any], outcome: Response, turn: str, ended: int | None, seal: Seal | None
) -> None:
    """Fill in the outcome of a finished turn."""
    reason = INCOMPLETE.get(outcome.stop_reason)
    found["status"] = "incomplete" if reason else "completed"
    found["incomplete_details"] = {"reason": reason} if reason else None
    found["completed_at"] = None if reason or not ended else ended // 1000
    found["output"] = items_of(outcome.messages, turn, seal)
    found["usage"] = usage_of(outcome.usage)


DONE = b"data: [DONE]\n\n"
ENDED = {"completed": "response.completed", "incomplete": "response.incomplete"}
NAMES = {"text": "output_text", "call": "function_call_arguments"}


def encode(event: dict[str, Any]) -> bytes:
    """Return an event as one server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


class ResponseStream(TurnStream[dict[str, Any]]):
    """Converts the events of one turn. ``response`` is its resource when the turn was submitted.

    A turn that waits for results of the caller's tools ends a response; the next one continues after them. ``part`` is
    how often that has happened before. ``over`` is true after the last event, and ``for_approval`` while the turn waits
    for a person.
    """

    KINDS: ClassVar = {"text_delta": "text", "refusal_delta": "refusal", "reasoning_delta": "reasoning"}

    def __init__(
        self, response: dict[str, Any], turn_id: str, part: int = 0, seal: Seal | None = None
    ) -> None:
        super().__init__()
        self._seal = seal
        self._response: dict[str, Any] = {
            **response, "id": response_id(turn_id, part), "status": "queued", "output": [], "usage": None,
            "error": None, "completed_at": None, "incomplete_details": None,
        }  # fmt: skip
        if part:
            self._response["previous_response_id"] = response_id(turn_id, part - 1)
        self.over = self.for_approval = False
        self._turn, self._part_number, self._skips = turn_id, part, part
        self._theirs = set[str]()  # calls of the caller's tools that the turn waits for, or has waited for
        self._waits = False
        self._done: list[dict[str, Any]] = []
        self._done_before = 0  # how many of them belong to earlier steps
        self._number = self._index = 0

    def of(self, event: Event) -> list[dict[str, Any]]:
        """Return the events of the response for an event of the turn, in order."""
        found = self._skipped(event) if self._skips else super().of(event)
        for one in found:
            one["sequence_number"] = self._number
            self._number += 1
        return found

    @property
    def model(self) -> str:
        """The model that the request named."""
        return self._response["model"]

    @property
    def begun(self) -> bool:
        """Whether this response has begun: the results that it follows were given."""
        return not self._skips

    @property
    def handed_over(self) -> bool:
        """Whether this response has ended with calls of the caller's tools."""
        return self.over and self._waits

    def response(self) -> dict[str, Any]:
        """Return the response after the events so far."""
        return {**self._response} if self.over else {**self._response, "output": [*self._done]}

    def broken(self, error: dict[str, Any]) -> dict[str, Any]:
        """Return the event that ends a stream whose other events are no longer kept."""
        self.over = True
        return {"type": "error", "sequence_number": self._number, "error": error}

    def _skipped(self, event: Event) -> list[dict[str, Any]]:
        """Look for the place where this response begins."""
        if event.type == "turn_suspended":
            self._suspend(event)
        elif event.type == "turn_resumed" and self._waits:
            self._waits, self._skips = False, self._skips - 1
            if not self._skips:
                self._response["status"] = "in_progress"
                return [self._snapshot("response.created"), self._snapshot("response.in_progress")]
        return []

    def _suspend(self, event: TurnSuspended) -> None:
        theirs = {call.call_id for call in event.calls if call.kind == "tool"}
        self._waits = bool(theirs)
        self._theirs |= theirs

    def other(self, event: Event) -> list[dict[str, Any]]:
        match event.type:
            case "turn_queued":
                return [self._snapshot("response.created"), self._snapshot("response.queued")]
            case "turn_started":
                self._response["status"] = "in_progress"
                return [self._snapshot("response.in_progress")]
            case "turn_resumed" if self.for_approval:
                self.for_approval, self._response["incomplete_details"] = False, None
                return [self._snapshot("response.in_progress")]
            case "turn_finished" | "turn_failed" | "turn_cancelled":
                self._response["incomplete_details"] = None
                return [*self.close(whole=False), self._outcome(event)]
            case _:
                return []

    def began(self, part: Part) -> list[dict[str, Any]]:
        if part.place == 0:
            self._done_before = len(self._done)
        item = self._item(part, "in_progress")
        found = [{"type": "response.output_item.added", "output_index": self._index, "item": item}]
        if part.kind != "call":
            where = self._where(part)
            found.append({"type": "response.content_part.added", **where, "part": _content(part)})
        return found

    def grew(self, part: Part, text: str) -> list[dict[str, Any]]:
        kind = f"response.{NAMES.get(part.kind, part.kind)}.delta"
        more = {"logprobs": list[Any]()} if part.kind == "text" else {}
        return [{"type": kind, **self._where(part), "delta": text, **more}]

    def ended(self, part: Part, *, whole: bool) -> list[dict[str, Any]]:
        where, kind = self._where(part), f"response.{NAMES.get(part.kind, part.kind)}.done"
        field = {"call": "arguments", "refusal": "refusal"}.get(part.kind, "text")
        more = {"logprobs": list[Any]()} if part.kind == "text" else {}
        found = [{"type": kind, **where, field: part.text, **more}]
        if part.kind != "call":
            found.append({"type": "response.content_part.done", **where, "part": _content(part)})
        item = self._item(part, "completed" if whole else "incomplete")
        if whole:
            self._done.append(item)
        self._index += 1
        return [*found, {"type": "response.output_item.done", "output_index": self._index - 1, "item": item}]

    def result(self, event: ToolResultEvent) -> list[dict[str, Any]]:
        if event.call_id in self._theirs:
            return []  # it came with a request
        item = output_item(event.call_id, event.result, self._turn)
        self._done.append(item)
        self._index += 1
        kinds = "response.output_item.added", "response.output_item.done"
        return [{"type": kind, "output_index": self._index - 1, "item": item} for kind in kinds]

    def taken_back(self, event: StepFinished | TurnRetrying) -> list[dict[str, Any]]:
        if event.type == "step_finished":
            return self.close()
        found = self.close(whole=False)
        if event.step == self.step:
            del self._done[self._done_before :]
        self.forget(event.step)
        return found

    def asked(self, event: TurnSuspended) -> list[dict[str, Any]]:
        """Return the events for pending calls. Calls of the caller's tools end the response."""
        self._suspend(event)
        found = [*self.close(), *super().asked(event)]
        if not self._waits:
            self.for_approval = True
            self._response["incomplete_details"] = {"reason": FOR_APPROVAL}
            return [*found, {"type": "response.in_progress", "response": self.response()}]
        self.over = True
        self._response |= {"status": "completed", "output": self._done, "usage": usage_of(self.usage)}
        return [*found, self._snapshot("response.completed")]

    def _outcome(self, event: Any) -> dict[str, Any]:
        self.over = True
        if event.type == "turn_finished":
            with_outcome(self._response, event.response, self._turn, event.at, self._seal)
            if self._part_number:
                self._response |= {"output": self._done, "usage": usage_of(self.usage)}
            return self._snapshot(ENDED[self._response["status"]])
        if event.type == "turn_cancelled":
            self._response |= {"status": "incomplete", "incomplete_details": {"reason": "cancelled"}}
            return self._snapshot("response.incomplete")
        error = error_in(event.code, event.message, self.model)
        self._response |= {"status": "failed", "error": error}
        return self._snapshot("response.failed")

    def _snapshot(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "response": {**self._response}}

    def _item(self, part: Part, status: str) -> dict[str, Any]:
        """Return a part as an item, without its content until it has ended."""
        name, ended = f"{self._turn}_{part.step}_{part.place}", status != "in_progress"
        match part.kind:
            case "call":
                return call_item(name, part.call_id, part.name, part.text if ended else "", status)
            case "reasoning":
                item = reasoning_item(name, Reasoning(part.text if ended else ""), self._seal)
            case _:
                item = message_item(name, status)
        return item | {"content": [_content(part)]} if ended else item

    def _where(self, part: Part) -> dict[str, Any]:
        prefix = {"call": "fc", "reasoning": "rs"}.get(part.kind, "msg")
        where = {"item_id": f"{prefix}_{self._turn}_{part.step}_{part.place}", "output_index": self._index}
        return where if part.kind == "call" else {**where, "content_index": 0}


def _content(part: Part) -> dict[str, Any]:
    match part.kind:
        case "refusal":
            return {"type": "refusal", "refusal": part.text}
        case "reasoning":
            return {"type": "reasoning_text", "text": part.text}
        case _:
            return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
