"""The entries of a turn's journal, and the steps that they form."""

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
    """A tool call with its result. ``variables`` are the session's variables after the call if it changed them."""

    step: int
    result: ToolResult
    variables: dict[str, Any] | None = None


JournalEntry = StepEntry | ToolStarted | ToolFinished

_entry_decoder: msgspec.json.Decoder[JournalEntry] = msgspec.json.Decoder(JournalEntry)


def encode_entry(entry: JournalEntry) -> bytes:
    """Return the stored form of a journal entry."""
    return msgspec.json.encode(entry)


def decode_entry(data: bytes) -> JournalEntry:
    """Read a stored journal entry. Raises ``CorruptRecord``."""
    try:
        return _entry_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"A journal entry cannot be read: {exc}.") from exc


class Step:
    """A finished model call, with the results of its tool calls so far."""

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
    """Return the messages of a journal's finished steps. A step is finished when all its tool calls have results."""
    messages: list[Message] = []
    for step in steps_of(entries):
        if step.open_calls:
            break
        messages += step.messages
    return messages


def usage_of(entries: Iterable[JournalEntry]) -> Usage:
    """Return the total usage of a journal's model calls."""
    return sum((entry.usage for entry in entries if isinstance(entry, StepEntry)), Usage())


def plain_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the variables as JSON types. Raises ``LimitReached``, and ``TurnFailed`` if they have no JSON form."""
    try:
        encoded = msgspec.json.encode(variables)
        found = msgspec.json.decode(encoded, type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as exc:
        raise TurnFailed(f"A tool set a variable that has no JSON form: {exc}.", code="variables") from exc
    check_size("variables_bytes", len(encoded), "The session's variables in bytes")
    return found


def variables_of(entries: Iterable[JournalEntry]) -> dict[str, Any] | None:
    """Return the session's variables after the finished tool calls of a journal, or None if none changed them."""
    changed = [entry.variables for entry in entries if isinstance(entry, ToolFinished)]
    return next((variables for variables in reversed(changed) if variables is not None), None)


def steps_of(entries: Iterable[JournalEntry]) -> list[Step]:
    """Return the steps of the entries. Raises ``CorruptRecord`` for a tool call without its step."""
    steps: list[Step] = []
    for entry in entries:
        if isinstance(entry, StepEntry):
            steps.append(Step(entry))
        elif not steps or steps[-1].entry.step != entry.step:
            raise CorruptRecord(f"The journal has a tool call of step {entry.step}, but not that step.")
        elif isinstance(entry, ToolStarted):
            steps[-1].started.add(entry.call_id)
        else:
            steps[-1].results[entry.result.call_id] = entry.result
    return steps


def with_distinct_calls(message: Message) -> Message:
    """Return the message with a unique id for each tool call. Some servers send no ids, or the same id twice."""
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
