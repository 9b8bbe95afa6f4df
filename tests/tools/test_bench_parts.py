"""Parts of the benchmark that run on a Redis Cluster or copy sessions, in their short form."""

from importlib import import_module

import pytest
from bench.cluster import CLUSTER, PLAIN
from bench.idle import SHARES, WHOLE
from bench.results import Plan, Result
from bench.turns import ENCRYPTED
from bench.turns import WHOLE as ALL_CPU

pytestmark = pytest.mark.nightly
QUICK = Plan(1, quick=True)


async def measured(name: str) -> Result:
    result = Result(name, "")
    await import_module(f"bench.{name}").measure(QUICK, result)
    return result


async def test_an_idle_session_keeps_little_and_its_shares_are_all_of_it():
    """Its parts expire at different times: what stays after a week is the history."""
    result = await measured("idle")
    whole = result.value(WHOLE, "in Redis")
    shares = {name: result.value(f"… {name}", "in Redis") for name in SHARES}
    assert sum(shares.values()) == pytest.approx(whole, rel=0.1)
    assert whole <= 7_000
    assert sum(value for name, value in shares.items() if " for " not in name) <= 1_800


async def test_a_cell_on_a_cluster_is_compared_with_a_plain_redis():
    result = await measured("cluster")
    for what in ("turns", "chunks", "CPU of Redis, a turn", "CPU of the worker, a chunk"):
        plain, cell = result.value(PLAIN, what), result.value(CLUSTER, what)
        assert result.value("the cell against plain Redis", what) == pytest.approx(cell / plain)


async def test_streams_are_measured_on_a_cluster_with_their_network():
    result, network = await measured("cells"), await measured("network")
    chunks, moved = result.value("3 nodes", "carried"), result.value("3 nodes", "network of Redis")
    each = sum(network.value("a chunk with one reader", what) for what in ("into Redis", "out of Redis"))
    assert moved * 1e6 == pytest.approx(chunks * each, rel=0.4)


async def test_turns_are_measured_with_encryption_and_without():
    result = await measured("turns")
    assert 0.5 < result.value(ENCRYPTED, ALL_CPU) < 3
    assert result.value("through one worker process", "turns") > 0
