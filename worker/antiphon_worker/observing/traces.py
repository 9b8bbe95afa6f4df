"""Spans of turns, model calls and tools, by OpenTelemetry's conventions for generative AI, and their metrics."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry import context, propagate, trace
from opentelemetry.metrics import Meter
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
from antiphon.model import Message, ToolCall, ToolResult
from antiphon.model.revisions import Revision
from antiphon.tools import Context
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.observing.content import Content, question, show_calls
from antiphon_worker.observing.labels import codes_of_providers, is_name
from antiphon_worker.providers.base import ModelRequest

if TYPE_CHECKING:
    from antiphon_worker.app import App


_PROVIDERS = {"openai-chat": "openai"}  # ours, by their names in the conventions
_GOOD = ("finished", "suspended", "cancelled", "given_back")
_WHOLE = ("finished", "suspended")  # no call was cut off
_PIECES = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, ItemEvent)
_PARAMETERS = (
    "frequency_penalty", "max_tokens", "presence_penalty", "seed", "temperature", "top_k", "top_p",
)  # fmt: skip
_current: ContextVar[_Spans | None] = ContextVar("spans of the turn that this task runs", default=None)


class _Asked(msgspec.Struct):
    """The trace context in a stored request."""

    trace: str = ""


class Traces:
    """The ``Observer`` that creates spans. Without ``content``, they contain only ids, names and numbers.

    Within a turn of the ``app``, its span is the current one; within a tool, the tool's span is. Turns that they
    submit, and what other instrumentation observes there, belong to the same trace.
    """

    def __init__(
        self, tracer: trace.Tracer, app: App | None = None, *, instruments: Instruments | None = None,
        content: Content | None = None,
    ) -> None:  # fmt: skip
        self.tracer = tracer
        self.instruments = instruments
        self.content = content
        if app is not None:
            app.toolbox = _TracedToolBox.of(app.toolbox)
            if content is not None:
                show_calls(app, _show)

    def begin(self, turn: ClaimedTurn) -> _Spans:
        spans = _Spans(self, turn)
        _current.set(spans)
        return spans

    def command(self, name: str, seconds: float) -> None:
        """Ignore round trips to Redis: there are too many for spans."""

    def tool_changed(self, server: str) -> None:
        """Ignore a changed tool: it belongs to the server, not to a turn."""


class _TracedToolBox(ToolBox):
    """A toolbox whose calls run within their spans."""

    @classmethod
    def of(cls, box: ToolBox) -> ToolBox:
        return cls(
            list(box.tools.values()), timeout=box.timeout, limit=box.limit, threads=box.threads, patience=box.patience,
            calls=box.calls, tool_errors=box.tool_errors,
        )  # fmt: skip

    async def run(self, call: ToolCall, context: Context) -> ToolResult:
        """Run one call, as ``ToolBox.run`` does."""
        spans = _current.get()
        if spans is None:
            return await super().run(call, context)
        with spans.within(call.call_id):
            result = await super().run(call, context)
            spans.returned(result)
            return result


def _show(request: ModelRequest, answer: Message | None) -> None:
    """Note what is sent to a model, and then its answer, for the spans of the turn."""
    spans = _current.get()
    if spans is not None:
        spans.saw(request, answer)


class _Spans:
    """The spans of one attempt. A span without an error has no status, as the conventions require.

    An agent that a hand-off puts in charge has a span of its own, a sibling of the previous agent's span.
    """

    def __init__(self, traces: Traces, turn: ClaimedTurn) -> None:
        self._tracer, self._measure, self._content = traces.tracer, traces.instruments, traces.content
        self._parent = propagate.extract({"traceparent": _trace_of(turn.request)})
        now = time.time_ns()
        self._shared: dict[str, Any] = {
            "gen_ai.conversation.id": turn.session_id, "antiphon.turn.id": turn.turn_id,
        }  # fmt: skip
        if turn.attempt == 1 and turn.created:
            waited = self._tracer.start_span(
                "antiphon.queue", self._parent, SpanKind.CONSUMER, start_time=min(turn.created * 1_000_000, now),
                attributes=self._shared
                | {
                    "messaging.system": "redis", "messaging.destination.name": turn.queue,
                    "messaging.operation.name": "claim", "messaging.operation.type": "receive",
                },
            )  # fmt: skip
            waited.end(now)
            if not trace.get_current_span(self._parent).get_span_context().is_valid:
                self._parent = trace.set_span_in_context(waited)  # so that the turn is one trace
        self._attempt = {"antiphon.run": turn.run, "antiphon.attempt": turn.attempt}
        self._span: trace.Span | None = None  # of the agent in charge
        self._within = self._parent
        self._token: Token[Any] | None = None  # of the current span before it
        self._agent: dict[str, Any] = {}  # its attributes
        self._model: dict[str, Any] = {}  # attributes of the model that is called
        self._asked: dict[str, Any] = {}  # attributes for the parameters of its calls
        self._calling_since = now
        self._heard: int | None = None  # when the first piece of the answer came
        self._tools: dict[str, trace.Span] = {}
        self._seen: tuple[ModelRequest, Message | None] | None = (
            None  # the model call that its span is to show
        )
        self._began = now

    def opened(self, agent: AgentSpec, revision: Revision | None) -> None:
        if self._span is not None:  # that of the agent that handed the turn over
            self._agent_ends("")
            self._began, self._seen = time.time_ns(), None
        self._asks(agent.provider, agent.model)
        asked = {name: agent.params.get(name) for name in _PARAMETERS}
        self._asked = {
            f"gen_ai.request.{name}": value for name, value in asked.items() if type(value) in (int, float)
        }
        self._agent = {}
        if agent.name and revision is not None:
            name = _name(agent.name)
            self._agent = {
                "gen_ai.agent.name": name, "gen_ai.agent.id": name, "gen_ai.agent.version": revision.id,
            }  # fmt: skip
        self._begin_agent()

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
                self._tools[call] = span = self._tracer.start_span(
                    f"execute_tool {known}", self._within, SpanKind.INTERNAL,
                    attributes=self._shared
                    | {
                        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": known,
                        "gen_ai.tool.type": "function", "gen_ai.tool.call.id": _name(call),
                    },
                )  # fmt: skip
                if self._content is not None:
                    span.set_attributes(self._content.of(**{"gen_ai.tool.call.arguments": event.arguments}))
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
        self._tools.clear()
        if self._span is None:
            self._begin_agent()
        if code in codes_of_providers() or (self._heard and cut_off):
            self._failed(cut_off)
        self._agent_ends("" if outcome in _GOOD else code or outcome, outcome)

    @contextmanager
    def within(self, call_id: str) -> Generator[None]:
        """Make the span of a tool call the current one of this task."""
        span = self._tools.get(call_id)
        if span is None:  # the call was announced in an earlier attempt
            yield
            return
        token = context.attach(trace.set_span_in_context(span, self._within))
        try:
            yield
        finally:
            context.detach(token)

    def returned(self, result: ToolResult) -> None:
        """Show the result of a tool call in its span."""
        span = self._tools.get(result.call_id)
        if span is not None and self._content is not None:
            span.set_attributes(self._content.of(**{"gen_ai.tool.call.result": result.text}))

    def saw(self, request: ModelRequest, answer: Message | None) -> None:
        """Note what is sent to the model, or what it answered."""
        self._seen = (request, answer)

    def _begin_agent(self) -> None:
        """Start the span of the agent in charge, and make it the current one of the turn."""
        name = self._agent.get("gen_ai.agent.name")
        self._span = self._tracer.start_span(
            f"invoke_agent {name}" if name else "invoke_agent", self._parent, SpanKind.INTERNAL,
            attributes={"gen_ai.operation.name": "invoke_agent"}
            | self._shared | self._agent | self._model | self._attempt,
            start_time=self._began,
        )  # fmt: skip
        self._within = trace.set_span_in_context(self._span, self._parent)
        self._token = context.attach(self._within)

    def _agent_ends(self, error: str, outcome: str = "handed_over") -> None:
        assert self._span is not None
        assert self._token is not None
        context.detach(self._token)
        self._span.set_attribute("antiphon.outcome", outcome)
        if self._content is not None and self._seen is not None:
            request, answer = self._seen
            self._span.set_attributes(
                self._content.of(
                    **{
                        "gen_ai.input.messages": question(request.messages),
                        "gen_ai.output.messages": [answer] if answer is not None else None,
                    }
                )
            )
        _end(self._span, error)

    def _asks(self, provider: str, model: str) -> None:
        """Note which model the next calls go to."""
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

    def _failed(self, code: str) -> None:
        self._model_call({}, code)

    def _model_call(self, attributes: dict[str, Any], error: str = "") -> None:
        """Create the span of the call that began last, and note that the next one may begin."""
        began, heard, ended = self._calling_since, self._heard, time.time_ns()
        self._calling_since, self._heard = ended, None
        attributes |= {"gen_ai.operation.name": "chat", "gen_ai.request.stream": True} | self._model
        if heard:
            attributes["gen_ai.response.time_to_first_chunk"] = max(heard - began, 0) / 1e9
        name = f"chat {self._model.get('gen_ai.request.model', '')}".strip()
        shown = self._content.of_call(*self._seen) if self._content is not None and self._seen else {}
        span = self._tracer.start_span(
            name, self._within, SpanKind.CLIENT, self._shared | self._agent | self._asked | attributes | shown,
            start_time=began,
        )  # fmt: skip
        _end(span, error)
        if self._measure is not None:
            self._measure.call(attributes, (ended - began) / 1e9, _name(error) if error else "")


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
    """Return a name, or ``other`` if it does not look like one: a model may call a tool by any text."""
    return text if is_name(text) else "other"


_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_FIRST = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_TOKENS = [4**power for power in range(14)]
_LABELS = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
)  # fmt: skip


class Instruments:
    """Measures model calls: their duration, the time to their first piece, and their tokens."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "Time to receive the first chunk.",
            explicit_bucket_boundaries_advisory=_FIRST,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )  # fmt: skip

    def call(self, span: Mapping[str, Any], seconds: float, error: str) -> None:
        """Measure a model call by the attributes of its span."""
        labels = {name: span[name] for name in _LABELS if name in span}
        self._duration.record(seconds, labels | ({"error.type": error} if error else {}))
        if "gen_ai.response.time_to_first_chunk" in span:
            self._first.record(span["gen_ai.response.time_to_first_chunk"], labels)
        for kind in ("input", "output"):
            if f"gen_ai.usage.{kind}_tokens" in span:
                self._tokens.record(span[f"gen_ai.usage.{kind}_tokens"], labels | {"gen_ai.token.type": kind})
