"""Alerts fire for what has happened: the rules, their cases, and what processes export without workers."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from redis import Redis
from support.eventually import wait_until, wait_until_async
from support.here import running_worker
from support.network import free_port
from support.processes import COMMAND
from support.prometheus import ALERTS, RULES, firing, get, needs_promtool, promtool, samples
from support.servers import RedisServer
from support.stage import Stage, make_app

from antiphon.client import AsyncClient, Client
from antiphon.metrics import MOST_QUEUES, OTHERS, CellMetrics, families
from antiphon.redis.deployment import CellState, cell_states, no_turns_because
from antiphon.status import WriteCheck
from antiphon.wire.lists.workers import QueueRow

CASES = RULES.with_name("alerts_test.yml")
FULL = {"maxmemory": "100mb", "maxmemory-policy": "noeviction"}


@needs_promtool
def test_the_rules_do_what_their_cases_say():
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_configuration():
    done = promtool("check", "config", RULES.with_name("prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_one_case_and_is_silent_in_another():
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    told = {(case["alertname"], bool(case["exp_alerts"])) for case in cases}
    assert told == {(alert["alert"], fires) for alert in ALERTS for fires in (True, False)}


def exported(*urls: str, prefix: str = "ant") -> str:
    registry = CollectorRegistry()
    registry.register(CellMetrics(urls, prefix))
    return generate_latest(registry).decode()


@needs_promtool
@pytest.mark.main_path
@pytest.mark.one_server
def test_when_the_last_worker_is_gone_a_gateway_raises_the_alarm(redis_url, processes, tmp_path):
    port, stage = free_port(), Stage(tmp_path / "stage")
    gateway = processes.start(
        COMMAND, "serve", "--redis-url", redis_url, "--port", "0", "--status-port", str(port), name="serve"
    )
    gateway.wait_for_output("/live")
    worker = processes.worker(redis_url, env=stage.env)
    worker.wait_for_output("takes turns")
    with Client(redis_url) as client:
        assert client.submit("s", "Hello", agent="stage").result(30).text
        assert firing(get(port, "/metrics")[1], tmp_path) == set()
        worker.terminate()
        worker.wait()
        turn = client.submit("s", "Hello", agent="stage")
        text = get(port, "/metrics")[1]
        assert firing(text, tmp_path) == {"AntiphonNoWorkers", "AntiphonQueueNotServed"}
        assert get(port, "/ready") == (200, "ok\n"), "it takes turns, which wait for a worker"
        turn.cancel()
    found = samples(text)
    assert any(name.startswith("antiphon_build_info{") for name in found)
    assert found['process_resident_memory_bytes{process="gateway"}'] > 1e6


@contextmanager
def full(server_kind):
    with RedisServer(server_kind, config=FULL) as server:
        with Redis.from_url(server.url) as redis:
            redis.config_set("maxmemory", "1")
        yield server.url


@contextmanager
def read_only(server_kind):
    with RedisServer(server_kind) as primary, RedisServer(server_kind, replica_of=primary) as replica:
        yield replica.url


@contextmanager
def without_disk(server_kind):
    """It could not save a snapshot, and refuses writes until it can."""
    with RedisServer(server_kind, config={"save": "3600 1"}) as server:
        with Redis.from_url(server.url) as redis:
            (server.data_dir / "dump.rdb").mkdir()
            redis.set("a", "b")
            redis.bgsave()
            wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", 20)
        yield server.url


@contextmanager
def frozen(server_kind):
    with RedisServer(server_kind) as server:
        server.freeze()
        yield server.url
        server.thaw()


@contextmanager
def gone(server_kind):
    yield f"redis://127.0.0.1:{free_port()}/0"


REFUSING = {
    full: "AntiphonRedisRefusesWrites",
    read_only: "AntiphonRedisRefusesWrites",
    without_disk: "AntiphonRedisRefusesWrites",
    frozen: "AntiphonRedisDown",
    gone: "AntiphonRedisDown",
}


@needs_promtool
@pytest.mark.parametrize("harm", REFUSING, ids=lambda harm: harm.__name__)
def test_a_cell_that_takes_no_turns_is_seen_beside_one_that_does(harm, redis_url, server_kind, tmp_path):
    with harm(server_kind) as harmed:
        fired = firing(exported(redis_url, harmed), tmp_path)
        assert REFUSING[harm] in fired
        assert not {*REFUSING.values()} - {REFUSING[harm]} & fired
        ready, unready = WriteCheck([redis_url, harmed], "ant"), WriteCheck([harmed], "ant")
        assert ready() == "", "the sessions of the other cell go on"
        assert unready() != ""
    with Redis.from_url(redis_url) as redis:
        assert redis.keys() == [], "the check has left nothing"


@pytest.mark.one_server
@pytest.mark.parametrize("verb", ["serve", "worker"])
def test_a_process_whose_redis_is_full_is_alive_and_not_ready(server_kind, processes, tmp_path, verb):
    port = free_port()
    flags = ["--port", "0"] if verb == "serve" else []
    with RedisServer(server_kind, config=FULL) as server, Redis.from_url(server.url) as redis:
        processes.start(
            COMMAND, verb, "--redis-url", server.url, "--status-port", str(port), *flags, name=verb,
            env=Stage(tmp_path).env,
        ).wait_for_output("status on port")  # fmt: skip
        wait_until(lambda: get(port, "/ready") == (200, "ok\n"), 20)
        redis.config_set("maxmemory", "1")
        wait_until(lambda: get(port, "/ready")[0] == 503, 20)
        assert "no memory left" in get(port, "/ready")[1]
        assert get(port, "/health") == (200, "ok\n")
        redis.config_set("maxmemory", "100mb")
        wait_until(lambda: get(port, "/ready")[0] == 200, 20)


@pytest.mark.one_server
async def test_the_check_of_writes_changes_nothing_and_is_not_made_for_each_request(
    redis_url, tmp_path, monkeypatch
):
    async with running_worker(redis_url, make_app(Stage(tmp_path))), AsyncClient(redis_url) as client:
        assert (await (await client.submit("s", "Hello", agent="stage")).result(30)).text
    with Redis.from_url(redis_url) as redis:
        before = redis.get("ant:fence")
        assert before is not None
        assert await no_turns_because([redis_url], "ant") == ""
        assert redis.get("ant:fence") == before
        redis.config_resetstat()
        monkeypatch.setattr("antiphon.status.CHECKED_SECONDS", float("inf"))
        check = WriteCheck([redis_url], "ant")
        assert await asyncio.to_thread(lambda: [check() for _ in range(50)]) == [""] * 50
        assert redis.info("commandstats")["cmdstat_setrange"]["calls"] == 1


@needs_promtool
@pytest.mark.one_server
async def test_a_model_service_that_is_down_is_seen_while_its_turns_are_retried(redis_url, tmp_path):
    """No turn stands in the queue then, so that its oldest has not waited at all."""
    app = make_app(Stage(tmp_path))
    async with running_worker(redis_url, app, retry_delay=30.0), AsyncClient(redis_url) as client:
        (cell,) = client.connections.cells
        turn = await client.submit("s", "fail:broken", agent="stage")
        delayed = await client.submit("other", "Hello", agent="stage", delay=60)
        key = cell.keys.turn(turn.id)
        with Redis.from_url(redis_url) as redis:
            await wait_until_async(lambda: redis.hget(key, "status") == b"retrying", 20)
        step, _, since = (await cell.redis.hget(key, "failing")).decode().partition(" ")
        await cell.redis.hset(key, "failing", f"{step} {int(since) - 600_000}")
        text = await asyncio.to_thread(exported, redis_url)
        for one in (turn, delayed):
            await one.cancel()
    found = samples(text)
    label = re.search(r'antiphon_queue_depth(\{.*queue="antiphon"\})', text)[1]
    assert found[f"antiphon_queue_oldest_seconds{label}"] == 0
    assert found[f"antiphon_queue_retrying_seconds{label}"] >= 600
    assert firing(text, tmp_path) == {"AntiphonTurnsRetry"}


@pytest.mark.one_server
async def test_a_model_service_that_is_down_is_seen_while_its_turn_runs_again(redis_url, tmp_path):
    """A service that answers late is asked for most of the time: the turn is seldom between two attempts."""
    stage = Stage(tmp_path)
    async with running_worker(redis_url, make_app(stage), retry_delay=0.01), AsyncClient(redis_url) as client:
        turn = await client.submit("s", "fail:broken*1 gate:held", agent="stage")
        await wait_until_async(lambda: stage.notes("waits", gate="held"), 20)
        (state,) = await cell_states([redis_url], "ant")
        (queue,) = [one for one in state.queues if one.name == "antiphon"]
        assert (queue.running, queue.oldest_seconds) == (1, None)
        assert queue.retrying_seconds is not None
        stage.open("held")
        assert (await turn.result(30)).text
        after = await client.submit("s", "tool:note gate:later", agent="stage")
        await wait_until_async(lambda: stage.notes("waits", gate="later"), 20)
        (state,) = await cell_states([redis_url], "ant")
        assert [one.retrying_seconds for one in state.queues] == [None], "a turn that was never retried"
        stage.open("later")
        assert (await after.result(30)).text


@pytest.mark.one_server
async def test_workers_of_others_in_the_same_redis_are_none_of_ours(redis_url, tmp_path):
    """RQ's own, and those of a deployment with another prefix, run no turns of this one."""
    with Redis.from_url(redis_url) as redis:
        redis.sadd("rq:workers", "rq:worker:plain")
        redis.hset(
            "rq:worker:plain",
            mapping={"birth": "2026-01-01T00:00:00Z", "queues": "default", "version": "2.0"},
        )
        redis.expire("rq:worker:plain", 60)
        async with running_worker(redis_url, make_app(Stage(tmp_path)), prefix="other"):
            await wait_until_async(lambda: redis.scard("rq:workers") == 2)
            (other,) = await cell_states([redis_url], "other")
            (ours,) = await cell_states([redis_url], "ant")
    assert (len(other.workers), len(ours.workers)) == (1, 0)


async def test_a_cell_is_named_by_its_address_without_its_password(redis_url):
    (state,) = await cell_states([redis_url.replace("redis://", "redis://user:geheim@")], "ant")
    (same,) = await cell_states([redis_url], "ant")
    assert state.name == same.name == redis_url.removeprefix("redis://")


def rows(number: int, workers: int, queued: int = 1) -> list[QueueRow]:
    return [
        QueueRow(f"w{workers}-{one}", queued, 0, 0, 0, 0, workers, oldest_seconds=float(one))
        for one in range(number)
    ]


@pytest.mark.parametrize(
    ("served", "alone"), [(0, 500), (500, 0), (500, 500), (40, 500), (500, 40), (60, 60), (50, 51), (10, 10)]
)
def test_of_too_many_queues_those_without_workers_are_kept(served, alone):
    queues = [*rows(served, 2), *rows(alone, 0), QueueRow("longest", 99, 0, 0, 0, 0, 0)]
    (depth,) = [
        family
        for family in families([CellState("a", queues=queues)])
        if family.name == "antiphon_queue_depth"
    ]
    names = [sample.labels["queue"] for sample in depth.samples]
    assert len(names) == len(set(names)) == min(len(queues), MOST_QUEUES)
    assert "longest" in names
    assert sum(sample.value for sample in depth.samples) == sum(queue.queued for queue in queues)
    for number, kind in ((served, "w2"), (alone + 1, "w0")):
        kept = sum(name.startswith(kind) for name in names) + (kind == "w0")
        assert kept >= min(number, MOST_QUEUES // 2 - 1)
    assert (OTHERS in names) == (len(queues) > MOST_QUEUES)


@needs_promtool
def test_a_queue_without_workers_among_too_many_raises_the_alarm(tmp_path):
    """Whoever submits may name any queue: neither that hides queues, nor that one is not shown."""
    registry = CollectorRegistry()

    class Many(CellMetrics):
        def collect(self):
            queues = [*rows(500, 2), *rows(500, 0)]
            return families([CellState("a", up=True, writable=True, queues=queues)])

    registry.register(Many([], "ant"))
    text = generate_latest(registry).decode()
    assert "AntiphonQueueNotServed" in firing(text, tmp_path)
    assert f'queue="{OTHERS}"' in text
