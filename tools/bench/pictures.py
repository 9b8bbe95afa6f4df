"""Which plots there are, each drawn from the kept figures of one part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.kept import Kept
from bench.plots import Bar, Lines, bars, lines
from bench.results import Result, number

DESCRIPTIONS = {
    "turns": "Turns a second beside other queues and bare SDK calls",
    "lag": "Lag of a delta against live streams",
    "length": "Cost of a turn against the length of its session",
    "recovery": "Time to recover beside other queues",
}
"""Each picture in words, for those who do not see it."""
LAG_LIMIT_MS = 50.0


def draw(kept: Kept, directory: Path) -> list[Path]:
    """Write each picture whose figures there are; the files that were written."""
    written: list[Path] = []
    for name, svg in pictures(kept).items():
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.svg"
        path.write_text(svg)
        written.append(path)
    return written


def pictures(kept: Kept) -> dict[str, str]:
    """The plots by name, without those that have no figures."""
    drawn = {
        "turns": _bars(
            kept.result("peers"),
            "turns",
            "Turns a second, one-chunk answers, one worker each",
            "turns a second",
        ),
        "lag": _lag(kept.result("streams")),
        "length": _length(kept.result("length")),
        "recovery": _bars(
            kept.result("recovery"),
            "goes on after",
            "From the loss of a worker to the next attempt",
            "seconds",
        ),
    }
    return {name: svg for name, svg in drawn.items() if svg}


def _bars(result: Result | None, what: str, title: str, axis: str) -> str:
    if result is None:
        return ""
    values: list[Bar] = []
    for one in result.figures:
        if one.value is not None and one.what == what:
            shown = number(one.value.median)
            values.append(Bar(one.subject, one.value.median, shown, one.subject.startswith("Antiphon")))
        elif one.note and one.value is None:
            values.append(Bar(one.subject, None, one.note.partition(":")[0]))
    return bars(title, values, axis) if any(bar.value for bar in values) else ""


def _lag(result: Result | None) -> str:
    if result is None or not result.curves:
        return ""
    return lines(
        Lines(
            title="Lag of a delta, from the model server to a subscriber, one worker process",
            x_name="live streams at once",
            y_name="lag, ms",
            groups=_by_group(result.curves),
            limit=(LAG_LIMIT_MS, f"limit: {LAG_LIMIT_MS:g} ms p99"),
            y_log=True,
        )
    )


def _length(result: Result | None) -> str:
    if result is None or not result.curves:
        return ""
    return lines(
        Lines(
            title="A turn against the length of its session, the model is sent the last 20 messages",
            x_name="messages in the session",
            y_name="ms a turn",
            groups={name: {name: curve} for name, curve in result.curves.items()},
            x_log=True,
        )
    )


def _by_group(
    curves: Mapping[str, list[tuple[float, float]]],
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Curves that are named ``group, which``, by group and the rest of the name."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, curve in curves.items():
        group, _, which = name.partition(", ")
        found.setdefault(group, {})[which] = curve
    return found
