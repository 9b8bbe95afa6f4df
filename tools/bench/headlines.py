"""The figures that readers ask for first; a few of them are in the README."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.marked import with_block

from bench import prices
from bench.kept import DOCS, Kept, Machine, Record
from bench.parts import PARTS
from bench.plots import DESCRIPTIONS, pictures
from bench.results import Grid, Result, grids, number
from bench.sums import HEAD, Costs, costs_of, needs, redis_bytes, row
from bench.turns import ENCRYPTED, WHOLE


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure in words, its place among the kept ones, and its aim: at least or at most."""

    words: str
    part: str
    subject: str
    what: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    in_readme: bool = False

    def shown(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def aim(self, value: float) -> str:
        """Return the aim and whether it is reached; '' if there is none."""
        if self.least is not None:
            aim, reached = f"≥ {self.shown(self.least)}", value >= self.least
        elif self.most is not None:
            aim, reached = f"≤ {self.shown(self.most)}", value <= self.most
        else:
            return ""
        return f"{aim}: {'reached' if reached else '**not reached**'}"


KNEE = "the knee at 50/s"
FIRST = "first delta p50"
AFTER = "goes on after"

RATIO = "against bare SDK calls"
CLUSTER = "the cell against plain Redis"

HEADLINES = (
    Headline("turns a second in one worker process", "turns", "through one worker process", "turns", in_readme=True),
    Headline(
        "… against bare SDK calls in the same round",
        "turns", "one worker process", RATIO, "×", least=2.5, in_readme=True,
    ),
    Headline("turns a second in two worker processes", "turns", "through two worker processes", "turns"),
    Headline("CPU of a turn with encryption, against one without", "turns", ENCRYPTED, WHOLE, "×", most=1.15),
    Headline("submit to first delta, idle, p50", "latency", "idle: turn", FIRST, "ms", in_readme=True),
    Headline(
        "… beyond a bare SDK call",
        "latency", "idle: turn beyond a bare SDK call", FIRST, "ms", most=0.5, in_readme=True,
    ),
    Headline("submit to first delta at half load, p50", "latency", "half load: turn", FIRST, "ms"),
    Headline(
        "live streams at 50 tokens/s in one process, lag within 50 ms p99",
        "streams", KNEE, "live streams", in_readme=True,
    ),
    Headline("… chunks a second", "streams", KNEE, "carried", least=40_000),
    Headline("… lag of 400 of them, p99", "streams", "400 streams at 50/s", "lag p99", "ms", most=50),
    Headline(
        "turns a second of a cell on a Redis Cluster, against a plain Redis",
        "cluster", CLUSTER, "turns", "×", least=0.9,
    ),
    Headline("… chunks a second", "cluster", CLUSTER, "chunks", "×", least=0.9),
    Headline("round trips of `submit`", "commands", "submit", "round trips", most=1),
    Headline("round trips of a run whose turn waited with others", "commands", "run", "round trips", most=2),
    Headline(
        "memory of a turn in flight, in the worker", "memory", "a turn in flight", "in the worker", "KiB", most=16
    ),
    Headline(
        "`kill -9` of a worker process, another one beside it: the turn goes on after",
        "recovery", "Antiphon, kill -9 of one of two processes", AFTER, "s", most=1, in_readme=True,
    ),
    Headline(
        "… of the only one: after", "recovery", "Antiphon, kill -9 of the only process", AFTER, "s", most=1,
    ),
    Headline(
        "a host that is gone, lease 10 s: after",
        "recovery", "Antiphon, a host is gone, lease 10 s", AFTER, "s", most=11, in_readme=True,
    ),
)  # fmt: skip


def headlines(kept: Kept) -> list[tuple[Headline, float]]:
    """Return the measured headlines, each with its figure."""
    values = [(one, kept.value(one.part, one.subject, one.what)) for one in HEADLINES]
    return [(one, value) for one, value in values if value is not None]


_ROOT = DOCS.parents[1]
PAGES = ("README.md", "docs/performance.md", "docs/scaling.md")
BLOCK, IDLE_BLOCK = "figures", "idle sessions"
SIMULATED = "failures"
"""The plot that is shown only with the sums."""
LIVE = (10_000, 100_000, 1_000_000)


def write_pages(kept: Kept) -> list[Path]:
    """Put the figures into the pages. Return the pages that changed."""
    changed: list[Path] = []
    for name in PAGES:
        path = _ROOT / name
        known = path.read_text()
        page = page_with_figures(name, known, kept)
        if page != known:
            path.write_text(page)
            changed.append(path)
    return changed


def page_with_figures(name: str, page: str, kept: Kept) -> str:
    """Return the page with these figures, or unchanged if there are none."""
    block = {"README.md": _readme, "docs/performance.md": _performance, "docs/scaling.md": _scaling}[name](
        kept
    )
    page = with_block(page, BLOCK, block) if block else page
    idle = kept.result("idle") if name == "docs/scaling.md" else None
    return with_block(page, IDLE_BLOCK, "\n".join(prices.block(idle))) if idle else page


def _readme(kept: Kept) -> str:
    """Return a few figures, and the plot with other queues."""
    shown = [(one, value) for one, value in headlines(kept) if one.in_readme]
    if not shown:
        return ""
    conditions = _runs(kept, {one.part for one, _ in shown}, brief=True)
    head = ["", "| what | figure |", "|---|---|"]
    rows = [f"| {one.words} | {one.shown(value)} |" for one, value in shown]
    return "\n".join([*conditions, *head, *rows, *_plots(kept, "docs/img", only="turns")])


def _performance(kept: Kept) -> str:
    """Return all figures and plots."""
    if not kept.parts:
        return ""
    text = [*_conditions(kept), *_aims(kept), *_plots(kept, "img")]
    for part in PARTS:
        record = kept.parts.get(part.name)
        if record is None:
            continue
        text += ["", f"### `{part.name}`: {record.result.title if record.result else 'not measured'}"]
        text += _section(record.result) if record.result else ["", f"Failed: {record.failed}"]
    return "\n".join(text)


def _scaling(kept: Kept) -> str:
    """Return the costs, what they mean for many streams, and how well the sums fit on this machine."""
    if not kept.parts:
        return ""
    costs = costs_of(kept)
    if not isinstance(costs, Costs):
        return f"The sums cannot be made, as these figures are missing: {'; '.join(costs)}."
    text = [*_conditions(kept), "", *_costs(costs), ""]
    text += [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    text += [f"| {' | '.join(row(needs(costs, streams)))} |" for streams in LIVE]
    text += _checked(kept.result("cells"), costs)
    text += _plots(kept, "img", only=SIMULATED)
    return "\n".join(text)


def _aims(kept: Kept) -> list[str]:
    """Return the aims of the design with the measured figures."""
    found = [(one.words, one.shown(value), one.aim(value)) for one, value in headlines(kept)]
    rows = [f"| {words} | {figure} | {aim} |" for words, figure, aim in found]
    return ["", "| what | figure | aim |", "|---|---|---|", *rows] if rows else []


def _conditions(kept: Kept) -> list[str]:
    """Return how and where the figures were measured, and which are missing."""
    text = [*_runs(kept, kept.parts), ""]
    missing = [f"`{part.name}`" for part in PARTS if part.name not in kept.parts]
    if missing:
        text.append(f"Not measured: {', '.join(missing)}.")
    text.append("All figures: [bench.json](bench.json).")
    return text


def _runs(kept: Kept, names: Container[str], brief: bool = False) -> list[str]:
    """Return a line for each run of `make bench` that measured any of these parts."""
    runs: dict[str, tuple[Machine, list[str]]] = {}
    for part in PARTS:
        record = kept.parts.get(part.name)
        if record is not None and part.name in names:
            runs.setdefault(_run(record, brief), (record.machine, []))[1].append(f"`{part.name}`")
    text: list[str] = []
    for line, (machine, parts) in runs.items():
        text.append(line if len(runs) == 1 else f"- {', '.join(parts)}: {line}")
        if machine.busy and not brief:
            text.append(
                "  Something else ran on the machine: ratios and counts mean more than times and rates."
            )
    return text


def _run(record: Record, brief: bool) -> str:
    rounds = "one round" if record.rounds == 1 else f"medians of {record.rounds} rounds"
    quick = " --quick" if record.quick else ""
    machine = record.machine.brief() if brief else record.machine.sentence()
    return f"`make bench{quick}`, {rounds}, {machine}."


def _plots(kept: Kept, folder: str, only: str = "") -> list[str]:
    text: list[str] = []
    for name in pictures(kept):
        if name == only or (not only and name != SIMULATED):
            text += ["", f"![{DESCRIPTIONS[name]}]({folder}/{name}.svg)"]
    return text


def _section(result: Result) -> list[str]:
    text: list[str] = []
    for grid in grids(result):
        text += ["", *_table(grid)]
    if result.remarks:
        text += ["", *result.remarks]
    return text


def _table(grid: Grid) -> Sequence[str]:
    width = max(len(grid.head), *[len(line.cells) + bool(line.note) for line in grid.lines])
    head = [*grid.head, *[""] * (width - len(grid.head))]
    rows = [f"| | {' | '.join(head)} |", "|---" * (width + 1) + "|"]
    for line in grid.lines:
        cells = [*line.cells, *([line.note.replace("|", "/")] if line.note else [])]
        rows.append(f"| {' | '.join([line.subject, *cells, *[''] * (width - len(cells))])} |")
    return rows


def _costs(costs: Costs) -> list[str]:
    shown: Mapping[str, str] = {
        "*w*, worker, a chunk": f"{number(costs.worker_chunk_us)} µs",
        "*r*, Redis, a chunk": f"{number(costs.redis_chunk_us)} µs",
        "*W*, worker, a turn": f"{number(costs.worker_turn_us)} µs",
        "*R*, Redis, a turn": f"{number(costs.redis_turn_us)} µs",
        "*m*, Redis, a turn in flight": f"{number(costs.turn_kib)} KiB",
        "*e*, Redis, a chunk of it": f"{number(costs.chunk_bytes)} B",
        "*i*, Redis, an idle session": f"{number(costs.session_kib)} KiB",
        "*g*, gateway, an event": f"{number(costs.gateway_event_us)} µs",
        "Redis, bytes of a chunk and its reader": f"{number(costs.chunk_in)} in, {number(costs.chunk_out)} out",
        "… of a turn": f"{number(costs.turn_in)} in, {number(costs.turn_out)} out",
    }
    return [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|", f"| {' | '.join(shown.values())} |"]


def _checked(result: Result | None, costs: Costs) -> list[str]:
    """Return the figures of the part ``cells``, with the sums for the same chunks and the idle processes."""
    if result is None:
        return []
    kinds = ("worker cores", "Redis cores", "network of Redis, MB/s")
    text = [
        "",
        f"| on this machine | chunks/s | {' | '.join(f'{kind} | by the sums' for kind in kinds)} | lag p99 |",
    ]
    text.append("|---" * (3 + 2 * len(kinds)) + "|")
    for name, (chunks, lag, pairs) in compared(result, costs).items():
        shown = " | ".join(f"{measured:.2f} | {by_sums:.2f}" for measured, by_sums in pairs)
        text.append(f"| {name} | {chunks:,.0f} | {shown} | {number(lag)} ms |")
    return text


def compared(result: Result, costs: Costs) -> dict[str, tuple[float, float, list[tuple[float, float]]]]:
    """Return by name: chunks/s, lag, and pairs of the measured figure and its sum (workers, Redis, network)."""
    found: dict[str, tuple[float, float, list[tuple[float, float]]]] = {}
    for name in dict.fromkeys(one.subject for one in result.figures):
        values = [result.value(name, what) for what in CHECKED]
        if None in values:
            continue
        chunks, lag, workers, idle_workers, redis, idle_nodes, moved = (value or 0.0 for value in values)
        pairs = [
            (workers, chunks * costs.worker_chunk_us / 1e6 + idle_workers),
            (redis, chunks * costs.redis_chunk_us / 1e6 + idle_nodes),
            (moved, redis_bytes(costs, chunks) / 1e6),
        ]
        found[name] = chunks, lag, pairs
    return found


CHECKED = (
    "carried", "lag p99", "CPU of the workers", "… when idle", "CPU of Redis", "… of idle nodes", "network of Redis",
)  # fmt: skip
