"""Checks the guarantees G2 (history) and G5 (events) on the recorded messages and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from antiphon.events import Event, TextDelta, TurnFinished
from antiphon.model import Message, Refusal
from antiphon_worker.playground.demo.record import SessionRecord

Expected = Callable[[Sequence[tuple[str, str]]], str]
"""Returns the expected answer of our own model to a conversation that ends with the user's message."""


def check_history(record: SessionRecord, expected: Expected | None = None) -> list[str]:
    """Check G2: the history has all user messages in order, each with exactly one complete answer.

    ``expected`` also checks that the model received the whole history before each turn, and nothing else.
    """
    return [f"{record.conversation.name}: {problem}." for problem in _history_problems(record, expected)]


def check_events(record: SessionRecord) -> list[str]:
    """Check G5: events have no gaps in seq, are the same for every subscriber, and each run has one terminal event."""
    return [f"{record.conversation.name}: {problem}." for problem in _event_problems(record)]


def _history_problems(record: SessionRecord, expected: Expected | None) -> Iterator[str]:
    texts = record.conversation.turns
    roles = [message.role for message in record.messages]
    if roles != ["user", "assistant"] * len(texts):
        yield f"the history has {_count(roles)} instead of {len(texts)} questions with one answer each"
        return
    said: list[tuple[str, str]] = []
    pairs = zip(record.messages[::2], record.messages[1::2], strict=True)
    for number, (text, (question, answer)) in enumerate(zip(texts, pairs, strict=True), 1):
        told = _told(answer)
        said.append(("user", question.text))
        if question.text != text:
            yield f"the question of turn {number} is not the one that was asked"
        if not told:
            yield f"turn {number} has an empty answer"
        if expected is not None and told != expected(said):
            yield f"the answer to turn {number} does not belong to the whole history"
        if told != _streamed(record.live.events, answer.turn_id):
            yield f"the answer to turn {number} differs from the sum of its deltas"
        said.append(("assistant", told))


def _event_problems(record: SessionRecord) -> Iterator[str]:
    events, asked = record.live.events, len(record.conversation.turns)
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        yield "the events are not numbered 1, 2, 3, … without a gap"
    for kind, follower in (("joined late", record.late), ("reconnected", record.reconnected)):
        if follower.events != events:
            yield f"a subscriber that {kind} received other events ({len(follower.events)} for {len(events)})"
    runs = {(event.turn_id, event.run) for event in events}
    ends = Counter((event.turn_id, event.run) for event in events if event.terminal)
    if any(ends[run] != 1 for run in runs):
        yield "a run has no terminal event, or more than one"
    if len(runs) != asked:
        yield f"{asked} turns had {len(runs)} runs"


def _told(answer: Message) -> str:
    return answer.text or "".join(part.text for part in answer.parts if isinstance(part, Refusal))


def _streamed(events: Sequence[Event], turn_id: str | None) -> str:
    """Return the pieces of text of the attempt that finished, in order."""
    own = [event for event in events if event.turn_id == turn_id]
    last = max((event.attempt for event in own), default=0)
    finished = any(isinstance(event, TurnFinished) for event in own)
    pieces = [event.text for event in own if isinstance(event, TextDelta) and event.attempt == last]
    return "".join(pieces) if finished else ""


def _count(roles: Sequence[str]) -> str:
    counted = Counter(roles)
    return ", ".join(f"{number} of {role}" for role, number in counted.items()) or "no messages"
