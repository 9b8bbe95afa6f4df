"""What a turn has achieved so far: the entries of its journal, and the steps that they make up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord, TurnFailed
from antiphon.input.limits import check_size
from antiphon.model import Message, StopReason, ToolCall, ToolResult, Usage

__all__ = [
    "JournalEntry",
    "Step",
    "StepEntry",
    "ToolFinished",
    "ToolStarted",
    "decode_entry",
    "encode_entry",
    "messages_of",
    "plain_variables",
    "steps_of",
    "usage_of",
    "variables_of",
    "with_distinct_calls",
]


class StepEntry(Struct, tag="step", tag_field="type", omit_defaults=True):
    """A finished model call."""

    step: int
    message: Message
    usage: Usage
    stop_reason: StopReason
    raw_stop_reason: str | None
    model: str


class ToolStarted(Struct, tag="tool_started", tag_field="type"):
    """A call of an ``at_most_once`` tool, written before it starts."""

    step: int
    call_id: str


class ToolFinished(Struct, tag="tool_finished", tag_field="type", omit_defaults=True):
    """A tool call that has its result. ``variables`` are the session's after it, where it changed them."""

    step: int
    result: ToolResult
    variables: dict[str, Any] | None = None


JournalEntry = StepEntry | ToolStarted | ToolFinished

_entry_decoder: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(JournalEntry)


def encode_entry(entry: JournalEntry) -> bytes:
    """The stored form of a journal entry."""
    return msgspec.json.encode(entry)


def decode_entry(data: bytes) -> JournalEntry:
    """Read a stored journal entry. Raises ``CorruptRecord``."""
    try:
        return _entry_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"A journal entry is not readable: {exc}.") from exc


class Step:
    """A finished model call and what is known of its tool calls."""

    __slots__ = ("entry", "results", "started")

    def __init__(self, entry: StepEntry) -> None:
        self.entry = entry
        self.results: dict[str, ToolResult] = {}
        self.started: set[str] = set()

    @property
    def open_calls(self) -> list[ToolCall]:
        return [call for call in self.entry.message.tool_calls if call.call_id not in self.results]

    @property
    def messages(self) -> list[Message]:
        calls = self.entry.message.tool_calls
        if not calls:
            return [self.entry.message]
        return [self.entry.message, Message.tool([self.results[call.call_id] for call in calls])]


def messages_of(entries: Iterable[JournalEntry]) -> list[Message]:
    """The finished steps of a journal as history; a step counts when all its tool calls have results."""
    messages: list[Message] = []
    for step in steps_of(entries):
        if step.open_calls:
            break
        messages += step.messages
    return messages


def usage_of(entries: Iterable[JournalEntry]) -> Usage:
    """What the model calls of a journal have used."""
    return sum((entry.usage for entry in entries if isinstance(entry, StepEntry)), Usage())


def plain_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the variables as JSON says them. Raises ``TurnFailed`` where it cannot, ``LimitReached``."""
    try:
        encoded = msgspec.json.encode(variables)
        found = msgspec.json.decode(encoded, type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as exc:
        raise TurnFailed(f"A tool set a variable that JSON cannot say: {exc}.", code="variables") from exc
    check_size("variables_bytes", len(encoded), "The session's variables in bytes")
    return found


def variables_of(entries: Iterable[JournalEntry]) -> dict[str, Any] | None:
    """The session's variables as the finished tool calls of a journal left them; None where none changed them."""
    changed = [entry.variables for entry in entries if isinstance(entry, ToolFinished)]
    return next((variables for variables in reversed(changed) if variables is not None), None)


def steps_of(entries: Iterable[JournalEntry]) -> list[Step]:
    """The steps that the entries tell of. Raises ``CorruptRecord`` for a tool call without its step."""
    steps: list[Step] = []
    for entry in entries:
        if isinstance(entry, StepEntry):
            steps.append(Step(entry))
        elif not steps or steps[-1].entry.step != entry.step:
            raise CorruptRecord(f"The journal holds a tool call of step {entry.step} without that step.")
        elif isinstance(entry, ToolStarted):
            steps[-1].started.add(entry.call_id)
        else:
            steps[-1].results[entry.result.call_id] = entry.result
    return steps


def with_distinct_calls(message: Message) -> Message:
    """The message with a call id of its own for each call: some servers send none, or the same one twice."""
    calls = message.tool_calls
    if all(call.call_id for call in calls) and len({call.call_id for call in calls}) == len(calls):
        return message
    taken = {call.call_id for call in calls} | {""}
    seen: set[str] = {""}
    parts = list(message.parts)
    for i, part in enumerate(parts):
        if not isinstance(part, ToolCall):
            continue
        call_id, n = part.call_id, 1
        while call_id in seen:
            n += 1
            candidate = f"{part.call_id or 'call'}_{n}"
            call_id = candidate if candidate not in taken else call_id
        seen.add(call_id)
        parts[i] = msgspec.structs.replace(part, call_id=call_id)
    return msgspec.structs.replace(message, parts=parts)
