"""Converts the events of a turn to chunks of a chat completion. Pure.

Only the caller's own tools are shown: what a worker runs stays with the worker. A chunk cannot be taken back. So when a
model call begins again, what it says is compared with what was sent; if it differs, the stream ends with an error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.events import Event
from antiphon.model import OpenCall, Response, Usage
from antiphon_gateway.openai.errors import NO_RETRY, error_of, turn_failure
from antiphon_gateway.problems import Refused

__all__ = ["DONE", "Completion", "encode"]

DONE = b"data: [DONE]\n\n"
REASONS = {"max_tokens": "length", "limit": "length", "content_filter": "content_filter"}
KINDS = {"text_delta": "content", "reasoning_delta": "reasoning_content", "refusal_delta": "refusal"}
BETWEEN_STEPS = "\n\n"
CHANGED = (
    "The model call began again and says something else: repeat the request with its key, without stream."
)


def encode(chunk: dict[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


class Completion:
    """One chat completion. ``streamed`` is whether its chunks are sent as they come.

    With ``checked`` the answer has a schema: it comes whole, once a worker has checked it. ``over`` is true behind the
    last event, ``waits`` if that was because the turn waits for results, and ``failure`` is why it failed.
    """

    def __init__(
        self, turn: str, model: str, created: int, *, streamed: bool, checked: bool, usage: bool
    ) -> None:
        self.over = self.waits = False
        self.failure: Refused | None = None
        self._head = {"id": f"chatcmpl-{turn}", "created": created, "model": model}
        self._streamed, self._checked, self._with_usage = streamed, checked, usage
        self._said: dict[str, str] = dict.fromkeys(KINDS.values(), "")
        self._place: dict[str, int] = dict.fromkeys(KINDS.values(), 0)
        self._before: dict[int, dict[str, int]] = {}  # how much was said when a step began
        self._calls: list[dict[str, Any]] = []
        self._usages: dict[int, Usage] = {}
        self._reason = "stop"
        self._begun = False

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """Return the chunks that tell of an event of the turn, in order."""
        found = [] if self._begun else [self._chunk({"role": "assistant", "content": ""})]
        self._begun = True
        match event.type:
            case "text_delta" | "reasoning_delta" | "refusal_delta":
                kind = KINDS[event.type]
                if not (self._checked and kind == "content"):
                    found += self._add(kind, event.step, event.text)
            case "step_finished":
                self._usages[event.step] = event.usage
                self._check_whole()
            case "turn_retrying":
                self._again(event.step)
            case "turn_suspended":
                found += self._asked([call for call in event.calls if call.kind == "tool"])
            case "turn_finished":
                found += self._finished(event.response or Response())
            case "turn_failed":
                self._fail(turn_failure(event.code, event.message))
            case "turn_cancelled":
                self._fail(turn_failure("turn_cancelled", "The turn was cancelled."))
            case _:
                pass
        return found

    def whole(self) -> dict[str, Any]:
        """Return the completion. Raises ``Refused`` if it has failed."""
        if self.failure is not None:
            raise self.failure
        message: dict[str, Any] = {
            "role": "assistant", "content": self._said["content"] or None, "refusal": self._said["refusal"] or None,
        }  # fmt: skip
        if self._said["reasoning_content"]:
            message["reasoning_content"] = self._said["reasoning_content"]
        if self._calls:
            message["tool_calls"] = self._calls
        elif message["content"] is None and message["refusal"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def error(self) -> dict[str, Any]:
        """Return the chunk that says why the completion has failed."""
        assert self.failure is not None
        return {"error": error_of(self.failure)[1]}

    def _add(self, kind: str, step: int, text: str) -> list[dict[str, Any]]:
        if step not in self._before:
            self._before[step] = dict(self._place)
        if kind == "content" and text and self._place[kind] == self._before[step][kind] > 0:
            text = BETWEEN_STEPS + text
        said, place = self._said[kind], self._place[kind]
        known = said[place : place + len(text)]
        if not text.startswith(known):
            self._fail(Refused(500, "answer_changed", CHANGED, headers=NO_RETRY))
            return []
        self._place[kind] = place + len(text)
        new = text[len(known) :]
        self._said[kind] += new
        return [self._chunk({kind: new})] if new else []

    def _again(self, step: int) -> None:
        """A model call begins again: go back to where it began."""
        kept = self._before.get(step)
        if kept is not None:
            self._place = dict(kept)
            if not self._streamed:
                self._said = {kind: text[: kept[kind]] for kind, text in self._said.items()}

    def _check_whole(self) -> None:
        """A model call has ended: what was sent of it must have come again."""
        if any(self._place[kind] < len(text) for kind, text in self._said.items()):
            self._fail(Refused(500, "answer_changed", CHANGED, headers=NO_RETRY))

    def _asked(self, calls: list[OpenCall]) -> list[dict[str, Any]]:
        if not calls:
            return []  # it waits for a person
        for call in calls:
            function = {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()}
            self._calls.append({"id": call.call_id, "type": "function", "function": function})
        self.waits, self._reason = True, "tool_calls"
        told = [{"index": number, **call} for number, call in enumerate(self._calls)]
        return [self._chunk({"tool_calls": told}), *self._end()]

    def _finished(self, response: Response) -> list[dict[str, Any]]:
        self._usages = {0: response.usage}
        self._reason = REASONS.get(response.stop_reason, "stop")
        said = self._said["content"]
        texts = [one.text for one in response.messages if one.role == "assistant" and one.text]
        text = response.text if self._checked else BETWEEN_STEPS.join(texts)
        rest = text[len(said) :] if text.startswith(said) else ""
        self._said["content"] += rest
        return [*([self._chunk({"content": rest})] if rest else []), *self._end()]

    def _end(self) -> list[dict[str, Any]]:
        self.over = True
        last = self._chunk({}, self._reason)
        if not self._with_usage:
            return [last]
        return [last, {**self._chunk({}), "choices": [], "usage": self._usage()}]

    def _fail(self, failure: Refused) -> None:
        self.over, self.failure = True, failure

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        found = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**found, "usage": None} if self._with_usage else found

    def _usage(self) -> dict[str, Any]:
        usage = sum(self._usages.values(), Usage())
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0, "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }  # fmt: skip
