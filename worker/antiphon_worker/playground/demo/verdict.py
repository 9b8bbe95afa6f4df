"""The final report of the demo: the table, the guarantees and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.events import TurnCancelledEvent, TurnFailedEvent
from antiphon_worker.playground.demo.checks import Expected, check_events, check_history
from antiphon_worker.playground.demo.figures import figure_lines
from antiphon_worker.playground.demo.performance import Performance
from antiphon_worker.playground.demo.record import SessionRecord

MOST_SHOWN = 8


def judge(performance: Performance, *, expected: Expected | None, kill: bool) -> tuple[list[str], bool]:
    """Return the lines to print, with the verdict last, and True if all guarantees held.

    ``kill`` says that a worker should be killed; then a run without a killed worker proves nothing.
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
