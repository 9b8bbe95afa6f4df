"""The results of a measurement: figures for the tables, curves and bars for the plots."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gauges import Spread, spread


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run. Medians and spreads are computed over its rounds."""

    rounds: int = 3
    quick: bool = False

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its subject, what it is, and its unit. Without a value, ``note`` is the reason."""

    subject: str
    what: str
    unit: str = ""
    value: Spread | None = None
    note: str = ""


@dataclass(slots=True)
class Result:
    """One measurement. ``curves`` are lists of points by name, for the plots."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list[Figure])
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    remarks: list[str] = field(default_factory=list[str])

    def add(self, subject: str, what: str, values: Sequence[float] | float, unit: str) -> float:
        """Add a figure from the values of all rounds, or from a single value. Return the median."""
        one = spread(values if isinstance(values, Sequence) else [values])
        self.figures.append(Figure(subject, what, unit, one))
        return one.median

    def note(self, subject: str, text: str) -> None:
        """Note why ``subject`` has no figures."""
        self.figures.append(Figure(subject, "", note=text))

    def fail(self, subject: str, reason: str) -> None:
        """Note that ``subject`` could not be measured, and why."""
        self.note(subject, f"failed: {in_short(reason)}")

    def point(self, curve: str, x: float, y: float) -> None:
        self.curves.setdefault(curve, []).append((x, y))

    def value(self, subject: str, what: str) -> float | None:
        """Return the median of a figure; None if it was not measured."""
        for one in self.figures:
            if (one.subject, one.what) == (subject, what) and one.value is not None:
                return one.value.median
        return None


@dataclass(frozen=True, slots=True)
class Line:
    """One subject: its cells, and why some are missing."""

    subject: str
    cells: list[str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Subjects with the same figures, one line each."""

    head: list[str]
    lines: list[Line]


def grids(result: Result) -> list[Grid]:
    """Return the figures as tables. Subjects with the same columns share one; so do neighbours with fewer or more."""
    found: list[Grid] = []
    for subject, figures in _by_subject(result.figures).items():
        measured = [one for one in figures if one.value is not None]
        head = [f"{one.what}, {one.unit}" if one.unit else one.what for one in measured]
        line = Line(subject, [_shown(one.value) for one in measured if one.value], _note(figures))
        same = next((grid for grid in found if grid.head == head), None)
        if same is not None:
            same.lines.append(line)
        elif found and _agree(found[-1].head, head):
            found[-1] = Grid(max(found[-1].head, head, key=len), [*found[-1].lines, line])
        else:
            found.append(Grid(head, [line]))
    return found


def _agree(one: list[str], other: list[str]) -> bool:
    """Return whether the columns are the same as far as both go."""
    return all(a == b for a, b in zip(one, other, strict=False))


def table(result: Result) -> str:
    """Return the figures as text for a terminal."""
    shown = [f"{result.name}: {result.title}"]
    for grid in grids(result):
        first = max(len(line.subject) for line in grid.lines)
        columns = [
            max(
                len(cell) for cell in [name, *[line.cells[at] for line in grid.lines if at < len(line.cells)]]
            )
            for at, name in enumerate(grid.head)
        ]
        for line in [Line("", grid.head), *grid.lines]:
            cells = [cell.rjust(width) for cell, width in zip(line.cells, columns, strict=False)]
            shown.append("   ".join([f"  {line.subject:<{first}}", *cells, line.note]).rstrip())
    return "\n".join([*shown, *[f"  {remark}" for remark in result.remarks]])


def in_short(reason: str) -> str:
    """Return the first and last line: what went wrong, and the error at the end of the output."""
    said = [line.strip()[:150] for line in reason.splitlines() if line.strip()] or ["no reason given"]
    return " … ".join(dict.fromkeys([said[0], said[-1]]))


def number(value: float) -> str:
    """Format a number with three digits, or as a whole number with separated thousands."""
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _by_subject(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    found: dict[str, list[Figure]] = {}
    for one in figures:
        found.setdefault(one.subject, []).append(one)
    return found


def _shown(value: Spread) -> str:
    if value.low == value.high:
        return number(value.median)
    return f"{number(value.median)} ({number(value.low)} to {number(value.high)})"


def _note(figures: Sequence[Figure]) -> str:
    return next((one.note for one in figures if one.note), "")
