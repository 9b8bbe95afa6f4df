"""What a deployment needs, and the model of a cluster with a node that fails."""

import pytest
from bench.headlines import compared
from bench.kept import DOCS, Kept
from bench.sums import Costs, costs_of
from sizing.__main__ import main
from sizing.lag import WINDOW, Lags, Load, points, simulate

LOAD = Load(nodes=4, event_us=20.0, seconds=10.0, down_seconds=2.0)


def test_lags_are_weighted_by_the_deltas_that_they_stand_for():
    lags = Lags([(0.010, 90.0), (1.0, 10.0)])
    assert (lags.percentile(0.5), lags.percentile(0.9), lags.percentile(0.99)) == (10, 10, 1000)
    assert (lags.later(5), lags.later(10.5), lags.later(1500)) == (1, pytest.approx(0.1), 0)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_node_carries_what_its_streams_say(share):
    load = Load(nodes=2, event_us=20.0, share=share, seconds=10.0)
    offered = load.nodes * load.streams * load.pace * load.seconds
    assert simulate(load).deltas == pytest.approx(offered, rel=0.05)


def test_no_delta_waits_longer_than_two_calls_while_all_nodes_run():
    lags = simulate(LOAD)
    assert lags.percentile(0.5) > WINDOW / 2 * 1000
    assert lags.percentile(1) < 4 * WINDOW * 1000


def test_an_overloaded_node_joins_deltas_instead_of_falling_behind():
    late = simulate(Load(nodes=2, event_us=20.0, share=1.5, seconds=10.0)).percentile(0.99)
    later = simulate(Load(nodes=2, event_us=20.0, share=1.5, seconds=30.0)).percentile(0.99)
    assert later < 1.2 * late < 1000


def test_a_node_that_fails_delays_its_own_deltas_for_as_long_as_it_is_away():
    lags = simulate(
        Load(
            **{name: getattr(LOAD, name) for name in ("nodes", "event_us", "seconds", "down_seconds")},
            fails=True,
        )
    )
    assert lags.later(100) == pytest.approx(1 / 4 * 2 / 10, rel=0.2)
    assert 1500 < lags.percentile(0.9999) < 2200
    assert simulate(LOAD).later(100) == 0


def test_a_simulation_is_the_same_each_time():
    assert points(simulate(LOAD)) == points(simulate(LOAD))
    assert points(simulate(LOAD)) != points(simulate(LOAD, seed=2))
    percents = [percent for _, percent in points(simulate(LOAD))]
    assert percents == sorted(percents, reverse=True)


def test_the_tool_prints_what_is_needed(capsys):
    assert main(["--streams", "20000", "--pace", "10"]) == 0
    shown = capsys.readouterr().out
    assert "live streams             20,000\n" in shown
    assert "chunks/s                 200,000\n" in shown
    assert "lag, a node fails" in shown


def test_the_sums_are_within_40_percent_of_what_was_measured():
    """On a cluster of one, three and six nodes: the CPU of workers and of Redis, and its network."""
    kept = Kept(DOCS)
    costs, cells = costs_of(kept), kept.result("cells")
    assert isinstance(costs, Costs)
    assert cells is not None
    found = compared(cells, costs)
    assert [*found] == ["1 node", "3 nodes", "6 nodes"]
    for _, _, pairs in found.values():
        for measured, by_sums in pairs:
            assert by_sums == pytest.approx(measured, rel=0.4)
