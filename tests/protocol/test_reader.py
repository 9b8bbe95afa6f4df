"""A reader and submitter in another language: the package of client/node, on plain Node without any other package."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer
from support.ensemble import agent_spec, open_ensemble
from support.eventually import wait_until_async

from antiphon.errors import StreamGap
from antiphon.redis.cells import open_cells
from antiphon.wire.keys import Keys, rq_key
from antiphon_worker.process import consumer

HERE = Path(__file__).parent
READER = HERE / "reader.mjs"
VECTORS = HERE / "vectors.json"
NODE = shutil.which("node")
OPTIONS = json.dumps({"agent": msgspec.to_builtins(agent_spec())})

pytestmark = [
    pytest.mark.main_path,
    pytest.mark.skipif(NODE is None, reason="node is not installed: no other language to try it in"),
]


def run_vectors(path):
    """What the reader made of the vectors."""
    done = subprocess.run([NODE, READER, "vectors", path], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_another_language_gives_what_the_vectors_say():
    rows = run_vectors(VECTORS)
    assert [row for row in rows if not row["ok"]] == []
    wanted = json.loads(VECTORS.read_text())
    del wanted["about"]
    assert {(row["kind"], row.get("name")) for row in rows} == {
        (kind, vector.get("name")) for kind, vectors in wanted.items() for vector in vectors
    }


def test_another_language_notices_vectors_that_are_wrong(tmp_path):
    wrong = json.loads(VECTORS.read_text())
    wrong["names"][0]["expect"]["bell"] += "s"
    wrong["cells"][1]["sessions"][0][2] = "redis-a:6379/0"
    wrong["events"][0]["expect"]["position"] = 1
    wrong["following"][0]["delivered"][0][1] -= 1
    wrong["following"][-1]["gap"] = True
    wrong["past"][0]["expect"]["kept"] += 1
    wrong["cursors"][-1]["cursor"] += 1
    wrong["messages"][0]["expect"]["text"] += "!"
    wrong["responses"][0]["expect"]["input_tokens"] += 1
    wrong["jobs"][0]["accepted"]["text"] += "!"
    wrong["keys"][0]["turn"] += "0"
    wrong["submissions"][0]["command"][-1] += "0"
    wrong["defaults"][0]["fields"]["position"] = 1
    wrong["outcomes"][0]["expect"]["status"] = "queued"
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    noticed = [row["kind"] for row in run_vectors(tmp_path / "wrong.json") if not row["ok"]]
    assert sorted(noticed) == sorted(["following", *json.loads(VECTORS.read_text()).keys() - {"about"}])


class Reader:
    """The reader as a process, and the lines that it has printed so far."""

    def __init__(self, processes, *arguments):
        self._process = processes.start(NODE, READER, *arguments)

    def printed(self, name):
        whole = self._process.output.rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line[name] for line in lines if name in line]

    async def prints(self, name, many=1):
        return await wait_until_async(
            lambda: (found := self.printed(name)) and len(found) >= many and found, 20, f"it prints {name}"
        )

    async def end(self):
        assert await asyncio.to_thread(self._process.wait, 30) == 0, self._process.output


async def test_it_submits_follows_over_killed_connections_and_reads_the_result(
    redis_url, tmp_path, processes, proxy
):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker():
        text = "go on words:20 gate:one words:20 tool:note gate:two words:20"
        reader = Reader(processes, "run", proxy.url, "s", text, OPTIONS)
        await ensemble.waits("one")
        await reader.prints("event", 3)
        proxy.cut()
        ensemble.stage.open("one")
        await ensemble.waits("two")
        with Redis.from_url(redis_url) as redis:
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        proxy.refuse()
        ensemble.stage.open("two")
        await ensemble.seen("s", "turn_finished")
        proxy.heal()
        await reader.end()
        events = [msgspec.to_builtins(event) for event in await ensemble.events("s")]
        assert [event["seq"] for event in reader.printed("event")] == [event["seq"] for event in events]
        assert reader.printed("event")[-1]["type"] == "turn_finished"
        turn = await ensemble.client.turn(reader.printed("submitted")[0])
        result, response = reader.printed("result")[0], await turn.result(1)
        assert (result["status"], result["response"]["text"]) == ("finished", response.text)
        assert [(one["role"], one["text"]) for one in reader.printed("history")[0]] == await ensemble.texts(
            "s"
        )
        assert reader.printed("cursor") == [0, len(events)]
        await ensemble.whole("s")


async def test_a_bell_that_is_rung_by_hand_wakes_an_idle_worker(redis_url, tmp_path, processes, monkeypatch):
    """The worker would look by itself after hours."""
    monkeypatch.setattr(consumer, "BELL_SECONDS", 3600)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker(lease=4 * 3600):
        with Redis.from_url(redis_url) as redis:
            await wait_until_async(lambda: redis.info("clients")["blocked_clients"] == 1)
        reader = Reader(processes, "run", redis_url, "s", "hello", OPTIONS)
        await reader.end()
        assert reader.printed("result")[0]["status"] == "finished"


async def test_rqs_tools_know_a_job_that_was_pushed_by_hand(ensemble, redis_url, processes):
    reader = Reader(processes, "run", redis_url, "s", "hello", OPTIONS)
    [turn] = await reader.prints("submitted")
    with Redis.from_url(redis_url) as redis:
        job = Job.fetch(turn, connection=redis, serializer=JSONSerializer)
        assert (job.get_status(), job.func_name, job.args[:2]) == (
            "queued", "antiphon_worker.jobs.run_turn", ["s", "hello"],
        )  # fmt: skip
        assert redis.lrange("rq:queue:antiphon", 0, -1) == [turn.encode()]
    async with ensemble.worker():
        await reader.end()
    assert reader.printed("result")[0]["status"] == "finished"


async def test_it_finds_the_reason_of_a_refused_job_and_of_a_failed_turn(ensemble, redis_url, processes):
    async with ensemble.worker():
        refused = Reader(processes, "run", redis_url, "s", "hello", '{"agent": {"provider": "stage"}}')
        failed = Reader(processes, "run", redis_url, "t", "hello fail:rejected", OPTIONS)
        await refused.end()
        await failed.end()
        assert "model" in refused.printed("refused")[0]
        result = failed.printed("result")[0]
        assert (result["status"], result["error_code"]) == ("failed", "provider_rejected")
        assert "The stage refuses" in result["error"]


async def test_a_reader_that_comes_late_sees_all_of_the_running_turn(ensemble, redis_url, processes):
    async with ensemble.worker():
        await (await ensemble.submit("s", "first")).result(60)
        turn = await ensemble.submit("s", "second words:5 gate:g words:5")
        await ensemble.waits("g")
        reader = Reader(processes, "follow", redis_url, "s")
        await reader.prints("event")
        ensemble.stage.open("g")
        await turn.result(60)
        await reader.end()
        events = await ensemble.events("s")
        first = int(await ensemble.field(turn, "first_seq"))
        assert reader.printed("cursor") == [first - 1]
        assert [event["seq"] for event in reader.printed("event")] == [
            e.seq for e in events if e.seq >= first
        ]
        assert reader.printed("event")[0]["type"] == "turn_started"
        assert len(reader.printed("history")[0]) == 2


async def test_both_readers_notice_that_a_session_began_anew(ensemble, redis_url, processes):
    async with ensemble.worker():
        await (await ensemble.submit("s", "one words:20")).result(60)
        last = (await ensemble.events("s"))[-1].seq
        ours = aiter(ensemble.client.subscribe("s", last))
        coming = asyncio.ensure_future(anext(ours))
        reader = Reader(processes, "follow", redis_url, "s", str(last))
        await reader.prints("cursor")
        with Redis.from_url(redis_url) as redis:
            await wait_until_async(lambda: redis.pubsub_numsub("ant:live:0:s")[0][1] == 2)
            await ensemble.client.session("s").delete()
            await (await ensemble.submit("s", "anew")).result(60)
            assert int(redis.hget("ant:session:s", "first")) > last
        with pytest.raises(StreamGap):
            await coming
        await reader.end()
        assert reader.printed("gap") != []


@pytest.mark.parametrize("knows", ["works for all cells", "works for one of them"])
async def test_a_job_on_the_wrong_cell_is_refused_visibly(knows, redis_url, tmp_path, processes):
    """Its session's readers look on another cell; and whoever has its id alone finds the cell by that."""
    urls = [redis_url, redis_url.removesuffix("/0") + "/1"]
    home = open_cells(urls).of_session("s").database
    url, other = urls[home], urls[1 - home]
    all_cells = ",".join(urls)
    settings = (
        {"redis_url": all_cells}
        if knows == "works for all cells"
        else {"redis_url": other, "cells": all_cells}
    )
    async with (
        open_ensemble(redis_url, tmp_path / "stage") as ensemble,
        ensemble.worker(url=url, redis_url=all_cells),
        ensemble.worker(url=other, **settings),
    ):
        wrong = Reader(processes, "run", other, "s", "hello", OPTIONS)
        right = Reader(processes, "run", url, "s", "hello", OPTIONS)
        await wrong.end()
        await right.end()
        assert f"lives on the cell 127.0.0.1:{url.rpartition(':')[2]}" in wrong.printed("refused")[0]
        assert right.printed("result")[0]["status"] == "finished"
        with Redis.from_url(url) as redis, Redis.from_url(other) as elsewhere:
            assert elsewhere.keys(Keys().session("*")) == []
            call = ["antiphon_worker.jobs.run_turn", None, ["s", "hello", json.loads(OPTIONS)], {}]
            redis.hset(rq_key("rq_job", "nobody-finds-me"), "data", json.dumps(call))
            redis.rpush(rq_key("rq_queue", "antiphon"), "nobody-finds-me")
            await wait_until_async(lambda: redis.zscore(rq_key("rq_failed", "antiphon"), "nobody-finds-me"))
            assert b"must begin with '043a718774'" in redis.hget(
                rq_key("rq_job", "nobody-finds-me"), "exc_info"
            )
