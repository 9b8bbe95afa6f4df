"""Spans of turns, model calls and tools, by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from antiphon.events import Event, ModelChanged, StepFinished, ToolCallEvent, ToolResultEvent
from antiphon.input.request import AgentSpec
from antiphon.wire.records import ClaimedTurn

_NAME = re.compile(r"[\w.:/@+-]{1,100}")
_GOOD = ("finished", "suspended", "cancelled", "given_back")


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
    """The spans of one attempt."""

    def __init__(self, tracer: trace.Tracer, turn: ClaimedTurn) -> None:
        self._tracer = tracer
        parent = propagate.extract({"traceparent": _trace_of(turn.request)})
        now = time.time_ns()
        self._shared = {"gen_ai.conversation.id": turn.session_id, "antiphon.turn.id": turn.turn_id}
        if turn.attempt == 1 and turn.created:
            waited = tracer.start_span(
                "antiphon.queue", parent, SpanKind.CONSUMER, start_time=min(turn.created * 1_000_000, now),
                attributes=self._shared | {"messaging.system": "redis", "messaging.destination.name": turn.queue},
            )  # fmt: skip
            waited.end(now)
        self._span = tracer.start_span(
            "invoke_agent", parent, SpanKind.CONSUMER, start_time=now,
            attributes=self._shared
            | {"gen_ai.operation.name": "invoke_agent", "antiphon.run": turn.run, "antiphon.attempt": turn.attempt},
        )  # fmt: skip
        self._within = trace.set_span_in_context(self._span)
        self._calling_since = now
        self._tools: dict[str, trace.Span] = {}
        self._calls: list[
            tuple[trace.Span, int]
        ] = []  # that have returned, and when: their provider is told later

    def opened(self, agent: AgentSpec, known: bool) -> None:
        """Spans are made of what the attempt does."""

    def event(self, event: Event) -> None:
        match event:
            case StepFinished():
                self._model_call(event)
            case ModelChanged(source=source):
                self._end_calls(source.partition("/")[0])
            case ToolCallEvent(call_id=call, name=name):
                known = _name(name)
                self._tools[call] = self._tracer.start_span(
                    f"execute_tool {known}", self._within,
                    attributes=self._shared
                    | {
                        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": known,
                        "gen_ai.tool.type": "function", "gen_ai.tool.call.id": _name(call),
                    },
                )  # fmt: skip
            case ToolResultEvent(call_id=call, is_error=is_error):
                span = self._tools.pop(call, None)
                if span is not None:
                    span.set_status(Status(StatusCode.ERROR if is_error else StatusCode.OK))
                    span.end()
                self._calling_since = time.time_ns()
            case _:
                return

    def end(self, outcome: str, code: str, provider: str) -> None:
        for span in self._tools.values():
            span.end()
        self._end_calls(provider)
        self._span.set_attribute("antiphon.outcome", outcome)
        self._span.set_attribute("gen_ai.provider.name", _name(provider))
        if code:
            self._span.set_attribute("error.type", _name(code))
        self._span.set_status(Status(StatusCode.OK if outcome in _GOOD else StatusCode.ERROR))
        self._span.end()

    def _model_call(self, event: StepFinished) -> None:
        model = _name(event.model)
        attributes: dict[str, Any] = self._shared | {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [event.stop_reason],
            "gen_ai.usage.input_tokens": event.usage.input_tokens,
            "gen_ai.usage.output_tokens": event.usage.output_tokens,
            "antiphon.step": event.step,
        }
        span = self._tracer.start_span(
            f"chat {model}", self._within, SpanKind.CLIENT, attributes, start_time=self._calling_since
        )
        self._calling_since = time.time_ns()
        self._calls.append((span, self._calling_since))

    def _end_calls(self, provider: str) -> None:
        for span, ended in self._calls:
            span.set_attribute("gen_ai.provider.name", _name(provider))
            span.end(ended)
        self._calls.clear()


def _trace_of(request: bytes) -> str:
    try:
        return msgspec.json.decode(request, type=_Asked).trace
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""


def _name(text: str) -> str:
    """A name, if it looks like one: a model may call a tool by any text."""
    return text if _NAME.fullmatch(text) else "other"
