"""Spans of turns, model calls and tools, by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from antiphon.events import (
    Event,
    ItemEvent,
    ModelChanged,
    ReasoningDelta,
    RefusalDelta,
    StepFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultEvent,
)
from antiphon.input.request import AgentSpec
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.observing.labels import codes_of_providers, is_name

_PROVIDERS = {"openai-chat": "openai"}  # ours, by their names in the conventions
_GOOD = ("finished", "suspended", "cancelled", "given_back")
_WHOLE = ("finished", "suspended")  # no call was cut off
_PIECES = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, ItemEvent)
_PARAMETERS = (
    "frequency_penalty", "max_tokens", "presence_penalty", "seed", "temperature", "top_k", "top_p",
)  # fmt: skip


class _Asked(msgspec.Struct):
    """The trace context in a stored request."""

    trace: str = ""


class Traces:
    """The ``Observer`` that makes spans. What goes to ``tracer`` holds ids, names and numbers only."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def begin(self, turn: ClaimedTurn) -> _Spans:
        return _Spans(self._tracer, turn)

    def command(self, name: str, seconds: float) -> None:
        """Round trips to Redis are not traced as spans: there are too many."""


class _Spans:
    """The spans of one attempt. A span of something that went well has no status, as the conventions ask."""

    def __init__(self, tracer: trace.Tracer, turn: ClaimedTurn) -> None:
        self._tracer = tracer
        parent = propagate.extract({"traceparent": _trace_of(turn.request)})
        now = time.time_ns()
        self._shared: dict[str, Any] = {
            "gen_ai.conversation.id": turn.session_id, "antiphon.turn.id": turn.turn_id,
        }  # fmt: skip
        if turn.attempt == 1 and turn.created:
            waited = tracer.start_span(
                "antiphon.queue", parent, SpanKind.CONSUMER, start_time=min(turn.created * 1_000_000, now),
                attributes=self._shared
                | {
                    "messaging.system": "redis", "messaging.destination.name": turn.queue,
                    "messaging.operation.name": "claim", "messaging.operation.type": "receive",
                },
            )  # fmt: skip
            waited.end(now)
        self._span = tracer.start_span(
            "invoke_agent", parent, SpanKind.INTERNAL, start_time=now,
            attributes=self._shared
            | {"gen_ai.operation.name": "invoke_agent", "antiphon.run": turn.run, "antiphon.attempt": turn.attempt},
        )  # fmt: skip
        self._within = trace.set_span_in_context(self._span)
        self._model: dict[str, Any] = {}  # that is asked: its attributes
        self._asked: dict[str, Any] = {}  # with which parameters
        self._calling_since = now
        self._heard: int | None = None  # when the first piece of the answer came
        self._tools: dict[str, trace.Span] = {}

    def opened(self, agent: AgentSpec, known: bool) -> None:
        self._asks(agent.provider, agent.model)
        self._span.set_attributes(self._model)
        asked = {name: agent.params.get(name) for name in _PARAMETERS}
        self._asked = {
            f"gen_ai.request.{name}": value for name, value in asked.items() if type(value) in (int, float)
        }
        if agent.name and known:
            self._span.update_name(f"invoke_agent {_name(agent.name)}")
            self._span.set_attribute("gen_ai.agent.name", _name(agent.name))

    def event(self, event: Event) -> None:
        if isinstance(event, _PIECES):
            self._heard = self._heard or time.time_ns()
            return
        match event:
            case StepFinished():
                self._answered(event)
            case ModelChanged(target=target, code=code):
                self._failed(code)
                self._asks(*target.split("/", 1))
            case ToolCallEvent(call_id=call, name=name):
                known = _name(name)
                self._tools[call] = self._tracer.start_span(
                    f"execute_tool {known}", self._within, SpanKind.INTERNAL,
                    attributes=self._shared
                    | {
                        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": known,
                        "gen_ai.tool.type": "function", "gen_ai.tool.call.id": _name(call),
                    },
                )  # fmt: skip
            case ToolResultEvent(call_id=call, is_error=is_error):
                span = self._tools.pop(call, None)
                if span is not None:
                    _end(span, "tool_error" if is_error else "")
                self._calling_since = time.time_ns()
            case _:
                return

    def end(self, outcome: str, code: str, provider: str) -> None:
        cut_off = "" if outcome in _WHOLE else code or outcome
        for span in self._tools.values():
            _end(span, cut_off)
        if code in codes_of_providers() or (self._heard and cut_off):
            self._failed(cut_off)
        self._span.set_attribute("antiphon.outcome", outcome)
        _end(self._span, "" if outcome in _GOOD else code or outcome)

    def _asks(self, provider: str, model: str) -> None:
        """Note which model the next calls ask."""
        self._model = {
            "gen_ai.provider.name": _PROVIDERS.get(provider) or _name(provider),
            "gen_ai.request.model": _name(model),
        }

    def _answered(self, event: StepFinished) -> None:
        used = event.usage
        parts = {
            "cache_read.input_tokens": used.cached_input_tokens,
            "cache_creation.input_tokens": used.cache_write_tokens,
            "reasoning.output_tokens": used.reasoning_tokens,
        }
        _end(
            self._model_call(
                {
                    "gen_ai.response.model": _name(event.model),
                    "gen_ai.response.finish_reasons": [_name(event.raw_stop_reason or event.stop_reason)],
                    "gen_ai.usage.input_tokens": used.input_tokens,
                    "gen_ai.usage.output_tokens": used.output_tokens,
                    "antiphon.step": event.step,
                    **{f"gen_ai.usage.{name}": number for name, number in parts.items() if number},
                }
            )
        )

    def _failed(self, code: str) -> None:
        _end(self._model_call({}), code)

    def _model_call(self, attributes: dict[str, Any]) -> trace.Span:
        """Make the span of the call that began last, and note that the next one may begin."""
        began, heard, self._calling_since, self._heard = (
            self._calling_since,
            self._heard,
            time.time_ns(),
            None,
        )
        asked = {"gen_ai.operation.name": "chat", "gen_ai.request.stream": True, **self._asked}
        if heard:
            asked["gen_ai.response.time_to_first_chunk"] = max(heard - began, 0) / 1e9
        name = f"chat {self._model.get('gen_ai.request.model', '')}".strip()
        return self._tracer.start_span(
            name,
            self._within,
            SpanKind.CLIENT,
            self._shared | self._model | asked | attributes,
            start_time=began,
        )


def _end(span: trace.Span, error: str = "") -> None:
    if error:
        span.set_attribute("error.type", _name(error))
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _trace_of(request: bytes) -> str:
    try:
        return msgspec.json.decode(request, type=_Asked).trace
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def _name(text: str) -> str:
    """A name, if it looks like one: a model may call a tool by any text."""
    return text if is_name(text) else "other"
