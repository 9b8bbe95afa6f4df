"""Processes whose cell moves: isolated turns, schedules, batches, a supervisor's new workers, and RQ's own command."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis as AsyncRedis
from support.batched import working
from support.clusters import Cluster
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import wait_until_async

from antiphon.redis.moving import move_cells

pytestmark = [pytest.mark.main_path, pytest.mark.own_server, pytest.mark.lasting_keys("ant:*")]

RQ = Path(sys.executable).parent / "rq"


@pytest.fixture
def other(server_kind):
    """The URL of an empty cluster, where all keys have other names."""
    with Cluster(server_kind, primaries=2) as cluster:
        yield cluster.url(1)


async def move(source, target):
    (done,) = await move_cells(source, target, prefix="ant", say=lambda _: None)
    return done


async def test_an_isolated_turn_follows_and_a_later_one_runs_at_the_new_place(
    redis_url, other, processes, tmp_path
):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        ensemble.supervisor(lease=60, isolated_turns=1).ready()
        turn = await ensemble.suspect("s", "go on gate:g and on gate:h")
        process = await ensemble.waits("g")
        await move(redis_url, other)
        ensemble.stage.open("g")
        assert await ensemble.waits("h") == process
        ensemble.stage.open("h")
        await turn.result(60)
        assert await ensemble.field(turn, "run") == "1"
        later = await ensemble.suspect("t", "go on")
        await later.result(60)
        await ensemble.whole("s", "t")


async def test_a_schedule_runs_at_the_new_place(redis_url, other, processes, tmp_path):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        ensemble.supervisor(lease=60).ready()
        await ensemble.client.schedules("s").set("tick", "Hi", every=1, agent=agent_spec())
        await ensemble.seen("s", "turn_finished")
        await move(redis_url, other)
        before = sum(event.type == "turn_finished" for event in await ensemble.events("s"))
        await ensemble.seen("s", "turn_finished", before + 1)
        await ensemble.whole("s")


async def test_a_supervisor_gives_back_at_the_new_place_what_a_dead_worker_held(
    redis_url, other, processes, tmp_path
):
    """The lease is a minute: only the supervisor's word brings the turn back."""
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        supervised = ensemble.supervisor(lease=60)
        turn = await ensemble.submit("s", "go on gate:g")
        worker = await ensemble.waits("g")
        await move(redis_url, other)
        signal_process(worker, signal.SIGKILL)
        assert await ensemble.waits("g", 2) != worker
        ensemble.stage.open("g")
        await turn.result(40)
        await ensemble.whole("s")
        assert await asyncio.to_thread(supervised.process.terminate) == 0


async def test_a_batch_of_the_old_place_answers_at_the_new_one(redis_url, other):
    async with working(redis_url, "openai", quick=False) as (client, server):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        await move(redis_url, other)
        server.finish()
        assert (await turn.result(20)).text == "Hello."
        later = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: len(server.orders) == 2)
        server.finish()
        assert (await later.result(20)).text == "Hello."
    assert not server.usual


async def test_a_supervisor_starts_with_the_old_url_after_the_move(redis_url, other, processes, tmp_path):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        turn = await ensemble.submit("s", "Hi")
        await move(redis_url, other)
        ensemble.supervisor().ready()
        assert await turn.result(60)


async def a_turn_ends_at_the_new_place(ensemble, redis_url, other):
    turn = await ensemble.submit("s", "go on gate:g")
    await ensemble.waits("g")
    await move(redis_url, other)
    ensemble.stage.open("g")
    await turn.result(60)
    assert await ensemble.field(turn, "run") == "1"


async def test_rqs_command_with_the_class_of_this_project_follows(redis_url, other, processes, tmp_path):
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        worker = processes.start(
            RQ, "worker", "-u", redis_url, "--worker-class", "antiphon_worker.rq.Worker", "antiphon",
            env=ensemble.stage.env,
        )  # fmt: skip
        await a_turn_ends_at_the_new_place(ensemble, redis_url, other)
        await (await ensemble.submit("s", "Again")).result(60)
        await ensemble.whole("s")
        assert await asyncio.to_thread(worker.terminate) == 0, worker.output


async def test_rqs_own_worker_ends_its_turn_at_the_new_place_and_then_waits_at_the_old_one(
    redis_url, other, processes, tmp_path
):
    """Also one that starts there after the move. Neither takes a turn of the new place, and ours does."""
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        stock = [RQ, "worker", "-u", redis_url, "--serializer", "json", "antiphon"]
        workers = [processes.start(*stock, env=ensemble.stage.env)]
        await a_turn_ends_at_the_new_place(ensemble, redis_url, other)
        workers.append(processes.start(*stock, env=ensemble.stage.env))
        async with AsyncRedis.from_url(redis_url) as old:

            async def both_wait_there():
                return sum(one["cmd"] == "blmove" for one in await old.client_list()) == 2

            await wait_until_async(both_wait_there, 60, "both workers wait at the old place")
            later = await ensemble.submit("s", "Again")
            assert (await later.status(), await both_wait_there()) == ("queued", True)
        async with ensemble.worker():
            await later.result(60)
        await ensemble.whole("s")
        for worker in workers:
            assert worker.running
            assert "Traceback" not in worker.output
            assert await asyncio.to_thread(worker.terminate) == 0, worker.output
