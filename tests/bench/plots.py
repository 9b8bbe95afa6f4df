"""Plots as SVG, written by hand: lines over a logarithmic or plain axis, and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.results import Result

__all__ = ["write_plots"]

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 50
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569", "#0891b2")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#64748b}.t{font-size:14px;font-weight:600}"
    ".g{stroke:#94a3b8;stroke-opacity:.3}"
)


def write_plots(results: Sequence[Result], directory: Path) -> None:
    """One file for each measurement that has something to show."""
    directory.mkdir(parents=True, exist_ok=True)
    for result in results:
        if result.curves:
            (directory / f"{result.name}.svg").write_text(lines(result))
        elif result.bars:
            (directory / f"{result.name}.svg").write_text(bars(result))


def lines(result: Result) -> str:
    """Curves, with a logarithmic axis where the values span more than two decades."""
    points = [point for curve in result.curves.values() for point in curve]
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [_grid(x_axis, y_axis), _labels(result)]
    for number, (name, curve) in enumerate(result.curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in curve
        ]
        parts.append(_legend(number, name, colour))
    return _document(parts)


def bars(result: Result) -> str:
    """One horizontal bar for each name, with its value behind it."""
    most = max(result.bars.values(), default=1) or 1
    step = (HEIGHT - TOP - 20) / len(result.bars)
    parts = [f'<text class="t" x="20" y="24">{escape(result.title)}</text>']
    for number, (name, value) in enumerate(result.bars.items()):
        top = TOP + number * step
        width = value / most * (WIDTH - 330)
        colour = COLOURS[0] if name.startswith("Antiphon") else COLOURS[5]
        parts.append(f'<text x="220" y="{top + step / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        size = f'width="{max(width, 1):.1f}" height="{step - 8:.1f}"'
        parts.append(f'<rect x="230" y="{top + 4:.1f}" {size} fill="{colour}" rx="2"/>')
        parts.append(
            f'<text x="{238 + width:.1f}" y="{top + step / 2 + 4:.1f}">{_short(value)} {result.axes[1]}</text>'
        )
    return _document(parts)


class _Axis:
    """Where a value stands between two edges."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.log = low > 0 and high / low > 100
        self.low = 10 ** math.floor(math.log10(low)) if self.log else min(0.0, low)
        self.high = 10 ** math.ceil(math.log10(high)) if self.log else _round_up(high)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        if self.log:
            share = math.log10(value / self.low) / max(math.log10(self.high / self.low), 1)
        else:
            share = (value - self.low) / ((self.high - self.low) or 1)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self.log:
            return [
                10.0**power for power in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            ]
        return [self.low + (self.high - self.low) * part / 5 for part in range(6)]


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    unit = 10 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if unit * step >= value)


def _grid(x_axis: _Axis, y_axis: _Axis) -> str:
    parts: list[str] = []
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    for value in x_axis.ticks():
        x = x_axis.place(value)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(value)}</text>'
        )
    return "".join(parts)


def _labels(result: Result) -> str:
    x_name, y_name = result.axes
    return (
        f'<text class="t" x="20" y="24">{escape(result.title)}</text>'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_name)}</text>'
        f'<text x="20" y="{TOP - 10}">{escape(y_name)}</text>'
    )


def _legend(number: int, name: str, colour: str) -> str:
    y = TOP + 8 + number * 18
    return (
        f'<rect x="{LEFT + 12}" y="{y}" width="10" height="10" rx="2" fill="{colour}"/>'
        f'<text x="{LEFT + 28}" y="{y + 9}">{escape(name)}</text>'
    )


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2g}"


def _document(parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )
