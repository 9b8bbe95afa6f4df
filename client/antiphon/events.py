"""The published facts of a session, one struct a type.

``seq`` is dense over the whole session (1, 2, 3, …) and ``at`` is the server's time in ms; both are put in front
by the script that logs and publishes the event, so they are absent from what a worker encodes. Readers ignore
fields and types that they do not know.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord
from antiphon.model import Message, Response, StopReason, ToolCall, Usage, encode

__all__ = [
    "ChildEvent",
    "Event",
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


class Event(Struct, tag_field="type", tag="event", omit_defaults=True, kw_only=True):
    """One published fact about a session."""

    seq: int = 0
    at: int = 0
    session_id: str = ""
    turn_id: str = ""
    run: int = 0
    attempt: int = 0
    step: int = 0

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def terminal(self) -> bool:
        """True for the one event that ends a run."""
        return isinstance(self, TurnFinished | TurnFailedEvent | TurnCancelledEvent)

    def to_json(self) -> bytes:
        return encode(self)

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, **msgspec.to_builtins(self)}


class TurnQueued(Event, tag="turn_queued"):
    """A turn was accepted; ``position`` 0 is the head of the inbox."""

    position: int = 0


class TurnStarted(Event, tag="turn_started"):
    worker: str = ""


class TextDelta(Event, tag="text_delta"):
    text: str = ""


class ReasoningDelta(Event, tag="reasoning_delta"):
    text: str = ""


class RefusalDelta(Event, tag="refusal_delta"):
    text: str = ""


class ToolCallDelta(Event, tag="tool_call_delta"):
    """A piece of the arguments' JSON text; ``name`` comes with the first piece."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""


class ToolCallEvent(Event, tag="tool_call"):
    """A whole tool call, about to be run."""

    call_id: str = ""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


class ToolResultEvent(Event, tag="tool_result"):
    """The result, shortened to what a screen needs."""

    call_id: str = ""
    name: str = ""
    result: str = ""
    is_error: bool = False


class ToolProgress(Event, tag="tool_progress"):
    """Reserved: nothing publishes it yet."""

    call_id: str = ""
    name: str = ""
    text: str = ""


class ItemEvent(Event, tag="item"):
    """A provider's own item, whole."""

    provider: str = ""
    item: dict[str, Any] = field(default_factory=dict)


class StepFinished(Event, tag="step_finished"):
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = "end"
    model: str = ""


class TurnRetrying(Event, tag="turn_retrying"):
    """The step starts again: drop the deltas of ``step`` that came before. ``retry_at`` is server ms."""

    reason: str = ""
    code: str = ""
    retry_at: int = 0


class TurnSuspended(Event, tag="turn_suspended"):
    """Reserved: nothing publishes it yet."""

    waits_for: Literal["approval", "tool"] = "approval"
    calls: list[ToolCall] = field(default_factory=list)


class TurnResumed(Event, tag="turn_resumed"):
    """Reserved: nothing publishes it yet."""

    call_id: str = ""
    decision: str = ""
    by: str = ""


class TurnSteered(Event, tag="turn_steered"):
    """Reserved: nothing publishes it yet."""

    message: Message | None = None


class Handoff(Event, tag="handoff"):
    """Reserved: nothing publishes it yet."""

    source: str = ""
    target: str = ""


class ChildEvent(Event, tag="child_event"):
    """Reserved: nothing publishes it yet."""

    child_id: str = ""
    event: dict[str, Any] = field(default_factory=dict)


class TurnFinished(Event, tag="turn_finished"):
    response: Response | None = None


class TurnFailedEvent(Event, tag="turn_failed"):
    code: str = ""
    message: str = ""


class TurnCancelledEvent(Event, tag="turn_cancelled"):
    """``kept`` is the number of messages that stay in the history."""

    reason: str = ""
    kept: int = 0


class MessageAdded(Event, tag="message_added"):
    message: Message | None = None


class HistoryCleared(Event, tag="history_cleared"):
    pass


class VariablesChanged(Event, tag="variables_changed"):
    variables: dict[str, Any] = field(default_factory=dict)


class SessionForked(Event, tag="session_forked"):
    fork_id: str = ""


class SessionClosed(Event, tag="session_closed"):
    reason: str = ""


class UnknownEvent(Event, tag="unknown"):
    """An event of a newer release; ``fields`` holds it whole."""

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

_decoder = msgspec.json.Decoder(KnownEvent)


def decode_event(data: bytes | str) -> Event:
    """Read an event as published. A type of a newer release becomes ``UnknownEvent``. Raises ``CorruptRecord``."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        return _decode_newer_event(data)
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise CorruptRecord(f"An event is not readable: {exc}.") from exc


def _decode_newer_event(data: bytes | str) -> Event:
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        known = {name: fields[name] for name in ("seq", "at", "session_id", "turn_id", "run", "attempt", "step")
                 if name in fields}  # fmt: skip
        return msgspec.convert({"type": "unknown", **known, "fields": fields}, UnknownEvent)
    except msgspec.ValidationError as exc:
        raise CorruptRecord(f"An event is not readable: {exc}.") from exc
