"""What the pages say of the kept figures: no figure in them is typed by hand."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from support.marked import with_block

from bench.headlines import headlines
from bench.kept import DOCS, Kept, Record
from bench.machine import Machine
from bench.parts import PARTS
from bench.pictures import DESCRIPTIONS, pictures
from bench.results import Grid, Result, grids, number
from bench.sums import Costs, Needs, costs_of, needs

_ROOT = DOCS.parents[1]
PAGES = ("README.md", "docs/performance.md", "docs/scaling.md")
BLOCK = "figures"
LIVE = (10_000, 100_000, 1_000_000)


def write_pages(kept: Kept) -> list[Path]:
    """Put the figures into the pages; the pages that changed."""
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
    """The page as it is with these figures; without any it stays as it is."""
    block = {"README.md": _readme, "docs/performance.md": _performance, "docs/scaling.md": _scaling}[name](
        kept
    )
    return with_block(page, BLOCK, block) if block else page


def _readme(kept: Kept) -> str:
    """A few figures, and the plot beside other queues."""
    shown = [(one, value) for one, value in headlines(kept) if one.in_readme]
    if not shown:
        return ""
    conditions = _runs(kept, {one.part for one, _ in shown}, brief=True)
    head = ["", "| what | figure |", "|---|---|"]
    rows = [f"| {one.words} | {one.shown(value)} |" for one, value in shown]
    return "\n".join([*conditions, *head, *rows, *_plots(kept, "docs/img", only="turns")])


def _performance(kept: Kept) -> str:
    """Everything."""
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
    """Costs, what they mean for many streams, and how far the sums hold on this machine."""
    if not kept.parts:
        return ""
    costs = costs_of(kept)
    if not isinstance(costs, Costs):
        return f"The sums cannot be made, as these figures are missing: {'; '.join(costs)}."
    text = [*_conditions(kept), "", *_costs(costs), ""]
    text += [
        "| live streams | chunks/s | turns/s | worker cores | worker processes | cells | memory of the cells |"
    ]
    text += ["|---|---|---|---|---|---|---|", *[_needs(needs(costs, streams)) for streams in LIVE]]
    text += _checked(kept.result("cells"), costs)
    return "\n".join(text)


def _aims(kept: Kept) -> list[str]:
    """What the design aims at, beside what was measured."""
    found = [(one.words, one.shown(value), one.aim(value)) for one, value in headlines(kept)]
    rows = [f"| {words} | {figure} | {aim} |" for words, figure, aim in found]
    return ["", "| what | figure | aim |", "|---|---|---|", *rows] if rows else []


def _conditions(kept: Kept) -> list[str]:
    """With what and where the figures were measured, and which are missing."""
    text = [*_runs(kept, kept.parts), ""]
    missing = [f"`{part.name}`" for part in PARTS if part.name not in kept.parts]
    if missing:
        text.append(f"Not measured: {', '.join(missing)}.")
    text.append("All figures: [bench.json](bench.json).")
    return text


def _runs(kept: Kept, names: Container[str], brief: bool = False) -> list[str]:
    """A line for each run of `make bench` that figures of these parts come from."""
    runs: dict[str, tuple[Machine, list[str]]] = {}
    for part in PARTS:
        record = kept.parts.get(part.name)
        if record is not None and part.name in names:
            runs.setdefault(_run(record, brief), (record.machine, []))[1].append(f"`{part.name}`")
    text: list[str] = []
    for line, (machine, parts) in runs.items():
        text.append(line if len(runs) == 1 else f"- {', '.join(parts)}: {line}")
        if machine.busy:
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
        if not only or name == only:
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
    }
    return [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|", f"| {' | '.join(shown.values())} |"]


def _needs(one: Needs) -> str:
    cells = (
        f"{one.streams:,}", f"{one.chunks:,.0f}", f"{one.turns:,.0f}", f"{one.worker_cores:,.1f}", f"{one.processes:,}",
        f"{one.cells:,}", f"{one.gib:,.1f} GiB",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _checked(result: Result | None, costs: Costs) -> list[str]:
    """What the part ``cells`` measured, beside what the sums say of the same chunks."""
    if result is None:
        return []
    head = "| on this machine | chunks/s | worker cores | by the sums | Redis cores | by the sums | lag p99 |"
    text = ["", head, "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(one.subject for one in result.figures):
        values = [
            result.value(name, what) for what in ("carried", "CPU of the workers", "CPU of Redis", "lag p99")
        ]
        if None in values:
            continue
        chunks, workers, redis, lag = (value or 0.0 for value in values)
        by_sums = chunks * costs.worker_chunk_us / 1e6, chunks * costs.redis_chunk_us / 1e6
        text.append(
            f"| {name} | {chunks:,.0f} | {workers:.2f} | {by_sums[0]:.2f} | {redis:.2f} | {by_sums[1]:.2f} "
            f"| {number(lag)} ms |"
        )
    return text
