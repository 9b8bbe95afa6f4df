"""The measurements of the demo and their table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from antiphon_worker.playground.demo.accident import Accident
from antiphon_worker.playground.demo.record import SessionRecord


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
