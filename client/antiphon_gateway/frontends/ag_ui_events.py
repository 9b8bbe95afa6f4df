"""Converts the events of one turn to those of one AG-UI run, with the protocol's own types. Without HTTP and Redis.

https://docs.ag-ui.com/concepts/events
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from ag_ui.core import events as ag
from ag_ui.core import types as shapes

from antiphon.events import Event
from antiphon.model import OpenCall, Response


class RunEvents:
    """Converts the events of a turn. All that was opened is closed before the run ends, and then nothing comes.

    ``before`` are the messages that the client has sent; with ``continues`` the earlier part of the turn's answer is
    among them. The id of a message is that of the turn with the ``seq`` of its first event. A model call that begins
    again takes back what it had said: a ``MESSAGES_SNAPSHOT`` has the messages that count.
    """

    def __init__(
        self, thread_id: str, run_id: str, turn_id: str, before: Sequence[Any], *, continues: bool
    ) -> None:
        self._thread, self._run, self._turn = thread_id, run_id, turn_id
        own = f"{turn_id}."
        self._before = [one for one in before if continues or not one.id.startswith(own)]
        self._told = {one.tool_call_id for one in self._before if isinstance(one, shapes.ToolMessage)}
        self._stale = len(self._before) < len(before)  # the client has a part of this answer already
        self._said: list[Any] = []  # the messages of this run
        self._settled = 0  # so many of them are of steps that are over
        self._open: Any = None  # the message that is being written
        self._calls: dict[str, shapes.ToolCall] = {}  # those whose arguments are being written
        self._seq = 0

    def began(self) -> list[ag.BaseEvent]:
        """The first events of the run."""
        started = ag.RunStartedEvent(thread_id=self._thread, run_id=self._run)
        return [started, self._snapshot()] if self._stale else [started]

    def of(self, event: Event) -> list[ag.BaseEvent]:
        """Return the events for one event of the turn."""
        self._seq = event.seq
        match event.type:
            case "text_delta" | "refusal_delta":
                return self._text(event.text)
            case "reasoning_delta":
                return self._reasoning(event.text)
            case "tool_call_delta":
                return [
                    *self._called(event.call_id, event.name),
                    *self._arguments(event.call_id, event.arguments),
                ]
            case "tool_call":
                return self._whole_call(event.call_id, event.name, event.arguments)
            case "tool_result":
                return self._result(event.call_id, event.result, event.is_error)
            case "step_finished" if not event.rejected:
                closed = self._closed()
                self._settled = len(self._said)
                return closed
            case "step_finished" | "turn_retrying":
                return self._taken_back()
            case "turn_suspended":
                return [
                    one
                    for call in event.calls
                    for one in self._whole_call(call.call_id, call.name, call.arguments)
                ]
            case "tool_progress":
                value = {
                    "callId": event.call_id,
                    "name": event.name,
                    "text": event.text,
                    "fraction": event.fraction,
                }
                return [ag.CustomEvent(name="tool_progress", value=value)]
            case "custom":
                return [ag.CustomEvent(name=event.name, value=event.data)]
            case "output_delta":
                return [ag.CustomEvent(name="output", value=event.output)]
            case _:
                return self._end(event)

    def suspended(self, calls: Sequence[OpenCall]) -> list[ag.BaseEvent]:
        """The end of a run whose turn waits: for people with interrupts, for the client's own tools without."""
        asked = [_interrupt(call) for call in calls if call.kind == "approval"]
        own = [call.call_id for call in calls if call.kind == "tool"]
        outcome: ag.RunFinishedOutcome = (
            ag.RunFinishedInterruptOutcome(interrupts=asked)
            if asked
            else ag.RunFinishedSuccessOutcome(pending_tool_call_ids=own)
        )
        return [*self._closed(), self._finished(outcome)]

    def failed(self, code: str, message: str) -> list[ag.BaseEvent]:
        """The end of a run that failed."""
        return [*self._closed(), ag.RunErrorEvent(message=message or code, code=code)]

    def _end(self, event: Event) -> list[ag.BaseEvent]:
        match event.type:
            case "turn_finished":
                usage = _usage(event.response)
                return [*self._closed(), self._finished(ag.RunFinishedSuccessOutcome(), usage)]
            case "turn_failed":
                return self.failed(event.code, event.message)
            case "turn_cancelled":
                return [*self._closed(), self._finished(ag.RunFinishedCancelledOutcome())]
            case _:
                return []

    def _finished(self, outcome: ag.RunFinishedOutcome, usage: Any = None) -> ag.BaseEvent:
        return ag.RunFinishedEvent(thread_id=self._thread, run_id=self._run, outcome=outcome, usage=usage)

    def _text(self, text: str) -> list[ag.BaseEvent]:
        found: list[ag.BaseEvent] = []
        if not isinstance(self._open, shapes.AssistantMessage):
            found = self._closed()
            self._open = self._new(shapes.AssistantMessage(id=self._next_id(), content=""))
            found.append(ag.TextMessageStartEvent(message_id=self._open.id, role="assistant"))
        self._open.content = (self._open.content or "") + text
        return [*found, ag.TextMessageContentEvent(message_id=self._open.id, delta=text)]

    def _reasoning(self, text: str) -> list[ag.BaseEvent]:
        found: list[ag.BaseEvent] = []
        if not isinstance(self._open, shapes.ReasoningMessage):
            found = self._closed()
            self._open = self._new(shapes.ReasoningMessage(id=self._next_id(), content=""))
            found += [
                ag.ReasoningStartEvent(message_id=self._open.id),
                ag.ReasoningMessageStartEvent(message_id=self._open.id, role="reasoning"),
            ]
        self._open.content += text
        return [*found, ag.ReasoningMessageContentEvent(message_id=self._open.id, delta=text)]

    def _called(self, call: str, name: str) -> list[ag.BaseEvent]:
        """Begin a call of this step's last message, or of one that has only calls."""
        if call in self._calls:
            return []
        found = self._closed(calls=False)
        last = self._said[-1] if len(self._said) > self._settled else None
        if not isinstance(last, shapes.AssistantMessage):
            last = self._new(shapes.AssistantMessage(id=self._next_id()))
        shape = shapes.ToolCall(id=call, function=shapes.FunctionCall(name=name, arguments=""))
        last.tool_calls = [*(last.tool_calls or []), shape]
        self._calls[call] = shape
        return [
            *found,
            ag.ToolCallStartEvent(tool_call_id=call, tool_call_name=name, parent_message_id=last.id),
        ]

    def _arguments(self, call: str, text: str) -> list[ag.BaseEvent]:
        self._calls[call].function.arguments += text
        return [ag.ToolCallArgsEvent(tool_call_id=call, delta=text)]

    def _whole_call(self, call: str, name: str, arguments: Any) -> list[ag.BaseEvent]:
        if self._knows(call):
            return self._closed_call(call)
        found = self._called(call, name)
        found += self._arguments(call, msgspec.json.encode(arguments).decode())
        return [*found, *self._closed_call(call)]

    def _knows(self, call: str) -> bool:
        own = (one for message in self._said for one in getattr(message, "tool_calls", None) or ())
        return any(one.id == call and one.function.arguments for one in own)

    def _closed_call(self, call: str) -> list[ag.BaseEvent]:
        return [] if self._calls.pop(call, None) is None else [ag.ToolCallEndEvent(tool_call_id=call)]

    def _result(self, call: str, text: str, is_error: bool) -> list[ag.BaseEvent]:
        found = self._closed()
        if call in self._told:  # the client has given this result, and has it
            return found
        error = text if is_error else None
        self._new(shapes.ToolMessage(id=self._next_id(), tool_call_id=call, content=text, error=error))
        self._settled = len(self._said)
        return [
            *found,
            ag.ToolCallResultEvent(
                message_id=self._said[-1].id, tool_call_id=call, content=text, role="tool"
            ),
        ]

    def _taken_back(self) -> list[ag.BaseEvent]:
        closed = self._closed()
        if len(self._said) == self._settled:
            return closed
        del self._said[self._settled :]
        return [*closed, self._snapshot()]

    def _snapshot(self) -> ag.BaseEvent:
        return ag.MessagesSnapshotEvent(messages=[*self._before, *self._said])

    def _closed(self, *, calls: bool = True) -> list[ag.BaseEvent]:
        """Close the message that is being written, and the calls."""
        found: list[ag.BaseEvent] = []
        match self._open:
            case shapes.AssistantMessage():
                found = [ag.TextMessageEndEvent(message_id=self._open.id)]
            case shapes.ReasoningMessage():
                found = [
                    ag.ReasoningMessageEndEvent(message_id=self._open.id),
                    ag.ReasoningEndEvent(message_id=self._open.id),
                ]
            case _:
                pass
        self._open = None
        for call in [*self._calls] if calls else ():
            found += self._closed_call(call)
        return found

    def _new(self, message: Any) -> Any:
        self._said.append(message)
        return message

    def _next_id(self) -> str:
        return f"{self._turn}.{self._seq}"


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
