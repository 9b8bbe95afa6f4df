"""What the pages and plots say of the benchmark's figures is what was measured."""

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest
from bench.headlines import CHECKED, HEADLINES, PAGES, Headline, page_with_figures
from bench.idle import SHARES, WHOLE
from bench.kept import DOCS, Kept, Machine, Record
from bench.plots import COLOURS, DESCRIPTIONS, TEXT_COLOUR, Bar, Lines, bars, draw, lines, pictures
from bench.results import Result
from bench.sums import GATEWAY
from support.marked import with_block

ROOT = DOCS.parents[1]
MACHINE = Machine(
    "2026-01-02 03:04 UTC", 2, "Chip", "Linux", 0.1, "3.11.7", "Valkey 9.1.2", {"redis": "8.1.0"}
)
PAGE = "before\n<!-- figures: made -->\nold\n<!-- end of figures -->\nafter\n"


def results() -> list[Result]:
    """A few figures of each part that has a plot or a sum."""
    peers = Result("peers", "the same | work")
    peers.add("bare SDK calls, no queue", "turns", 900.0, "a second")
    peers.add("Antiphon", "turns", [800.0, 1000.0], "a second")
    peers.fail("docket", "it | broke")
    streams = Result("streams", "live streams", remarks=["A remark."])
    for number, p50, p99 in ((100, 8.0, 20.0), (400, 12.0, 45.0), (800, 60.0, 400.0)):
        streams.point("20 tokens/s, p50", number, p50)
        streams.point("20 tokens/s, p99", number, p99)
    streams.add("the knee at 20/s", "CPU of the worker, a chunk", 35.0, "µs")
    streams.add("the knee at 20/s", "CPU of Redis, a chunk", 12.0, "µs")
    turns = Result("turns", "turns")
    turns.add("one worker process", "against bare SDK calls", 0.8, "×")
    turns.add("one worker process", "CPU of the worker, a turn", 700.0, "µs")
    turns.add("one worker process", "CPU of Redis, a turn", 300.0, "µs")
    memory = Result("memory", "memory")
    memory.add("a turn in flight", "in Redis", 5.0, "KiB")
    memory.add("a delta that it has said", "in Redis", 100.0, "B")
    memory.add("an idle session with one turn of 40 tokens", "in Redis", 7.0, "KiB")
    length = Result("length", "length")
    for number in (10, 10_000):
        length.point("a turn, p50", number, 4.0)
    recovery = Result("recovery", "recovery")
    recovery.add("Antiphon, kill -9 of one of two processes", "goes on after", 0.03, "s")
    recovery.note("arq", "not within 75 s")
    gateway, network = Result("gateway", "gateway"), Result("network", "network")
    gateway.add(GATEWAY, "CPU of the gateway, an event", 70.0, "µs")
    for subject, read, written in (("a turn", 2000.0, 500.0), ("a chunk with one reader", 200.0, 300.0)):
        network.add(subject, "into Redis", read, "B")
        network.add(subject, "out of Redis", written, "B")
    cells = Result("cells", "cells")
    for what, value in zip(CHECKED, (10_000.0, 30.0, 0.4, 0.05, 0.2, 0.01, 4.0), strict=True):
        cells.add("3 nodes", what, value, "")
    return [peers, streams, turns, memory, length, recovery, gateway, network, cells]


@pytest.fixture
def kept(tmp_path) -> Kept:
    kept = Kept(tmp_path / "bench.json")
    for result in results():
        kept.put(result.name, Record(MACHINE, 3, quick=False, seconds=1.0, result=result))
    return kept


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_say_what_was_measured(name):
    page = (ROOT / name).read_text()
    assert page == page_with_figures(name, page, Kept(DOCS)), 'Write it anew: make bench ARGS="plots"'


def test_the_plots_are_those_of_the_figures():
    drawn = pictures(Kept(DOCS))
    assert drawn == {name: (DOCS.parent / "img" / f"{name}.svg").read_text() for name in drawn}


def test_only_what_stands_between_the_marks_is_written():
    assert with_block(PAGE, "figures", "new") == PAGE.replace("old", "new")
    with pytest.raises(ValueError, match="no place"):
        with_block("a page", "figures", "new")


@pytest.mark.parametrize("name", PAGES)
def test_without_figures_a_page_stays_as_it_is(name, tmp_path):
    assert page_with_figures(name, PAGE, Kept(tmp_path / "none.json")) == PAGE


def test_the_page_of_figures_has_every_part_with_its_conditions(kept):
    page = page_with_figures("docs/performance.md", PAGE, kept)
    assert (
        "`make bench`, medians of 3 rounds, 2026-01-02 03:04 UTC, 2 cores (Chip, Linux), load 0.1 at the start, Python"
        in page
    )
    assert "| Antiphon | 900 (800 to 1,000) |" in page
    assert "| docket | failed: it / broke |" in page
    assert "A remark." in page
    assert "Not measured: `floor`, `latency`" in page
    assert "| … against bare SDK calls in the same round | 0.8 × | ≥ 2.5 ×: **not reached** |" in page
    assert "goes on after | 0.03 s | ≤ 1 s: reached |" in page
    assert "Something else ran" not in page
    for block in page.split("\n\n"):
        widths = {row.count("|") for row in block.splitlines() if row.startswith("|")}
        assert len(widths) <= 1, block


def test_a_part_that_failed_and_a_busy_machine_are_said(kept):
    busy = msgspec.structs.replace(MACHINE, load=3.0, date="2026-02-03 04:05 UTC")
    kept.put("floor", Record(busy, 1, quick=False, seconds=1.0, failed="it hung"))
    page = page_with_figures("docs/performance.md", PAGE, kept)
    assert "### `floor`: not measured\n\nFailed: it hung" in page
    assert "- `floor`: `make bench`, one round, 2026-02-03 04:05 UTC" in page
    assert "Something else ran on the machine" in page


def test_the_readme_shows_few_figures_and_one_plot_with_the_machine(kept):
    page = page_with_figures("README.md", PAGE, kept)
    assert re.findall(r"\]\((docs/img/.*)\)", page) == ["docs/img/turns.svg"]
    assert "| … against bare SDK calls in the same round | 0.8 × |" in page
    assert page.count("\n| ") <= 1 + sum(one.in_readme for one in HEADLINES) < len(HEADLINES)
    assert "2 cores (Chip), load 0.1" in page


def test_the_page_about_scaling_has_the_sums_beside_what_was_measured(kept):
    page = page_with_figures("docs/scaling.md", PAGE, kept)
    cores = (10_000 * 20 * 35 + 10_000 / 30 * 700) / 1e6 / 0.7
    assert f"| 10,000 | 200,000 | 333 | {cores:.1f} | {round(cores + 0.5)} | 5 |" in page
    assert page.count("\n| 1,000,000 |") == 1
    assert "| 3 nodes | 10,000 | 0.40 | 0.40 | 0.20 | 0.13 | 4.00 | 5.00 | 30 ms |" in page
    assert "(img/failures.svg)" in page


def test_the_page_about_scaling_has_the_sums_for_a_million_idle_sessions(kept):
    idle = Result("idle", "idle sessions")
    idle.add(WHOLE, "in Redis", 6000.0, "B")
    for name, value in zip(SHARES, (600.0, 1700.0, 2600.0, 600.0, 400.0, 100.0), strict=True):
        idle.add(f"… {name}", "in Redis", value, "B")
    kept.put("idle", Record(MACHINE, 3, quick=False, seconds=1.0, result=idle))
    marks = "<!-- idle sessions: made -->\n<!-- end of idle sessions -->\n"
    page = page_with_figures("docs/scaling.md", PAGE + marks, kept)
    assert "| `ant:events`, for an hour | 2,600 |" in page
    assert "| in the first hour | 5.9 KiB | 6.0 GB | $368 | $548 | $1.5 |" in page
    assert "| then, for 7 days | 2.7 KiB | 2.8 GB |" in page
    assert "| then, until 30 days | 1.1 KiB | 1.1 GB |" in page
    mean = (6000 / 24 + 2800 * (7 - 1 / 24) + 1100 * 23) / 30
    assert f"| sessions of every age, equally many | {mean / 1024:.1f} KiB |" in page


def test_the_page_about_scaling_says_which_figures_are_missing(kept, tmp_path):
    few = Kept(tmp_path / "few.json")
    few.put("turns", kept.parts["turns"])
    page = page_with_figures("docs/scaling.md", PAGE, few)
    assert "The sums cannot be made, as these figures are missing: `streams` (the knee at 20/s" in page
    assert "`turns`" not in page


def test_a_headline_names_a_figure_once_and_says_whether_its_aim_is_reached():
    assert len({(one.part, one.subject, one.what) for one in HEADLINES}) == len(HEADLINES)
    assert Headline("", "", "", "", "ms", most=2).aim(2.5) == "≤ 2 ms: **not reached**"
    assert Headline("", "", "", "", least=25_000).aim(30_000) == "≥ 25,000: reached"
    assert Headline("", "", "", "").aim(1) == ""


def test_each_plot_is_well_formed_and_names_axes_units_and_peers(kept, tmp_path):
    assert {path.stem for path in draw(kept, tmp_path / "img")} == set(DESCRIPTIONS)
    texts = {path.stem: texts_of(path.read_text()) for path in (tmp_path / "img").iterdir()}
    assert {"turns a second", "Antiphon", "bare SDK calls, no queue", "docket", "failed", "900"} <= texts[
        "turns"
    ]
    assert {"live streams at once", "lag, ms", "20 tokens/s", "p50", "p99"} <= texts["lag"]
    assert {"messages in the session", "ms a turn", "a turn, p50"} <= texts["length"]
    assert {"seconds", "arq", "not within 75 s", "0.03"} <= texts["recovery"]
    assert {"% of deltas that come later", "lag, ms", "nodes 60% busy", "all nodes run"} <= texts["failures"]


def test_a_plot_holds_every_point_within_its_edges():
    curves = {
        "20/s": {"p50": [(10.0, 1.0), (1000.0, 4000.0)], "p99": [(10.0, 2.0)]},
        "50/s": {"x": [(100.0, 0.5)]},
    }
    plot = Lines("a < b & c", "streams", "ms", curves, limit=(50.0, "limit"), y_log=True)
    drawn = ET.fromstring(lines(plot))
    places = [(float(c.get("cx", "-1")), float(c.get("cy", "-1"))) for c in drawn.findall(".//{*}circle")]
    assert len(places) == 4
    assert all(0 <= x <= 720 and 0 <= y <= 400 for x, y in places)
    assert [line.get("stroke-dasharray") for line in drawn.findall(".//{*}polyline")] == ["6 4", None, None]


def test_bars_are_as_long_as_their_values():
    drawn = ET.fromstring(
        bars("turns", [Bar("a", 100.0, "100", ours=True), Bar("b", 50.0, "50"), Bar("c", None, "?")], "x")
    )
    first, second = drawn.findall(".//{*}rect")
    assert float(first.get("width", 0)) == pytest.approx(2 * float(second.get("width", 0)), abs=0.2)
    assert (first.get("fill"), second.get("fill")) == (COLOURS[0], COLOURS[5])


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
def test_plots_are_legible_on_light_and_dark_pages(page):
    assert contrast(TEXT_COLOUR, page) >= 4
    assert min(contrast(colour, page) for colour in COLOURS) >= 3


def texts_of(svg: str) -> set[str]:
    return {text.text or "" for text in ET.fromstring(svg).findall(".//{*}text")}


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part, 16) / 255 for part in re.findall("[0-9a-f]{2}", colour)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
