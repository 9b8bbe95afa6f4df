"""Converts the events of one turn to those of one AG-UI run, with the protocol's own types. Without HTTP or Redis.

https://docs.ag-ui.com/concepts/events
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from ag_ui.core import events as ag
from ag_ui.core import types as shapes

from antiphon.errors import user_message
from antiphon.events import Event, StepFinished, ToolResultEvent, TurnRetrying
from antiphon.model import OpenCall, Response
from antiphon_gateway.turn_stream import Part, TurnStream


class RunEvents(TurnStream[ag.BaseEvent]):
    """Converts the events of a turn. Everything opened is closed before the run ends, and nothing follows.

    ``before`` are the messages that the client has sent; with ``continues`` they include the earlier part of the
    turn's answer. The id of a message is that of the turn with the ``seq`` of its first event. A model call that begins
    again retracts its output: a ``MESSAGES_SNAPSHOT`` contains the messages that count.
    """

    PARALLEL = True

    def __init__(
        self, thread_id: str, run_id: str, turn_id: str, before: Sequence[Any], *, continues: bool
    ) -> None:
        super().__init__()
        self._thread, self._run, self._turn = thread_id, run_id, turn_id
        own = f"{turn_id}."
        self._before = [one for one in before if continues or not one.id.startswith(own)]
        self._known = {one.tool_call_id for one in self._before if isinstance(one, shapes.ToolMessage)}
        self._stale = len(self._before) < len(before)  # the client has a part of this answer already
        self._said: list[Any] = []  # the messages of this run
        self._settled = 0  # how many of them belong to finished steps
        self._calls: dict[str, shapes.ToolCall] = {}  # by id, including those taken back

    def start(self) -> list[ag.BaseEvent]:
        """Return the first events of the run."""
        started = ag.RunStartedEvent(thread_id=self._thread, run_id=self._run)
        return [started, self._snapshot()] if self._stale else [started]

    def suspended(self, calls: Sequence[OpenCall]) -> list[ag.BaseEvent]:
        """Return the end of a run whose turn waits: for people (with interrupts), or for the client's own tools."""
        asked = [_interrupt(call) for call in calls if call.kind == "approval"]
        own = [call.call_id for call in calls if call.kind == "tool"]
        outcome: ag.RunFinishedOutcome = (
            ag.RunFinishedInterruptOutcome(interrupts=asked)
            if asked
            else ag.RunFinishedSuccessOutcome(pending_tool_call_ids=own)
        )
        return self._finished(outcome)

    def failed(self, code: str) -> list[ag.BaseEvent]:
        """Return the end of a failed run, with a sentence for end users."""
        return [*self.close(), ag.RunErrorEvent(message=user_message(code), code=code)]

    def began(self, part: Part) -> list[ag.BaseEvent]:
        name = f"{self._turn}.{part.seq}"
        if part.kind == "text":
            self._said.append(shapes.AssistantMessage(id=name, content=""))
            return [ag.TextMessageStartEvent(message_id=name, role="assistant")]
        if part.kind == "reasoning":
            self._said.append(shapes.ReasoningMessage(id=name, content=""))
            start = ag.ReasoningMessageStartEvent(message_id=name, role="reasoning")
            return [ag.ReasoningStartEvent(message_id=name), start]
        last = self._said[-1] if len(self._said) > self._settled else None
        if not isinstance(last, shapes.AssistantMessage):  # a message that has calls only
            last = shapes.AssistantMessage(id=name)
            self._said.append(last)
        call = shapes.ToolCall(id=part.call_id, function=shapes.FunctionCall(name=part.name, arguments=""))
        last.tool_calls = [*(last.tool_calls or []), call]
        self._calls[part.call_id] = call
        return [
            ag.ToolCallStartEvent(
                tool_call_id=part.call_id, tool_call_name=part.name, parent_message_id=last.id
            )
        ]

    def grew(self, part: Part, text: str) -> list[ag.BaseEvent]:
        if part.kind == "call":
            self._calls[part.call_id].function.arguments += text
            return [ag.ToolCallArgsEvent(tool_call_id=part.call_id, delta=text)]
        self._said[-1].content = part.text
        kind = ag.TextMessageContentEvent if part.kind == "text" else ag.ReasoningMessageContentEvent
        return [kind(message_id=self._said[-1].id, delta=text)]

    def ended(self, part: Part, *, whole: bool) -> list[ag.BaseEvent]:
        name = f"{self._turn}.{part.seq}"
        match part.kind:
            case "call":
                return [ag.ToolCallEndEvent(tool_call_id=part.call_id)]
            case "text":
                return [ag.TextMessageEndEvent(message_id=name)]
            case _:
                return [ag.ReasoningMessageEndEvent(message_id=name), ag.ReasoningEndEvent(message_id=name)]

    def knows(self, call_id: str) -> bool:
        own = (one for message in self._said for one in getattr(message, "tool_calls", None) or ())
        return any(one.id == call_id and one.function.arguments for one in own)

    def result(self, event: ToolResultEvent) -> list[ag.BaseEvent]:
        if event.call_id in self._known:  # the client sent this result
            return []
        name, call, text = f"{self._turn}.{event.seq}", event.call_id, event.result
        error = text if event.is_error else None
        self._said.append(shapes.ToolMessage(id=name, tool_call_id=call, content=text, error=error))
        self._settled = len(self._said)
        return [ag.ToolCallResultEvent(message_id=name, tool_call_id=call, content=text, role="tool")]

    def step_ended(self) -> list[ag.BaseEvent]:
        self._settled = len(self._said)
        return []

    def taken_back(self, event: StepFinished | TurnRetrying) -> list[ag.BaseEvent]:
        closed = self.close()
        self.forget(event.step)
        if len(self._said) == self._settled:
            return closed
        del self._said[self._settled :]
        return [*closed, self._snapshot()]

    def other(self, event: Event) -> list[ag.BaseEvent]:
        match event.type:
            case "tool_progress":
                value = {
                    "callId": event.call_id, "name": event.name, "text": event.text, "fraction": event.fraction,
                }  # fmt: skip
                return [ag.CustomEvent(name="tool_progress", value=value)]
            case "custom":
                return [ag.CustomEvent(name=event.name, value=event.data)]
            case "output_delta":
                return [ag.CustomEvent(name="output", value=event.output)]
            case "turn_finished":
                return self._finished(ag.RunFinishedSuccessOutcome(), _usage(event.response))
            case "turn_failed":
                return self.failed(event.code)
            case "turn_cancelled":
                return self._finished(ag.RunFinishedCancelledOutcome())
            case _:
                return []

    def _finished(self, outcome: ag.RunFinishedOutcome, usage: Any = None) -> list[ag.BaseEvent]:
        end = ag.RunFinishedEvent(thread_id=self._thread, run_id=self._run, outcome=outcome, usage=usage)
        return [*self.close(), end]

    def _snapshot(self) -> ag.BaseEvent:
        return ag.MessagesSnapshotEvent(messages=[*self._before, *self._said])


def _interrupt(call: OpenCall) -> shapes.Interrupt:
    until = None if call.until is None else datetime.fromtimestamp(call.until / 1000, UTC).isoformat()
    return shapes.Interrupt(
        id=call.call_id, reason="tool_approval", message=f"May {call.name} run?", tool_call_id=call.call_id,
        response_schema=APPROVAL, expires_at=until, metadata={"name": call.name, "arguments": call.arguments},
    )  # fmt: skip


APPROVAL = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["approved"],
}


def _usage(response: Response | None) -> Iterable[ag.TokenUsage] | None:
    if response is None:
        return None
    used = response.usage
    total = used.input_tokens + used.output_tokens
    return [
        ag.TokenUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, total_tokens=total)
    ]
