"""The benchmark's own arithmetic: a figure that is computed wrongly is worse than none."""

import xml.etree.ElementTree as ET

import pytest
from bench.gauges import Counters, percentile, spread
from bench.load import steady_rate
from bench.plots import write_plots
from bench.results import Plan, Result, table


def test_a_percentile_is_one_of_the_values():
    values = [float(value) for value in range(101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (50, 99, 100)
    assert percentile([7.0], 0.99) == 7
    assert percentile([], 0.5) == 0


def test_a_spread_keeps_the_extremes_beside_the_median():
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)


def test_the_rate_does_not_count_how_long_the_first_and_the_last_took():
    ends = [100.0, *[200 + number / 100 for number in range(100)], 300.0]
    assert steady_rate(ends) == pytest.approx(100, rel=0.05)


def test_counters_say_what_happened_between_two_readings():
    before = Counters({"get": 5, "evalsha": 1}, 1.0, 1000)
    after = Counters({"get": 7, "evalsha": 4, "set": 1, "eval": 1}, 1.5, 1500)
    since = after.since(before)
    assert since.commands == {"get": 2, "evalsha": 3, "set": 1, "eval": 1}
    assert (since.scripts, since.cpu_seconds, since.memory_bytes) == (4, 0.5, 500)


def test_a_quick_plan_takes_the_small_figures():
    assert Plan(1, quick=True).pick(1000, 10) == 10
    assert Plan().pick(1000, 10) == 1000


def test_a_table_shows_the_spread_only_where_there_were_several_rounds():
    result = Result("turns", "turns & more")
    result.add("one worker", [900.0, 1000.0, 1100.0], "turns/s")
    result.add("CPU", 12.5, "µs")
    assert "1,000 turns/s   (900 to 1,100)" in table(result)
    assert table(result).endswith("12.5 µs")


def test_plots_are_well_formed_and_hold_every_point(tmp_path):
    lines = Result("lines", "a < b & c", axes=("streams", "ms"))
    lines.curves = {"20/s": [(10.0, 1.0), (1000.0, 4000.0)], "50/s": [(100.0, 0.5)]}
    bars = Result("bars", "turns", axes=("", "turns/s"), bars={"Antiphon": 900.0, "other": 0.0})
    write_plots([lines, bars, Result("none", "nothing to show")], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.svg", "lines.svg"]
    drawn = ET.parse(tmp_path / "lines.svg").getroot()
    places = [
        float(circle.get(axis, "-1")) for circle in drawn.findall(".//{*}circle") for axis in ("cx", "cy")
    ]
    assert len(places) == 6
    assert all(0 <= place <= 640 for place in places)
    assert len(list(ET.parse(tmp_path / "bars.svg").getroot().findall(".//{*}rect"))) == 2
