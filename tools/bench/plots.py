"""Plots as SVG text: lines over a logarithmic or plain axis, and bars. Legible on light and dark pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from sizing.lag import Load, points, simulate

from bench.kept import Kept
from bench.results import Result, number
from bench.sums import Costs, costs_of

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 62, 52
BAR_LEFT, BAR_RIGHT, BAR_STEP = 270, 130, 30
LEGEND_WIDTH, LEGEND_LETTER = 22, 6.6
DASH = ' stroke-dasharray="6 4"'
TEXT_COLOUR = "#797979"
COLOURS = ("#2f74d0", "#d1495b", "#2a9163", "#b3741a", "#8a63d2", "#7d7d7d")
STYLE = (
    f"text{{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:{TEXT_COLOUR}}}"
    f".t{{font-size:15px;font-weight:600}}.g{{stroke:{TEXT_COLOUR};stroke-opacity:.25}}"
    f".l{{stroke:{TEXT_COLOUR};stroke-dasharray:2 4}}"
)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves by group and name. Each group has a colour; all but its last curve are dashed. ``limit`` is a line."""

    title: str
    x_name: str
    y_name: str
    groups: Mapping[str, Mapping[str, Points]]
    limit: tuple[float, str] | None = None
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """``shown`` is written after the bar; a bar without a value has only that."""

    name: str
    value: float | None
    shown: str
    ours: bool = False


def lines(plot: Lines) -> str:
    curves = [curve for group in plot.groups.values() for curve in group.values()]
    limit = [plot.limit[0]] if plot.limit else []
    x_axis = _Axis([x for curve in curves for x, _ in curve], LEFT, WIDTH - RIGHT, plot.x_log)
    y_axis = _Axis([y for curve in curves for _, y in curve] + limit, HEIGHT - BOTTOM, TOP, plot.y_log)
    parts = [_title(plot.title), _grid(x_axis, y_axis), _names(plot)]
    if plot.limit:
        y = y_axis.place(plot.limit[0])
        parts.append(f'<line class="l" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT + 6}" y="{y - 5:.1f}">{escape(plot.limit[1])}</text>')
    legend_at = float(LEFT)
    for colour, (name, group) in zip(COLOURS, plot.groups.items(), strict=False):
        for place, curve in enumerate(group.values(), 1):
            dash = DASH if place < len(group) else ""
            parts.append(_curve([(x_axis.place(x), y_axis.place(y)) for x, y in curve], colour, dash))
        parts.append(_legend(legend_at, name, colour, ""))
        legend_at += LEGEND_WIDTH + 20 + LEGEND_LETTER * len(name)
    which = next((list(group) for group in plot.groups.values() if len(group) > 1), [])
    for place, name in enumerate(which, 1):
        parts.append(_legend(legend_at, name, TEXT_COLOUR, DASH if place < len(which) else ""))
        legend_at += LEGEND_WIDTH + 20 + LEGEND_LETTER * len(name)
    return _document(parts, HEIGHT)


def bars(title: str, values: Sequence[Bar], axis: str) -> str:
    """Return a plot with one horizontal bar for each value, over an axis that begins at 0."""
    bottom = 48 + BAR_STEP * len(values)
    scale = _Axis([0.0, *[bar.value for bar in values if bar.value]], BAR_LEFT, WIDTH - BAR_RIGHT, False)
    parts = [_title(title)]
    for value in scale.ticks():
        x = scale.place(value)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="44" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_short(value)}</text>')
    for place, bar in enumerate(values):
        top = 48 + place * BAR_STEP
        end = scale.place(bar.value or 0.0)
        colour = COLOURS[0] if bar.ours else COLOURS[5]
        parts.append(f'<text x="{BAR_LEFT - 8}" y="{top + 17}" text-anchor="end">{escape(bar.name)}</text>')
        if bar.value is not None:
            width = max(end - BAR_LEFT, 1.0)
            parts.append(
                f'<rect x="{BAR_LEFT}" y="{top + 3}" width="{width:.1f}" height="20" fill="{colour}" rx="2"/>'
            )
        parts.append(f'<text x="{end + 8:.1f}" y="{top + 17}">{escape(bar.shown)}</text>')
    middle = (BAR_LEFT + WIDTH - BAR_RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 40}" text-anchor="middle">{escape(axis)}</text>')
    return _document(parts, bottom + 52)


class _Axis:
    """The place of a value between two edges."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        above = [value for value in values if value > 0]
        self.log = log and bool(above)
        self.low = 10 ** math.floor(math.log10(min(above))) if self.log else 0.0
        self.high = 10 ** math.ceil(math.log10(max(above))) if self.log else _round_up(max(values, default=0))
        if self.log and self.high == self.low:
            self.high = self.low * 10
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        if self.log:
            share = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        return [self.high * part / 5 for part in range(6)]


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
        y = HEIGHT - BOTTOM
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{_short(value)}</text>')
    return "".join(parts)


def _title(title: str) -> str:
    return f'<text class="t" x="16" y="24">{escape(title)}</text>'


def _names(plot: Lines) -> str:
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text x="{middle_x}" y="{HEIGHT - 12}" text-anchor="middle">{escape(plot.x_name)}</text>'
        f'<text transform="translate(18 {middle_y}) rotate(-90)" text-anchor="middle">{escape(plot.y_name)}</text>'
    )


def _curve(points: Points, colour: str, dash: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>{dots}'


def _legend(x: float, name: str, colour: str, dash: str) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x + LEGEND_WIDTH:.1f}" y1="44" y2="44" stroke="{colour}" stroke-width="2"{dash}/>'
        f'<text x="{x + LEGEND_WIDTH + 5:.1f}" y="48">{escape(name)}</text>'
    )


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2g}"


def _document(parts: Sequence[str], height: int) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


DESCRIPTIONS = {
    "turns": "Turns a second beside other queues and bare SDK calls",
    "lag": "Lag of a delta against live streams",
    "length": "Cost of a turn against the length of its session",
    "recovery": "Time to recover beside other queues",
    "failures": "How late deltas are on a cluster, by a simulation",
}
"""Each picture in words, as alternative text."""
LAG_LIMIT_MS = 50.0
FAILURE_NODES = 5


def draw(kept: Kept, directory: Path) -> list[Path]:
    """Write each picture that has figures. Return the written files."""
    written: list[Path] = []
    for name, svg in pictures(kept).items():
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.svg"
        path.write_text(svg)
        written.append(path)
    return written


def pictures(kept: Kept) -> dict[str, str]:
    """Return the plots by name, without plots that lack figures."""
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
        "failures": _failures(costs_of(kept)),
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


def _failures(costs: Costs | list[str]) -> str:
    if not isinstance(costs, Costs):
        return ""
    groups = {
        f"nodes {share:.0%} busy": {
            name: points(simulate(Load(FAILURE_NODES, costs.redis_chunk_us, share=share, fails=fails)))
            for name, fails in (("all nodes run", False), (f"one of {FAILURE_NODES} fails in a minute", True))
        }
        for share in (0.6, 0.9)
    }
    return lines(
        Lines(
            title="A simulation of deltas on a cluster, and of a node that fails",
            x_name="lag, ms",
            y_name="% of deltas that come later",
            groups=groups,
            x_log=True,
            y_log=True,
        )
    )


def _by_group(
    curves: Mapping[str, list[tuple[float, float]]],
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return curves named ``group, which`` by group and the rest of the name."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, curve in curves.items():
        group, _, which = name.partition(", ")
        found.setdefault(group, {})[which] = curve
    return found
