"""The published facts of a session, one struct per type.

``seq`` is dense over the whole session (1, 2, 3, …) and ``at`` is the server's time in ms. The script that logs and
publishes an event prepends both, so they are absent from what a worker encodes. Readers ignore unknown fields and
types.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.errors import AgentError, CorruptRecord, InvalidOutput, LimitReached, user_message
from antiphon.model import (
    Decision,
    Message,
    OpenCall,
    Response,
    ServiceAnswer,
    StopReason,
    Usage,
    Wait,
    encode,
)
from antiphon.model.parts import NO_ARGUMENTS, NO_TEXT, Arguments, WrittenText

__all__ = [
    "AgentChanged", "BudgetReachedEvent", "ChildEvent", "ContextReduced", "CustomEvent", "Event", "EventBase",
    "EventReceived", "Handoff", "Heartbeat",
    "HistoryCleared", "HistoryRewound", "ItemEvent", "MessageAdded", "MessageEvent", "ModelChanged", "OutputDelta",
    "ReasoningDelta", "RecallFailed", "RefusalDelta", "SessionClosed", "SessionForked", "SessionTitled", "StepFinished",
    "StepRecorded", "TextDelta", "ToolCallDelta", "ToolCallEvent", "ToolProgress", "ToolResultEvent",
    "TurnCancelledEvent", "TurnFailedEvent", "TurnFinished", "TurnQueued", "TurnResumed", "TurnRetrying",
    "TurnSleeping", "TurnStarted", "TurnSteered", "TurnSuspended", "UnknownEvent", "VariablesChanged", "decode_event",
]  # fmt: skip


class EventBase(Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """The fields of every event. ``tenant`` is the turn's, if events of many sessions are read, as by webhooks."""

    seq: int = 0
    at: int = 0
    session_id: str = ""
    turn_id: str = ""
    run: int = 0
    attempt: int = 0
    step: int = 0
    tenant: str | None = None

    @property
    def terminal(self) -> bool:
        """True for the one event that ends a run."""
        return isinstance(self, TurnFinished | TurnFailedEvent | TurnCancelledEvent)

    def to_json(self) -> bytes:
        return encode(self)

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.__struct_config__.tag, **msgspec.to_builtins(self)}


class TurnQueued(EventBase, tag="turn_queued"):
    """A turn was accepted; ``position`` 0 is the head of the inbox.

    ``input`` is the input of the turn. If its JSON is longer than 4 KiB, it is left out and ``input_omitted`` is True:
    read the turn.
    """

    type: ClassVar[Literal["turn_queued"]] = "turn_queued"
    position: int = 0
    input: list[Message] = field(default_factory=list)
    input_omitted: bool = False


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


class OutputDelta(EventBase, tag="output_delta"):
    """The whole part of a structured answer that has arrived so far, as plain JSON data."""

    type: ClassVar[Literal["output_delta"]] = "output_delta"
    output: Any = None


class ToolCallDelta(EventBase, tag="tool_call_delta"):
    """A piece of the arguments' JSON text; ``name`` comes with the first piece."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    call_id: str = ""
    name: str = ""
    arguments: WrittenText = NO_TEXT


class ToolCallEvent(EventBase, tag="tool_call"):
    """A complete tool call, about to run."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    call_id: str = ""
    name: str = ""
    arguments: Arguments = NO_ARGUMENTS


class ToolResultEvent(EventBase, tag="tool_result"):
    """The result, shortened for display."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str = ""
    name: str = ""
    result: WrittenText = NO_TEXT
    is_error: bool = False


class ToolProgress(EventBase, tag="tool_progress"):
    """Progress published with ``context.progress``: text to show, and how much is done, from 0 to 1 or None."""

    type: ClassVar[Literal["tool_progress"]] = "tool_progress"
    call_id: str = ""
    name: str = ""
    text: str = ""
    fraction: float | None = None


class CustomEvent(EventBase, tag="custom"):
    """An application's own event, which a tool published with ``context.emit``."""

    type: ClassVar[Literal["custom"]] = "custom"
    call_id: str = ""
    name: str = ""
    data: Any = None


class ItemEvent(EventBase, tag="item"):
    """A complete item in the provider's own form."""

    type: ClassVar[Literal["item"]] = "item"
    provider: str = ""
    item: dict[str, Any] = field(default_factory=dict)


class StepFinished(EventBase, tag="step_finished"):
    """``rejected`` is why the answer does not match its schema: drop its deltas, the next step answers again.

    ``raw_stop_reason`` is the model service's own term, if it differs from ``stop_reason``.
    """

    type: ClassVar[Literal["step_finished"]] = "step_finished"
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = "end"
    raw_stop_reason: str = ""
    model: str = ""
    rejected: str = ""


class TurnRetrying(EventBase, tag="turn_retrying"):
    """The step starts again: drop the earlier deltas of ``step``. ``retry_at`` is in ms of the server's time.

    ``service`` is what the model service returned with its error, if anything.
    """

    type: ClassVar[Literal["turn_retrying"]] = "turn_retrying"
    reason: str = ""
    code: str = ""
    retry_at: int = 0
    service: ServiceAnswer | None = None


class ModelChanged(EventBase, tag="model_changed"):
    """A fallback answers ``step`` and continues the turn. ``source`` and ``target`` are ``provider/model``, and
    ``code`` is that of the error after which ``source`` was given up. A ``turn_retrying`` of the step precedes it.
    """

    type: ClassVar[Literal["model_changed"]] = "model_changed"
    source: str = ""
    target: str = ""
    code: str = ""


class ContextReduced(EventBase, tag="context_reduced"):
    """The model rejected ``step``'s request as too long. It is sent again without ``messages`` of the history, or with
    ``results`` of tools shortened. ``limit`` is how many tokens the model accepts, or 0 if unknown.
    """

    type: ClassVar[Literal["context_reduced"]] = "context_reduced"
    limit: int = 0
    messages: int = 0
    results: int = 0


class BudgetReachedEvent(EventBase, tag="budget_reached"):
    """A budget is used up, so that the turn's next model call does not start. ``action`` is what happens to the turn:
    ``reject``, ``suspend`` or ``fallback``. ``limit`` and ``used`` are in dollars or tokens (``unit``), for the day,
    month, session or turn (``per``) of this ``scope``.
    """

    type: ClassVar[Literal["budget_reached"]] = "budget_reached"
    scope: str = ""
    per: str = ""
    unit: str = ""
    limit: float = 0
    used: float = 0
    action: str = ""


class RecallFailed(EventBase, tag="recall_failed"):
    """A memory did not answer, and the turn continues without it. ``error`` is the type of its store's exception."""

    type: ClassVar[Literal["recall_failed"]] = "recall_failed"
    memory: str = ""
    error: str = ""


class TurnSuspended(EventBase, tag="turn_suspended"):
    """The turn waits, without a worker, for decisions of people or the client about these calls.

    It also waits for the sleeps and events in ``waits``, which belong to other calls of the same step.
    """

    type: ClassVar[Literal["turn_suspended"]] = "turn_suspended"
    calls: list[OpenCall] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)


class TurnSleeping(EventBase, tag="turn_sleeping"):
    """The turn waits, without a worker, for these sleeps to end or events to arrive. ``turn_resumed`` follows."""

    type: ClassVar[Literal["turn_sleeping"]] = "turn_sleeping"
    waits: list[Wait] = field(default_factory=list)


class StepRecorded(EventBase, tag="step_recorded"):
    """A durable step of a tool or turn function has a result, or has failed (``is_error``): it never runs again.

    ``name`` is the step's name within its call, such as ``charge#2``. The result itself is not published.
    """

    type: ClassVar[Literal["step_recorded"]] = "step_recorded"
    call_id: str = ""
    name: str = ""
    is_error: bool = False


class EventReceived(EventBase, tag="event_received"):
    """A call of the turn that waits for an event has received it. The data is not published.

    ``wait_id`` is the ``id`` of the wait in ``turn_sleeping``, ``event_name`` the event it waits for, and
    ``event_id`` is the same for all calls that receive this event.
    """

    type: ClassVar[Literal["event_received"]] = "event_received"
    wait_id: str = ""
    event_name: str = ""
    event_id: str = ""


class AgentChanged(EventBase, tag="agent_changed"):
    """The session's turns run on another revision of ``agent`` from now on, or the App's router has routed this turn.

    ``reason`` is ``revision_unavailable`` if no worker had the ``previous`` revision for as long as the agent's
    ``rollout`` waits, and ``promoted`` or ``rolled_back`` if an operator decided so. Without a ``revision``, the router
    chose for this turn: it runs with this ``agent``, and ``model`` and ``queue`` are '' if unchanged.
    """

    type: ClassVar[Literal["agent_changed"]] = "agent_changed"
    agent: str = ""
    revision: str = ""
    previous: str = ""
    reason: str = ""
    model: str = ""
    queue: str = ""


class TurnResumed(EventBase, tag="turn_resumed"):
    """All pending tool calls of the turn are decided: any worker may continue it."""

    type: ClassVar[Literal["turn_resumed"]] = "turn_resumed"
    decisions: list[Decision] = field(default_factory=list)


class TurnSteered(EventBase, tag="turn_steered"):
    """The turn took the input of another one, ``steered_id``, into its model call ``step``.

    ``input`` is that input. If its JSON is longer than 4 KiB, it is left out and ``input_omitted`` is True.
    """

    type: ClassVar[Literal["turn_steered"]] = "turn_steered"
    steered_id: str = ""
    input: list[Message] = field(default_factory=list)
    input_omitted: bool = False


class Handoff(EventBase, tag="handoff"):
    """The agent ``source`` has passed the turn to ``target``, which continues it. ``reason`` is the model's."""

    type: ClassVar[Literal["handoff"]] = "handoff"
    source: str = ""
    target: str = ""
    reason: str = ""


class ChildEvent(EventBase, tag="child_event"):
    """A child turn (``child_id``) of the tool call, which ``agent`` runs, has published its own ``event``.

    ``event`` has the ``session_id`` and the ``seq`` of the child. A ``turn_queued`` has no input. ``depth`` is 1
    below a turn without a parent, 2 below that child and so on; ``parent_id`` is the turn directly above the child.
    """

    type: ClassVar[Literal["child_event"]] = "child_event"
    child_id: str = ""
    call_id: str = ""
    agent: str = ""
    depth: int = 0
    parent_id: str = ""
    event: dict[str, Any] = field(default_factory=dict)


class TurnFinished(EventBase, tag="turn_finished"):
    """The turn has answered. ``steered_into`` is the turn that took its input, if any: the answer is that turn's."""

    type: ClassVar[Literal["turn_finished"]] = "turn_finished"
    response: Response | None = None
    steered_into: str = ""


class TurnFailedEvent(EventBase, tag="turn_failed"):
    """``raw`` is the answer that did not match its schema, ``service`` what the model service returned with its error,
    and ``limit`` the name of the limit that the turn reached, if that made it fail. ``message`` is for operators,
    ``user_message`` for end users.
    """

    type: ClassVar[Literal["turn_failed"]] = "turn_failed"
    code: str = ""
    message: str = ""
    raw: str = ""
    service: ServiceAnswer | None = None
    limit: str = ""
    user_message: str = ""

    def __post_init__(self) -> None:
        if self.code and not self.user_message:
            self.user_message = user_message(self.code)

    @classmethod
    def of(cls, error: AgentError) -> TurnFailedEvent:
        """Return the event of a turn that failed with this error."""
        raw = error.raw if isinstance(error, InvalidOutput) else ""
        limit = error.limit if isinstance(error, LimitReached) else ""
        return cls(
            code=str(error.code), message=error.message, raw=raw, service=ServiceAnswer.of(error), limit=limit
        )


class TurnCancelledEvent(EventBase, tag="turn_cancelled"):
    """``kept`` is the number of messages that stay in the history, ``keep`` what the cancellation asked to keep."""

    type: ClassVar[Literal["turn_cancelled"]] = "turn_cancelled"
    reason: str = ""
    kept: int = 0
    keep: Literal["partial", "steps", "nothing"] = "steps"


class MessageEvent(EventBase, tag="message"):
    """Messages of the history, in place of their events, which are no longer kept: those of a turn, or those added
    outside of turns. Only a reader with an old cursor receives it; it is never published.

    It replaces everything that the reader has of the turn. ``seq`` is the cursor to continue from.
    """

    type: ClassVar[Literal["message"]] = "message"
    messages: list[Message] = field(default_factory=list)


class MessageAdded(EventBase, tag="message_added"):
    type: ClassVar[Literal["message_added"]] = "message_added"
    message: Message | None = None


class HistoryCleared(EventBase, tag="history_cleared"):
    type: ClassVar[Literal["history_cleared"]] = "history_cleared"


class HistoryRewound(EventBase, tag="history_rewound"):
    """The history was cut: its first ``kept`` messages stay, and ``message_id`` is the id of the last one of these."""

    type: ClassVar[Literal["history_rewound"]] = "history_rewound"
    message_id: str = ""
    kept: int = 0


class VariablesChanged(EventBase, tag="variables_changed"):
    type: ClassVar[Literal["variables_changed"]] = "variables_changed"
    variables: dict[str, Any] = field(default_factory=dict)


class SessionForked(EventBase, tag="session_forked"):
    type: ClassVar[Literal["session_forked"]] = "session_forked"
    fork_id: str = ""


class SessionTitled(EventBase, tag="session_titled"):
    """A worker has titled the session after its first finished turn. ``usage`` is what the model used for that."""

    type: ClassVar[Literal["session_titled"]] = "session_titled"
    title: str = ""
    usage: Usage = field(default_factory=Usage)


class SessionClosed(EventBase, tag="session_closed"):
    type: ClassVar[Literal["session_closed"]] = "session_closed"
    reason: str = ""


class Heartbeat(EventBase, tag="heartbeat"):
    """No event came for the ``heartbeat`` of an iteration. It is never published; ``seq`` is the reader's cursor."""

    type: ClassVar[Literal["heartbeat"]] = "heartbeat"


class UnknownEvent(EventBase, tag="unknown"):
    """An event of a newer release; ``fields`` contains all of it."""

    type: ClassVar[Literal["unknown"]] = "unknown"
    fields: dict[str, Any] = field(default_factory=dict)


KnownEvent: TypeAlias = (
    TurnQueued
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | OutputDelta
    | ToolCallDelta
    | ToolCallEvent
    | ToolResultEvent
    | ToolProgress
    | CustomEvent
    | ItemEvent
    | StepFinished
    | TurnRetrying
    | ModelChanged
    | BudgetReachedEvent
    | ContextReduced
    | RecallFailed
    | TurnSuspended
    | TurnSleeping
    | StepRecorded
    | EventReceived
    | AgentChanged
    | TurnResumed
    | TurnSteered
    | Handoff
    | ChildEvent
    | TurnFinished
    | TurnFailedEvent
    | TurnCancelledEvent
    | MessageEvent
    | MessageAdded
    | HistoryCleared
    | HistoryRewound
    | VariablesChanged
    | SessionForked
    | SessionTitled
    | SessionClosed
)

# One published fact about a session. After ``event.type == "text_delta"``, type checkers know ``event.text``.
Event: TypeAlias = KnownEvent | UnknownEvent | Heartbeat

_decoder = msgspec.json.Decoder(KnownEvent)


def decode_event(data: bytes | str) -> Event:
    """Decode a published event. A type of a newer release becomes ``UnknownEvent``. Raises ``CorruptRecord``."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        return _decode_newer_event(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"Cannot decode event: {exc}.") from exc


def _decode_newer_event(data: bytes | str) -> Event:
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        known = {name: fields[name] for name in ("seq", "at", "session_id", "turn_id", "run", "attempt", "step")
                 if name in fields}  # fmt: skip
        return msgspec.convert({"type": "unknown", **known, "fields": fields}, UnknownEvent)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"Cannot decode event: {exc}.") from exc
