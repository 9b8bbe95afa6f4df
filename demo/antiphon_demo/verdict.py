"""The verdict of the demo: it checks G2 (history) and G5 (events) on the record, and reports the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from antiphon.events import Event, TextDelta, TurnCancelledEvent, TurnFailedEvent, TurnFinished
from antiphon.model import Message, Refusal
from antiphon_demo.accident import Accident
from antiphon_demo.play import Performance
from antiphon_demo.record import SessionRecord

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


def figure_lines(records: Sequence[SessionRecord], accident: Accident | None, seconds: float) -> list[str]:
    """Return the table, one name and number per line."""
    turns = [turn for record in records for turn in record.turns]
    first = [(turn.first_delta - turn.submitted) * 1000 for turn in turns if turn.first_delta is not None]
    deltas = sum(turn.deltas for turn in turns)
    rows: list[tuple[str, str]] = [
        ("sessions", f"{len(records):,}"),
        ("turns", f"{len(turns):,}"),
        ("deltas", f"{deltas:,}"),
        ("events", f"{sum(len(record.live.events) for record in records):,}"),
    ]
    if first:
        rows += [
            ("first delta p50", f"{percentile(first, 50):,.1f} ms"),
            ("first delta p99", f"{percentile(first, 99):,.1f} ms"),
        ]
    if accident is not None:
        rows += [
            ("answers cut", f"{len(accident.cut):,}"),
            ("recovery", f"{max(accident.recovery_ms):,.0f} ms"),
        ]
    rows.append(("time", f"{seconds:,.1f} s"))
    return [f"  {name:<16}{value:>12}" for name, value in rows]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that this percentage of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


MOST_SHOWN = 8


def judge(performance: Performance, *, expected: Expected | None, kill: bool) -> tuple[list[str], bool]:
    """Return the lines to print, with the verdict last, and True if all guarantees held.

    With ``kill``, a worker had to be killed: a run without a killed worker proves nothing, and fails.
    """
    records = performance.records
    others = [problem for record in records for problem in _ended_badly(record)]
    whole = [record for record in records if not _ended_badly(record)]
    turns = sum(len(record.turns) for record in whole)
    count = sum(len(record.live.events) for record in whole)
    history = [problem for record in whole for problem in check_history(record, expected)]
    events = [problem for record in whole for problem in check_events(record)]
    if kill and performance.accident is None and not others:
        others.append("No worker was killed, because no answer took long enough.")
    shown = "; the model was shown all of it before each turn" if expected else ""
    ordered = f"{count:,} events, dense and in one order for live, late and reconnected subscribers"
    promises = _promise("G2", f"{turns:,} questions with one whole answer each, in order{shown}", history)
    promises += _promise("G5", ordered, events)
    figures = figure_lines(records, performance.accident, performance.seconds)
    lines = ["", *figures, "", *_shown(others), *(promises if whole else []), ""]
    problems = len(history) + len(events) + len(others)
    if problems:
        return [*lines, f"FAILED: {problems} {'problem' if problems == 1 else 'problems'}."], False
    accident = ", though a worker was killed in the middle" if performance.accident else ""
    return [*lines, f"OK: every answer is complete{accident}; G2 and G5 hold."], True


def _promise(name: str, text: str, problems: Sequence[str]) -> list[str]:
    if not problems:
        return [f"  {name} holds: {text}."]
    return [f"  {name} DOES NOT HOLD:", *_shown(problems)]


def _shown(problems: Sequence[str]) -> list[str]:
    more = [f"    … and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
    return [*(f"    {problem}" for problem in problems[:MOST_SHOWN]), *more]


def _ended_badly(record: SessionRecord) -> list[str]:
    name = record.conversation.name
    return [
        f"{name}: a turn failed: {turn.ended.message}"
        if isinstance(turn.ended, TurnFailedEvent)
        else f"{name}: a turn was cancelled."
        for turn in record.turns
        if isinstance(turn.ended, TurnFailedEvent | TurnCancelledEvent)
    ]
