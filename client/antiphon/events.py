"""The published facts of a session, one struct a type.

``seq`` is dense over the whole session (1, 2, 3, …) and ``at`` is the server's time in ms; both are put in front
by the script that logs and publishes the event, so they are absent from what a worker encodes. Readers ignore
fields and types that they do not know.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord
from antiphon.model import Message, Response, StopReason, ToolCall, Usage, encode

__all__ = [
    "ChildEvent",
    "Event",
    "EventBase",
    "Handoff",
    "HistoryCleared",
    "ItemEvent",
    "MessageAdded",
    "ReasoningDelta",
    "RefusalDelta",
    "SessionClosed",
    "SessionForked",
    "StepFinished",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallEvent",
    "ToolProgress",
    "ToolResultEvent",
    "TurnCancelledEvent",
    "TurnFailedEvent",
    "TurnFinished",
    "TurnQueued",
    "TurnResumed",
    "TurnRetrying",
    "TurnStarted",
    "TurnSteered",
    "TurnSuspended",
    "UnknownEvent",
    "VariablesChanged",
    "decode_event",
]


class EventBase(Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """What every event has."""

    seq: int = 0
    at: int = 0
    session_id: str = ""
    turn_id: str = ""
    run: int = 0
    attempt: int = 0
    step: int = 0

    @property
    def terminal(self) -> bool:
        """True for the one event that ends a run."""
        return isinstance(self, TurnFinished | TurnFailedEvent | TurnCancelledEvent)

    def to_json(self) -> bytes:
        return encode(self)

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.__struct_config__.tag, **msgspec.to_builtins(self)}


class TurnQueued(EventBase, tag="turn_queued"):
    """A turn was accepted; ``position`` 0 is the head of the inbox."""

    type: ClassVar[Literal["turn_queued"]] = "turn_queued"
    position: int = 0


class TurnStarted(EventBase, tag="turn_started"):
    type: ClassVar[Literal["turn_started"]] = "turn_started"
    worker: str = ""


class TextDelta(EventBase, tag="text_delta"):
    type: ClassVar[Literal["text_delta"]] = "text_delta"
    text: str = ""


class ReasoningDelta(EventBase, tag="reasoning_delta"):
    type: ClassVar[Literal["reasoning_delta"]] = "reasoning_delta"
    text: str = ""


class RefusalDelta(EventBase, tag="refusal_delta"):
    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"
    text: str = ""


class ToolCallDelta(EventBase, tag="tool_call_delta"):
    """A piece of the arguments' JSON text; ``name`` comes with the first piece."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class ToolCallEvent(EventBase, tag="tool_call"):
    """A whole tool call, about to be run."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    call_id: str = ""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


class ToolResultEvent(EventBase, tag="tool_result"):
    """The result, shortened to what a screen needs."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str = ""
    name: str = ""
    result: str = ""
    is_error: bool = False


class ToolProgress(EventBase, tag="tool_progress"):
    """Reserved: nothing publishes it yet."""

    type: ClassVar[Literal["tool_progress"]] = "tool_progress"
    call_id: str = ""
    name: str = ""
    text: str = ""


class ItemEvent(EventBase, tag="item"):
    """A provider's own item, whole."""

    type: ClassVar[Literal["item"]] = "item"
    provider: str = ""
    item: dict[str, Any] = field(default_factory=dict)


class StepFinished(EventBase, tag="step_finished"):
    type: ClassVar[Literal["step_finished"]] = "step_finished"
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = "end"
    model: str = ""


class TurnRetrying(EventBase, tag="turn_retrying"):
    """The step starts again: drop the deltas of ``step`` that came before. ``retry_at`` is server ms."""

    type: ClassVar[Literal["turn_retrying"]] = "turn_retrying"
    reason: str = ""
    code: str = ""
    retry_at: int = 0


class TurnSuspended(EventBase, tag="turn_suspended"):
    """Reserved: nothing publishes it yet."""

    type: ClassVar[Literal["turn_suspended"]] = "turn_suspended"
    waits_for: Literal["approval", "tool"] = "approval"
    calls: list[ToolCall] = field(default_factory=list)


class TurnResumed(EventBase, tag="turn_resumed"):
    """Reserved: nothing publishes it yet."""

    type: ClassVar[Literal["turn_resumed"]] = "turn_resumed"
    call_id: str = ""
    decision: str = ""
    by: str = ""


class TurnSteered(EventBase, tag="turn_steered"):
    """Reserved: nothing publishes it yet."""

    type: ClassVar[Literal["turn_steered"]] = "turn_steered"
    message: Message | None = None


class Handoff(EventBase, tag="handoff"):
    """Reserved: nothing publishes it yet."""

    type: ClassVar[Literal["handoff"]] = "handoff"
    source: str = ""
    target: str = ""


class ChildEvent(EventBase, tag="child_event"):
    """Reserved: nothing publishes it yet."""

    type: ClassVar[Literal["child_event"]] = "child_event"
    child_id: str = ""
    event: dict[str, Any] = field(default_factory=dict)


class TurnFinished(EventBase, tag="turn_finished"):
    type: ClassVar[Literal["turn_finished"]] = "turn_finished"
    response: Response | None = None


class TurnFailedEvent(EventBase, tag="turn_failed"):
    type: ClassVar[Literal["turn_failed"]] = "turn_failed"
    code: str = ""
    message: str = ""


class TurnCancelledEvent(EventBase, tag="turn_cancelled"):
    """``kept`` is the number of messages that stay in the history."""

    type: ClassVar[Literal["turn_cancelled"]] = "turn_cancelled"
    reason: str = ""
    kept: int = 0


class MessageAdded(EventBase, tag="message_added"):
    type: ClassVar[Literal["message_added"]] = "message_added"
    message: Message | None = None


class HistoryCleared(EventBase, tag="history_cleared"):
    type: ClassVar[Literal["history_cleared"]] = "history_cleared"


class VariablesChanged(EventBase, tag="variables_changed"):
    type: ClassVar[Literal["variables_changed"]] = "variables_changed"
    variables: dict[str, Any] = field(default_factory=dict)


class SessionForked(EventBase, tag="session_forked"):
    type: ClassVar[Literal["session_forked"]] = "session_forked"
    fork_id: str = ""


class SessionClosed(EventBase, tag="session_closed"):
    type: ClassVar[Literal["session_closed"]] = "session_closed"
    reason: str = ""


class UnknownEvent(EventBase, tag="unknown"):
    """An event of a newer release; ``fields`` holds it whole."""

    type: ClassVar[Literal["unknown"]] = "unknown"
    fields: dict[str, Any] = field(default_factory=dict)


KnownEvent: TypeAlias = (
    TurnQueued
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallDelta
    | ToolCallEvent
    | ToolResultEvent
    | ToolProgress
    | ItemEvent
    | StepFinished
    | TurnRetrying
    | TurnSuspended
    | TurnResumed
    | TurnSteered
    | Handoff
    | ChildEvent
    | TurnFinished
    | TurnFailedEvent
    | TurnCancelledEvent
    | MessageAdded
    | HistoryCleared
    | VariablesChanged
    | SessionForked
    | SessionClosed
)

# One published fact about a session. Where ``event.type == "text_delta"``, a type checker knows of ``event.text``.
Event: TypeAlias = KnownEvent | UnknownEvent

_decoder = msgspec.json.Decoder(KnownEvent)


def decode_event(data: bytes | str) -> Event:
    """Read an event as published. A type of a newer release becomes ``UnknownEvent``. Raises ``CorruptRecord``."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        return _decode_newer_event(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"An event is not readable: {exc}.") from exc


def _decode_newer_event(data: bytes | str) -> Event:
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        known = {name: fields[name] for name in ("seq", "at", "session_id", "turn_id", "run", "attempt", "step")
                 if name in fields}  # fmt: skip
        return msgspec.convert({"type": "unknown", **known, "fields": fields}, UnknownEvent)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"An event is not readable: {exc}.") from exc
