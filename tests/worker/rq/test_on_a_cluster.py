"""RQ's own commands and workers on a cell of a Redis Cluster."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from redis import Redis
from rq import defaults
from support import forks
from support.ensemble import open_ensemble

from antiphon.errors import ProviderRejected, SettingsError
from antiphon.wire.connection.cluster import tags
from antiphon.wire.connection.open import url_like
from antiphon_worker.rq import CellConnection

RQ = Path(sys.executable).parent / "rq"
ANTIPHON = str(RQ.with_name("antiphon"))
CELLS = 4
CLASS = ("--connection-class", "antiphon_worker.rq.CellConnection")
OURS = ("--worker-class", "antiphon_worker.rq.Worker")
QUEUE = "antiphon"


class OnACell:
    """RQ's commands on the cell of a session."""

    def __init__(self, ensemble, processes, session: str) -> None:
        self.cell = ensemble.client.connections.cell_of_session(session)
        self.place = self.cell.redis.connection_pool.place
        self._ensemble, self._processes = ensemble, processes

    async def rq(self, *arguments: str) -> str:
        """Run one of RQ's commands to its end and give what it prints."""
        env = {
            **self._ensemble.stage.env, "RQ_REDIS_URL": self._ensemble.url, "RQ_KEY_PREFIX": self.cell.keys.rq,
            "ANTIPHON_REDIS_URL": self._ensemble.url, "TEST_FORKS": "no",  # RQ reads its prefix when it is imported
        }  # fmt: skip
        process = self._processes.start(RQ, arguments[0], *CLASS, *arguments[1:], env=env)
        assert await asyncio.to_thread(process.wait, 40) == 0, process.output
        return process.output


@pytest.mark.main_path
@pytest.mark.parametrize("kind", ["ours", "stock"])
async def test_rqs_commands_and_workers_serve_a_cell(kind, cluster, tmp_path, processes):
    worker = OURS if kind == "ours" else ("--serializer", "json")
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage") as ensemble:
        cell = OnACell(ensemble, processes, "s")
        turn = await ensemble.submit("s", "at first not fail:rejected*1")
        assert f"queue {QUEUE} 1, 0 executing, 0 finished, 0 failed" in await cell.rq("info", "--raw")
        await cell.rq("worker", "--burst", *worker, QUEUE)
        with pytest.raises(ProviderRejected):
            await turn.result(1)
        assert f"queue {QUEUE} 0, 0 executing, 0 finished, 1 failed" in await cell.rq("info", "--raw")
        await cell.rq("requeue", "--serializer", "json", "--queue", QUEUE, "--all")
        await cell.rq("worker", "--burst", *worker, QUEUE)
        assert (await turn.result(1)).text
        assert await ensemble.field(turn, "run") == "2"
        assert f"queue {QUEUE} 0, 0 executing, 1 finished, 0 failed" in await cell.rq("info", "--raw")
        await ensemble.whole("s")
    keys = [key for node in cluster.nodes for key in keys_of(node)]
    assert {key.split(":")[1] for key in keys if key.startswith("rq:")} == {f"{{{cell.place.tag}}}"}


def keys_of(node) -> list[str]:
    with Redis.from_url(node.url, decode_responses=True) as redis:
        return redis.keys("*")


@pytest.mark.main_path
async def test_rq_suspends_and_empties_a_cell(cluster, tmp_path, processes):
    async with open_ensemble(cluster.url(CELLS), tmp_path / "stage") as ensemble:
        cell = OnACell(ensemble, processes, "s")
        await ensemble.submit("s", "Hi")
        await cell.rq("suspend")
        assert (await cell.cell.claim("w", "t", lease_ms=1000, limit=1, queues=[QUEUE])).suspended
        await cell.rq("resume")
        assert f"1 jobs removed from {QUEUE} queue" in await cell.rq("empty", "--serializer", "json", QUEUE)


@pytest.mark.main_path
def test_the_connection_follows_its_slot(cluster, server_kind, monkeypatch):
    tag = tags(CELLS)[1]
    monkeypatch.setattr(defaults, "RQ_KEY_PREFIX", f"rq:{{{tag}}}")
    with CellConnection.from_url(cluster.url(CELLS)) as redis:
        slot = redis.connection_pool.make_connection().place.slot
        redis.set(f"rq:{{{tag}}}:probe", "there", ex=60)
        before = cluster.owner(slot)
        cluster.move_all(slot)
        assert cluster.owner(slot) is not before
        pipe = redis.pipeline()
        pipe.get(f"rq:{{{tag}}}:probe")
        pipe.expire(f"rq:{{{tag}}}:probe", 60)
        assert pipe.execute() == [b"there", True]
        assert url_like(redis) == redis.cell_url == f"{cluster.url(CELLS)}&cell=1"


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("url", "prefix", "said"),
    [
        ("redis+cluster://h:1?cells=4", "rq", "RQ_KEY_PREFIX must be the rq_prefix of a cell"),
        ("redis+cluster://h:1?cells=4", "rq:{99}", "not 'rq:{99}'"),
        (
            "redis+cluster://h:1?cells=4&cell=1",
            f"rq:{{{tags(4)[0]}}}",
            "names cell 1, and RQ_KEY_PREFIX names cell 0",
        ),
        ("redis+cluster://h:1", "rq:{0}", "cells= must be the number of cells of the deployment"),
        ("redis://h:1", "rq:{0}", "CellConnection needs the URL of a cluster"),
        ("redis+cluster://h:1?cells=4", "", "it needs RQ 3"),
    ],
)
def test_a_wrong_cell_is_refused(url, prefix, said, monkeypatch):
    monkeypatch.setattr(defaults, "RQ_KEY_PREFIX", prefix)
    with pytest.raises(SettingsError) as refused:
        CellConnection.from_url(url)
    assert said in str(refused.value)


@pytest.mark.lasting_keys("ant:*")
async def test_the_prefix_of_each_cell_is_listed(cluster):
    found = forks.run([ANTIPHON, "cells", "--json", "--redis-url", cluster.url(CELLS)])
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [row["rq_prefix"] for row in rows] == [f"rq:{{{tag}}}" for tag in tags(CELLS)]
