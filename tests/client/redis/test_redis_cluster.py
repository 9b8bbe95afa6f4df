"""Cells on a Redis Cluster: each is a hash tag, whose node is found, followed and found again."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from support import forks
from support.clusters import Cluster
from support.ensemble import open_ensemble
from support.eventually import wait_until_async

from antiphon.client import AsyncClient
from antiphon.errors import SettingsError, StoreUnavailable, StoreUnsupported, UsageError
from antiphon.input.ids import cell_hash
from antiphon.redis import subscription as subscribe
from antiphon.redis.cells import open_cells
from antiphon.redis.deployment import list_workers
from antiphon.wire.connection import cluster as clusters
from antiphon.wire.connection.cluster import Topology, tags
from antiphon.wire.connection.open import cell_urls, open_redis
from antiphon.wire.keys import Keys

COMMAND = str(Path(sys.executable).with_name("antiphon"))
CELLS = 4
SESSIONS = [f"s{number}" for number in range(8)]

pytestmark = pytest.mark.main_path


@pytest.fixture
def impatient(monkeypatch):
    """Silence is noticed in a second, not in five: the tests need not wait for longer."""
    monkeypatch.setitem(open_redis.__kwdefaults__, "timeout_seconds", 1.0)
    monkeypatch.setattr(subscribe, "SILENCE_SECONDS", 1.0)


@contextlib.asynccontextmanager
async def workers(ensemble, **settings):
    async with contextlib.AsyncExitStack() as stack:
        for url in cell_urls(ensemble.url):
            await stack.enter_async_context(ensemble.worker(url=url, cells=ensemble.url, **settings))
        yield


@contextlib.asynccontextmanager
async def reader(ensemble, session):
    """A reader from the beginning, whose events are those that are kept, at the end."""
    seen = []

    async def read(see):
        async for event in ensemble.client.subscribe(session, 0):
            see(event.to_json())

    reading = asyncio.create_task(read(seen.append))
    try:
        yield
        kept = [event.to_json() for event in await ensemble.events(session)]
        await wait_until_async(
            lambda: len(seen) >= len(kept) or reading.done(), 20, "the reader has seen everything"
        )
        assert seen == kept
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def place_of(ensemble, session):
    return ensemble.client.connections.cell_of_session(session).redis.connection_pool.place


def keys_of(node):
    with Redis.from_url(node.url, decode_responses=True) as redis:
        return redis.keys("*")


async def test_turns_run_and_stream_in_every_cell_of_a_cluster(cluster, tmp_path):
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage") as ensemble, workers(ensemble):
        assert len({ensemble.client.connections.cell_of_session(name).name for name in SESSIONS}) == CELLS
        for name in SESSIONS:
            turn = await ensemble.submit(name, "Hi tool:note words:3")
            seen = [event.type async for event in turn.stream()]
            assert seen[-1] == "turn_finished"
            assert "text_delta" in seen
        await ensemble.whole(*SESSIONS)
        found = {row.session_id async for row in ensemble.client.sessions()}
        assert found == set(SESSIONS)
    keys = [key for node in cluster.nodes for key in keys_of(node)]
    assert all(keys_of(node) for node in cluster.nodes), "each node has a share"
    assert {key.split(":")[0] for key in keys} == {"ant", "rq"}
    assert {key.split(":")[1] for key in keys} == {f"{{{tag}}}" for tag in tags(CELLS)}


async def test_a_deployment_keeps_its_number_of_cells(cluster):
    async with AsyncClient(cluster.url(CELLS)) as client:
        await client.session("s").messages()
    async with AsyncClient(cluster.url(1)) as client:
        with pytest.raises(
            StoreUnsupported, match=f"was created with other cells than cells=1: write cells={CELLS} in its"
        ):
            await client.submit("s", "Hi", agent="a")


async def test_a_deployment_keeps_the_names_of_its_cells(cluster):
    named = f"{cluster.url(2)}&names=a,b"
    async with AsyncClient(named) as client:
        await client.submit("s", "Hi", agent="a")
        assert {cell.name for cell in client.connections.cells} == {"a", "b"}
    for url, given in ((cluster.url(2), "cells=2"), (f"{cluster.url(2)}&names=b,a", "cells=2&names=b,a")):
        async with AsyncClient(url) as client:
            with pytest.raises(
                StoreUnsupported, match=f"other cells than {given}: write cells=2&names=a,b in its URL"
            ):
                await client.submit("s", "Hi", agent="a")


@pytest.mark.parametrize("damage", [{"cells": "2"}, "", "two", b"2&names=\xff \x1b"])
async def test_a_damaged_number_of_cells_is_refused(cluster, damage):
    key = Keys("ant", clusters.FIRST_TAG).cells
    node = cluster.owner(key_slot(key.encode()))
    cluster.call(node, *(("HSET", key, "cells", "2") if isinstance(damage, dict) else ("SET", key, damage)))
    async with AsyncClient(cluster.url(2), retries=0) as client:
        with pytest.raises(StoreUnsupported, match=f"{re.escape(key)} contains .*: delete it"):
            await client.submit("s", "Hi", agent="a")
        cluster.call(node, "DEL", key)
        await client.submit("s", "Hi", agent="a")
    assert cluster.call(node, "GET", key) == b"2"


@pytest.mark.one_server
@pytest.mark.parametrize("names", ["", "&names=a,b,c,d"])
def test_a_part_of_a_cluster_leads_no_session_to_another_cell(names):
    whole, part = (open_cells(f"redis+cluster://h:1?cells=4{names}{cell}") for cell in ("", "&cell=1-2"))
    for session in (f"s{number}" for number in range(40)):
        home = whole.of_session(session)
        if home.name in {cell.name for cell in part}:
            assert part.of_session(session).name == home.name
        else:
            with pytest.raises(
                UsageError, match=f"lives on the cell {home.name}, which cell= in the Redis URL"
            ):
                part.of_session(session)


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        (
            "redis+cluster://h:1?cells=2,redis+cluster://i:1?cells=2",
            "cell-0 of h:1 and cell-0 of i:1 have the same",
        ),
        ("redis+cluster://h:1?cells=2&names=a", "the names of all 2 cells, in their order, not 1"),
        ("redis+cluster://h:1?cells=2&names=a,a", "must be different names"),
        ("redis+cluster://h:1?cells=2&names=", "must be different names"),
        ("redis+cluster://h:1?cells=2&names=a,%20", "must be different names"),
        ("redis://h:1?names=a,b", "only a cluster has several"),
        ("redis://h:1?names=a,redis://i:1?names=a", "h:1/0 and i:1/0 have the same name: a"),
    ],
)
def test_names_that_determine_no_cell_are_refused(url, wrong):
    with pytest.raises(SettingsError, match=wrong):
        open_cells(url)


@pytest.mark.one_server
def test_the_names_of_cells_determine_that_of_a_session_wherever_they_are():
    def chosen(*urls):
        cells = open_cells([*urls])
        return [cells.of_session(f"s{number}").name for number in range(50)]

    listed = chosen("redis://a:1", "redis://b:1")
    assert set(listed) == {"a:1/0", "b:1/0"}
    assert chosen("redis://x:1?names=b:1/0", "rediss://y:1?names=a:1/0&db=3") == listed
    assert chosen("redis+cluster://h:1?cells=2&names=a:1/0,b:1/0") == listed
    assert chosen("redis+sentinel://h:1/m/0?names=a:1/0", "unix:///x?names=b:1/0") == listed
    numbered = chosen("redis+cluster://h:1?cells=2")
    assert chosen("redis://x:1?names=cell-1", "redis://y:1?names=cell-0") == numbered
    assert numbered != [name.replace("a:1/0", "cell-0").replace("b:1/0", "cell-1") for name in listed]


async def test_the_cells_of_a_deployment_ask_the_cluster_once(cluster):
    before = times_asked(cluster)
    async with AsyncClient(cluster.url(CELLS)) as client:
        assert [row async for row in client.sessions()] == []
        assert 1 <= times_asked(cluster) - before <= 2


def times_asked(cluster: Cluster) -> int:
    counts = [cluster.call(node, "INFO", "commandstats") for node in cluster.nodes]
    return sum(
        count["cmdstat_cluster|slots"]["calls"] for count in counts if "cmdstat_cluster|slots" in count
    )


@pytest.mark.one_server
@pytest.mark.parametrize(
    "url", ["redis+cluster://h:1", "redis+cluster://h:1?cells=x", "redis+cluster://h:1?cells=0"]
)
def test_the_number_of_cells_must_be_given(url):
    with pytest.raises(
        SettingsError, match="cells= must be the number of cells of the deployment, 1 to 1024, as in"
    ):
        open_cells(url)


async def test_a_cluster_of_which_no_node_answers_is_said_to_be_away():
    async with AsyncClient("redis+cluster://127.0.0.1:1?cells=4", retries=0) as client:
        with pytest.raises(StoreUnavailable, match="no node of the cluster names the slots"):
            await client.snapshot("s")


@pytest.mark.one_server
async def test_a_cluster_that_is_away_is_asked_at_an_interval(monkeypatch):
    asked, topology = [], Topology("redis+cluster://127.0.0.1:1?cells=4", 4)
    ask = topology._ask

    async def noted():
        asked.append(1)
        await ask()

    monkeypatch.setattr(topology, "_ask", noted)
    monkeypatch.setattr(clusters, "ASK_INTERVAL_SECONDS", 1000.0)
    with pytest.raises(RedisConnectionError, match="no node of the cluster names the slots"):
        await topology.find(0)
    again = asyncio.create_task(topology.find(0))
    for _ in range(10):
        await asyncio.sleep(0)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    assert len(asked) == 1


@pytest.mark.one_server
def test_a_cluster_has_one_database():
    with pytest.raises(SettingsError, match="a cluster has database 0 only: use ANTIPHON_PREFIX"):
        open_cells("redis+cluster://h:1/3?cells=4")


@pytest.mark.one_server
def test_cells_divide_slots_and_sessions_evenly():
    cells = open_cells("redis+cluster://h:1?cells=64")
    places = [cell.redis.connection_pool.place for cell in cells]
    assert [place.slot * 64 // 16384 for place in places] == list(range(64))
    of = [cells.of_hash(cell_hash(f"session-{number}")).name for number in range(6400)]
    most = max(of.count(name) for name in set(of))
    assert len(set(of)) == 64
    assert most < 200


async def test_a_failover_is_followed_by_workers_and_readers(server_kind, impatient, tmp_path):
    with Cluster(server_kind, primaries=3, replicas=1) as cluster:
        async with (
            open_ensemble(cluster.url(CELLS), tmp_path / "stage") as ensemble,
            workers(ensemble, lease=2),
        ):
            async with reader(ensemble, "s"):
                await (await ensemble.submit("s", "before it")).result(60)
                turn = await ensemble.submit("s", "go on gate:g words:5")
                await ensemble.waits("g")
                slot = place_of(ensemble, "s").slot
                primary = cluster.owner(slot)
                await wait_until_async(
                    lambda: cluster.in_step(primary), 10, "its replica has all that was written"
                )
                primary.kill()
                await wait_until_async(
                    lambda: cluster.owner(slot) is not primary, 30, "its replica is the primary"
                )
                ensemble.stage.open("g")
                await turn.result(60)
                await (await ensemble.submit("s", "after it")).result(60)
            await ensemble.whole("s")


async def test_a_cell_moves_to_another_node_while_its_turns_stream(cluster, server_kind, tmp_path):
    if server_kind == "redis":
        pytest.skip("Redis moves slots key by key only.")
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage") as ensemble, workers(ensemble):
        async with reader(ensemble, "s"):
            await (await ensemble.submit("s", "before it")).result(60)
            turn = await ensemble.submit("s", "words:100 gate:g")
            await ensemble.seen("s", "text_delta", 3)
            slot = place_of(ensemble, "s").slot
            before = cluster.owner(slot)
            await cluster.move_at_once(slot)
            assert cluster.owner(slot) is not before
            ensemble.stage.open("g")
            await turn.result(60)
            await (await ensemble.submit("s", "after it")).result(60)
        await ensemble.whole("s")


async def test_a_cell_moves_key_by_key_and_pauses_in_the_meantime(cluster, tmp_path):
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage") as ensemble, workers(ensemble):
        async with reader(ensemble, "s"):
            await (await ensemble.submit("s", "before it")).result(60)
            turn = await ensemble.submit("s", "words:100 gate:g")
            await ensemble.seen("s", "text_delta", 3)
            place = place_of(ensemble, "s")
            before = cluster.owner(place.slot)
            async with cluster.moving_key_by_key(place.slot):
                with pytest.raises(StoreUnavailable):
                    await ensemble.submit("s", "in the meantime", key="once")
                ensemble.stage.open("g")
            assert cluster.owner(place.slot) is not before
            await turn.result(60)
            await (await ensemble.submit("s", "in the meantime", key="once")).result(60)
        await ensemble.whole("s")


@pytest.mark.lasting_keys("ant:*")
async def test_cells_are_listed_with_their_nodes(server_kind):
    with Cluster(server_kind, primaries=3) as cluster:
        await check_the_list(cluster)


async def check_the_list(cluster):
    async with AsyncClient(cluster.url(CELLS)) as client:
        for name in SESSIONS:
            await client.submit(name, "Hi", agent="a")
    found = forks.run([COMMAND, "cells", "--json", "--redis-url", cluster.url(CELLS)])
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert found.returncode == 0, found.stderr
    assert [row["name"] for row in rows] == [f"cell-{number}" for number in range(CELLS)]
    assert {row["node"] for row in rows} == {f"127.0.0.1:{node.port}" for node in cluster.nodes}
    assert sum(row["sessions"] for row in rows) == len(SESSIONS)
    cluster.nodes[0].kill()
    table = forks.run([COMMAND, "cells", "--redis-url", cluster.url(CELLS, seeds=2)])
    assert table.returncode == 1
    lost = sum(row["node"].endswith(f":{cluster.nodes[0].port}") for row in rows)
    assert lost > 0
    assert table.stdout.count("unreachable") == lost
    assert table.stdout.count("ready") == CELLS - lost


async def test_one_worker_process_serves_all_cells_and_dies_for_none_of_them(cluster, tmp_path, processes):
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage", processes) as ensemble:
        supervised = ensemble.supervisor(processes=2, lease=30)
        supervised.ready(2)
        assert len(supervised.workers) == 2
        held = {name: await ensemble.submit(name, f"Hi gate:{name} words:3") for name in SESSIONS}
        places = {name: await ensemble.waits(name) for name in SESSIONS}

        async def are_listed() -> bool:  # a worker notes itself in one cell after the other
            listed = await list_workers(ensemble.client.connections)
            pids = sorted(row.pid for row in listed)
            return (pids, sum(row.running for row in listed)) == (sorted(supervised.workers), len(SESSIONS))

        await wait_until_async(are_listed, 20, "both workers are listed with their turns")
        cells = forks.run([COMMAND, "cells", "--json", "--redis-url", ensemble.url])
        assert all(json.loads(line)["lag"] >= 0 for line in cells.stdout.splitlines())
        lost = places[SESSIONS[0]]
        os.kill(lost, signal.SIGKILL)
        for name, place in places.items():
            await ensemble.waits(name, 2 if place == lost else 1)
            ensemble.stage.open(name)
        for turn in held.values():
            await turn.result(60)
        await ensemble.whole(*SESSIONS)


async def test_a_process_runs_no_more_turns_in_all_its_cells_than_it_may(cluster, tmp_path, processes):
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage", processes) as ensemble:
        ensemble.supervisor(concurrency=CELLS).ready()
        turns = [await ensemble.submit(name, f"Hi gate:{name}") for name in SESSIONS]
        begun = lambda: ensemble.stage.notes("waits")  # noqa: E731
        await wait_until_async(lambda: len(begun()) == CELLS, 20, "as many turns run")
        rest = set(SESSIONS)
        while rest:
            names = await wait_until_async(
                lambda: [note["gate"] for note in begun() if note["gate"] in rest], 20, "a turn has begun"
            )
            rest.remove(name := names[0])
            ensemble.stage.open(name)
            await turns[SESSIONS.index(name)].result(60)
            running = sum(row.running for row in await list_workers(ensemble.client.connections))
            assert running <= CELLS
        await ensemble.whole(*SESSIONS)


async def test_a_process_serves_its_cells_while_a_node_is_away(server_kind, tmp_path, processes):
    with Cluster(server_kind, primaries=3) as cluster:
        await check_a_node_that_is_away(cluster, tmp_path, processes)


async def check_a_node_that_is_away(cluster, tmp_path, processes):
    async with open_ensemble(cluster.url(CELLS, seeds=2), tmp_path / "stage", processes) as ensemble:
        nodes = {name: cluster.owner(place_of(ensemble, name).slot) for name in SESSIONS}
        away = cluster.nodes[1]
        here = next(name for name, node in nodes.items() if node is not away)
        there = next(name for name, node in nodes.items() if node is away)
        away.kill()
        majority = lambda: cluster.call(cluster.nodes[0], "CLUSTER INFO")["cluster_state"] == "ok"  # noqa: E731
        ensemble.supervisor()
        await wait_until_async(majority, 20, "the others go on")
        await (await ensemble.submit(here, "Hi")).result(60)
        away.start()
        await wait_until_async(
            lambda: cluster.owner(place_of(ensemble, there).slot) is away, 20, "it is back"
        )
        await (await submitted(ensemble, there)).result(60)


async def submitted(ensemble, session):
    """A turn that is submitted again until its node takes it."""

    async def submit():
        with contextlib.suppress(StoreUnavailable):
            return await ensemble.submit(session, "Hi", key="once")

    return await wait_until_async(submit, 30, "the node takes turns")


@pytest.mark.one_server
def test_a_url_names_all_cells_or_some():
    def numbers(url):
        return [one.rpartition("&cell=")[2] for one in cell_urls(url)]

    assert numbers("redis+cluster://h:1?cells=4") == ["0", "1", "2", "3"]
    assert numbers("redis+cluster://h:1?cells=8&cell=2-4") == ["2", "3", "4"]
    assert cell_urls("redis+cluster://h:1?cell=3&cells=8") == ["redis+cluster://h:1?cells=8&cell=3"]
    for wrong in ("8", "2-8", "4-2", "x", "-1", "1-"):
        with pytest.raises(
            SettingsError, match="cell= must be the number of one of the 8 cells, from 0, or a range"
        ):
            cell_urls(f"redis+cluster://h:1?cells=8&cell={wrong}")
