"""RQ's own tools on our turns: they see them, run them, change them, and what they break is put right."""

import asyncio
import os
import resource
import signal
import sys
import zlib
from pathlib import Path

import msgspec
import pytest
from redis import Redis
from rq import Queue
from rq.command import send_shutdown_command, send_stop_job_command
from rq.job import Job
from rq.registry import DeferredJobRegistry, FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.worker import Worker as RQWorker
from support.ensemble import agent_spec, open_ensemble, signal_process
from support.eventually import wait_until_async

from antiphon.errors import ProviderRejected, TurnCancelled
from antiphon.input.request import WAITS, AgentSpec
from antiphon_demo.modelserver import ModelServer

RQ = Path(sys.executable).parent / "rq"
RUN_TURN = "antiphon_worker.jobs.run_turn"


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url) as redis:
        yield redis
        assert redis.zrange("rq:wip:antiphon", 0, -1) == [], "RQ still counts a job as running"


def rq(processes, redis_url, *arguments, env=None):
    """Run one of RQ's commands to its end and give what it prints."""
    process = processes.start(RQ, arguments[0], "-u", redis_url, *arguments[1:], env=env)
    assert process.wait(30) == 0, process.output
    return process.output


def stock_worker(processes, ensemble, *arguments, url=None, serializer="json"):
    """RQ's own worker on our queue."""
    return processes.start(
        RQ, "worker", "-u", url or ensemble.url, "--serializer", serializer, *arguments, "antiphon",
        env={**ensemble.stage.env, "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"},
    )  # fmt: skip


async def look_now(ensemble, session):
    """Let the reaper's next look at this session be due."""
    cell = ensemble.client.connections.cell_of_session(session)
    await cell.redis.zadd(cell.keys.active, {session: 0})


def job_of(redis, turn):
    return Job.fetch(turn.id, connection=redis, serializer=JSONSerializer)


@pytest.mark.main_path
@pytest.mark.parametrize("kind", ["rq.Worker", "rq.worker.SimpleWorker"])
async def test_a_stock_worker_runs_turns_in_order(kind, redis, ensemble, processes):
    turns = [await ensemble.submit(f"s{i % 2}", f"turn {i}") for i in range(4)]
    failing = await ensemble.submit("f", "turn fail:rejected")
    worker = stock_worker(processes, ensemble, "--burst", "--worker-class", kind)
    assert await asyncio.to_thread(worker.wait, 40) == 0
    for turn in turns:
        assert (await turn.result(1)).text
        assert job_of(redis, turn).get_status() == "finished"
    with pytest.raises(ProviderRejected, match="The stage refuses"):
        await failing.result(1)
    assert job_of(redis, failing).get_status() == "failed"
    await ensemble.whole("s0", "s1", "f")
    queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
    assert set(FinishedJobRegistry(queue=queue).get_job_ids()) == {turn.id for turn in turns}
    assert FailedJobRegistry(queue=queue).get_job_ids() == [failing.id]
    assert redis.ttl(f"rq:job:{failing.id}") > 6 * 86400
    assert all(0 < redis.ttl(f"rq:job:{turn.id}") <= 3600 for turn in turns)


@pytest.mark.parametrize("kind", ["rq.Worker", "rq.worker.SimpleWorker"])
async def test_a_stock_worker_leaves_a_turn_that_waits_and_takes_it_up_again(
    kind, redis, redis_url, tmp_path, processes
):
    async def burst():
        worker = stock_worker(processes, ensemble, "--burst", "--worker-class", kind)
        assert await asyncio.to_thread(worker.wait, 40) == 0

    agent = agent_spec(approval=["pay"], version=WAITS)
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        turn = await ensemble.submit("s", "buy tool:note tool:pay", agent=agent)
        tried_again = await ensemble.submit("r", "later fail:broken*1")
        await burst()
        assert (await turn.status(), await tried_again.status()) == ("suspended", "retrying")
        assert job_of(redis, turn).get_status() == "deferred"
        assert job_of(redis, tried_again).get_status() == "scheduled"
        queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
        assert DeferredJobRegistry(queue=queue).get_job_ids() == [turn.id]
        assert FinishedJobRegistry(queue=queue).get_job_ids() == []
        assert {redis.ttl(f"rq:job:{one.id}") for one in (turn, tried_again)} == {-1}
        (call,) = (await turn.info()).calls
        await turn.approve(call.call_id, by="ada")
        assert job_of(redis, turn).get_status() == "queued"
        await burst()
        assert (await turn.result(1)).text
        assert job_of(redis, turn).get_status() == "finished"
        assert [note["tool"] for note in ensemble.stage.notes("tool")] == ["note", "pay"], "each ran once"
        await ensemble.whole("s")
        assert await tried_again.cancel() == "cancelled"


async def test_a_stock_worker_works_beside_ours(redis, ensemble, processes):
    held = await ensemble.submit("h", "held gate:g")
    worker = stock_worker(processes, ensemble)
    await ensemble.waits("g")
    async with ensemble.worker():
        turns = [await ensemble.submit(f"s{i}", "beside it") for i in range(5)]
        for turn in turns:
            await turn.result(60)
        ensemble.stage.open("g")
        await held.result(60)
    assert await ensemble.field(held, "worker") != await ensemble.field(turns[0], "worker")
    await ensemble.whole("h", *(f"s{i}" for i in range(5)))
    await asyncio.to_thread(worker.terminate)


async def test_rq_info_shows_our_worker_idle_and_busy(redis_url, tmp_path, processes):
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble, ensemble.worker() as worker:

        async def shown(words):
            output = await asyncio.to_thread(rq, processes, redis_url, "info")
            return all(word in output for word in words)

        await wait_until_async(lambda: shown([worker.name, "idle", "antiphon", "1 workers, 1 queues"]), 15)
        turn = await ensemble.submit("s", "go on gate:g")
        await ensemble.waits("g")
        waiting = await ensemble.submit("s", "and then")
        await wait_until_async(lambda: shown([worker.name, "busy", "1 executing"]), 15)
        ensemble.stage.open("g")
        await turn.result(60)
        await waiting.result(60)
        await wait_until_async(lambda: shown([worker.name, "idle", "2 finished", "127.0.0.1:"]), 15)
        await wait_until_async(lambda: shown(["jobs: 2 finished, 0 failed"]), 20)
    assert worker.name not in await asyncio.to_thread(rq, processes, redis_url, "info")


async def test_rqs_worker_shows_its_current_job(redis, ensemble):
    async with ensemble.worker() as worker:
        turns = {(await ensemble.submit(f"s{i}", f"{i} gate:g")).id for i in range(2)}
        await ensemble.waits("g", 2)

        def shown():
            for found in RQWorker.all(connection=redis, serializer=JSONSerializer):
                if found.name == worker.name:
                    jobs = {execution.job_id for execution in found.get_current_executions()}
                    return jobs, found.current_execution_count, found.get_state()
            return None

        await wait_until_async(lambda: shown() == (turns, 2, "busy"), 15)
        (found,) = RQWorker.all(connection=redis, serializer=JSONSerializer)
        assert found.get_current_job().id in turns
        assert redis.hget(f"rq:worker:{worker.name}", "current_job").decode() in turns
        assert 0 < min(redis.ttl(key) for key in redis.scan_iter("rq:execution:*")) <= 60
        ensemble.stage.open("g")
        await wait_until_async(lambda: shown() == (set(), 0, "idle"), 15)
        (found,) = RQWorker.all(connection=redis, serializer=JSONSerializer)
        assert found.get_current_job() is None
    assert redis.keys("rq:execution:*") == redis.keys("rq:worker:*") == []


@pytest.mark.main_path
async def test_rq_requeue_runs_a_failed_turn_again(redis, ensemble, redis_url, processes):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "at first not fail:rejected*1")
        with pytest.raises(ProviderRejected):
            await turn.result(60)
        await asyncio.to_thread(
            rq, processes, redis_url, "requeue", "--serializer", "json", "--queue", "antiphon", "--all"
        )
        await ensemble.seen("s", "turn_finished")
        await turn.result(60)
        await ensemble.whole("s")
        assert await ensemble.field(turn, "run") == "2"
        assert job_of(redis, turn).get_status() == "finished"


@pytest.mark.one_server
async def test_a_stock_worker_runs_a_requeued_turn_again(redis, ensemble, processes):
    """It marks the job as started before our code looks at it."""
    turn = await ensemble.submit("s", "at first not fail:rejected*1")
    async with ensemble.worker():
        with pytest.raises(ProviderRejected):
            await turn.result(60)
    queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
    FailedJobRegistry(queue=queue).requeue(turn.id)
    worker = stock_worker(processes, ensemble, "--burst")
    assert await asyncio.to_thread(worker.wait, 40) == 0
    assert (await turn.result(1)).text
    assert await ensemble.field(turn, "run") == "2"
    assert job_of(redis, turn).get_status() == "finished"
    await ensemble.whole("s")


async def test_what_rq_empty_took_out_is_put_back(redis, ensemble, redis_url, processes):
    turns = [await ensemble.submit(f"s{i}", "still here") for i in range(3)]
    await asyncio.to_thread(rq, processes, redis_url, "empty", "--serializer", "json", "antiphon")
    assert redis.llen("rq:queue:antiphon") == 0
    assert redis.exists(f"rq:job:{turns[0].id}") == 0
    for i in range(3):
        await look_now(ensemble, f"s{i}")
    async with ensemble.worker():
        for turn in turns:
            await turn.result(60)
            assert job_of(redis, turn).get_status() == "finished"
    await ensemble.whole("s0", "s1", "s2")


@pytest.mark.parametrize("state", ["queued", "waiting", "running"])
async def test_a_deleted_job_does_not_harm_its_turn(state, redis, ensemble):
    turn = await ensemble.submit("s", "go on gate:g")
    waiting = await ensemble.submit("s", "and then")
    if state == "queued":
        job_of(redis, turn).delete()
        await look_now(ensemble, "s")
    async with ensemble.worker():
        await ensemble.waits("g")
        if state != "queued":
            job_of(redis, turn if state == "running" else waiting).delete()
        ensemble.stage.open("g")
        await turn.result(60)
        await waiting.result(60)
    await ensemble.whole("s")
    assert job_of(redis, turn).get_status() == job_of(redis, waiting).get_status() == "finished"


async def test_a_job_that_is_cancelled_while_it_runs_is_a_cancelled_turn(redis, ensemble):
    """It keeps its finished steps, as with a cancel of our own."""
    async with ensemble.worker(lease=1):
        turn = await ensemble.submit("s", "two steps tool:note hang")
        after = await ensemble.submit("s", "and then")
        await wait_until_async(lambda: len(ensemble.stage.notes("asked")) == 2)
        job_of(redis, turn).cancel()
        with pytest.raises(TurnCancelled, match="cancelled in RQ"):
            await turn.result(60)
        await after.result(60)
        await ensemble.whole("s")
        assert [role for role, _ in await ensemble.texts("s")] == [
            "user",
            "assistant",
            "tool",
            "user",
            "assistant",
        ]
        assert job_of(redis, turn).get_status() == "canceled"


@pytest.mark.parametrize("state", ["queued", "waiting"])
async def test_a_cancelled_job_is_a_cancelled_turn(state, redis, ensemble):
    head = await ensemble.submit("s", "go on gate:g")
    waiting = await ensemble.submit("s", "and then")
    last = await ensemble.submit("s", "and last")
    if state == "queued":
        job_of(redis, head).cancel()
        await look_now(ensemble, "s")
    async with ensemble.worker():
        if state == "waiting":
            await ensemble.waits("g")
            job_of(redis, waiting).cancel()
        ensemble.stage.open("g")
        with pytest.raises(TurnCancelled):
            await (head if state == "queued" else waiting).result(60)
        await last.result(60)
    await ensemble.whole("s")
    assert len(await ensemble.texts("s")) == 4


async def test_rq_suspend_holds_turns_back_and_rq_resume_lets_them_go(redis, ensemble, redis_url, processes):
    async with ensemble.worker():
        await asyncio.to_thread(rq, processes, redis_url, "suspend")
        turn = await ensemble.submit("s", "hello")
        # A bell that was rung is gone once the worker has heard it.
        await wait_until_async(lambda: not redis.exists("ant:bell:antiphon"))
        assert await turn.status() == "queued"
        await asyncio.to_thread(rq, processes, redis_url, "resume")
        await turn.result(60)
        await ensemble.whole("s")


async def test_rq_stop_job_cancels_a_running_turn(redis, ensemble):
    async with ensemble.worker():
        turn = await ensemble.submit("s", "go on hang")
        after = await ensemble.submit("s", "and then")
        await wait_until_async(lambda: ensemble.stage.notes("asked"))
        send_stop_job_command(redis, turn.id, serializer=JSONSerializer)
        with pytest.raises(TurnCancelled, match="stop-job"):
            await turn.result(60)
        await after.result(60)
        await ensemble.whole("s")


async def test_rq_shutdown_drains_our_worker(redis, ensemble):
    async with ensemble.worker() as worker:
        turn = await ensemble.submit("s", "go on gate:g")
        await ensemble.waits("g")
        send_shutdown_command(redis, worker.name)
        await wait_until_async(worker._draining.is_set)
        later = await ensemble.submit("later", "for the next worker")
        ensemble.stage.open("g")
        await turn.result(60)
        assert await later.status() == "queued"
    async with ensemble.worker():
        await later.result(60)


async def test_a_stock_worker_that_reads_pickle_takes_nothing_from_us(redis, ensemble, processes):
    """It fails the job on its side; the turn stays ours, and is put back."""
    turns = [await ensemble.submit("s", "one"), await ensemble.submit("s", "two")]
    worker = stock_worker(processes, ensemble, "--burst", serializer="pickle")
    await asyncio.to_thread(worker.wait, 30)
    assert redis.llen("rq:queue:antiphon") == 0
    assert await turns[0].status() == "queued"
    await look_now(ensemble, "s")
    async with ensemble.worker():
        for turn in turns:
            await turn.result(60)
            assert job_of(redis, turn).get_status() == "finished"
    await ensemble.whole("s")
    assert redis.zrange("rq:failed:antiphon", 0, -1) == []


@pytest.mark.main_path
@pytest.mark.parametrize("victim", ["its work horse", "all of it"])
async def test_a_stock_worker_killed_in_the_middle_loses_nothing(
    victim, redis, ensemble, redis_url, processes
):
    turn = await ensemble.submit("s", "go on gate:g")
    env = {**ensemble.stage.env, "ANTIPHON_LEASE": "1"}
    worker = processes.start(
        RQ, "worker", "-u", redis_url, "--serializer", "json", "--burst", "antiphon", env=env
    )
    horse = await ensemble.waits("g")
    if victim == "all of it":
        worker.kill()
        signal_process(horse, signal.SIGKILL)
    else:
        signal_process(horse, signal.SIGKILL)
        await asyncio.to_thread(worker.wait, 20)
    async with ensemble.worker(lease=1):
        assert await ensemble.waits("g", 2) == os.getpid()
        ensemble.stage.open("g")
        await turn.result(60)
    await ensemble.whole("s")
    assert job_of(redis, turn).get_status() == "finished"
    assert redis.zrange("rq:failed:antiphon", 0, -1) == []


@pytest.mark.parametrize("kind", ["another function", "pickled", "damaged", "no arguments", "bad options"])
async def test_a_job_that_is_no_turn_fails_visibly_and_alone(kind, redis, ensemble):
    serializer = None if kind == "pickled" else JSONSerializer
    queue = Queue("antiphon", connection=redis, serializer=serializer)
    before = await ensemble.submit("s", "before it")
    match kind:
        case "no arguments":
            job = queue.enqueue(RUN_TURN)
        case "bad options":
            job = queue.enqueue(RUN_TURN, "x", "text", {"colour": "blue"})
        case _:
            job = queue.enqueue("os.getpid")
    if kind == "damaged":
        redis.hset(f"rq:job:{job.id}", "data", b"\x00\xff{")
    after = await ensemble.submit("t", "after it")
    async with ensemble.worker():
        await before.result(60)
        await after.result(60)
        await wait_until_async(lambda: redis.zscore("rq:failed:antiphon", job.id))
    assert redis.hget(f"rq:job:{job.id}", "status") == b"failed"
    assert redis.hget(f"rq:job:{job.id}", "exc_info")
    assert redis.zrange("rq:failed:antiphon", 0, -1) == [job.id.encode()]
    await ensemble.whole("s", "t")


def bomb():
    """A megabyte that holds a gigabyte. It is made in pieces: as a whole it would hide what the worker makes of it."""
    packer = zlib.compressobj(1)
    pieces = [b"[", *[b" " * (1 << 20)] * (1 << 10)]
    return b"".join(map(packer.compress, pieces)) + packer.flush()


DEEP_JOB = b'["antiphon_worker.jobs.run_turn",null,["s","x",{"params":{"a":' + b"[" * 100_000
SHUT_DEEP_JOB = (
    b'["antiphon_worker.jobs.run_turn",null,["s","x",{"params":{"a":' + b"[" * 800 + b"]" * 800 + b"}}],{}]"
)


@pytest.mark.parametrize(
    ("job_id", "data"),
    [
        (b"bomb", bomb), (b"truncated", zlib.compress(b'["a",null,[],{}]')[:-6]), (b"deep", DEEP_JOB),
        (b"deep-shut", SHUT_DEEP_JOB), (b"\xff\xfeodd", b"x"), (b"odd\xff", b'["os.getpid",null,[],{}]'),
        (b"a b", b'["antiphon_worker.jobs.run_turn",null,["s","x",{}],{}]'), (b"no-utf8", b'["\xff",null,[],{}]'),
        (b"surrogate", b'["antiphon_worker.jobs.run_turn",null,["\\ud800","x",{}],{}]'),
        (b"no-data", None), (b"wrong", b'["antiphon_worker.jobs.run_turn",null,[{},7,[]],{}]'),
        (b"timeout", b'["antiphon_worker.jobs.run_turn",null,["s","x",{"timeout":1e400}],{}]'),
    ],
)  # fmt: skip
@pytest.mark.one_server
async def test_no_job_ends_a_worker_or_is_read_twice(job_id, data, redis, redis_url, tmp_path):
    data = data() if callable(data) else data
    async with open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        redis.hset(b"rq:job:" + job_id, mapping={"data": data} if data else {"origin": "antiphon"})
        redis.rpush("rq:queue:antiphon", job_id)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        after = await ensemble.submit("t", "after it")
        async with ensemble.worker():
            await after.result(60)
            await wait_until_async(lambda: redis.zscore("rq:failed:antiphon", job_id), 10)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"
        assert redis.hget(b"rq:job:" + job_id, "exc_info")
        assert redis.hget(b"rq:job:" + job_id, "ant_deaths") is None
        redis.delete(b"rq:job:" + job_id)


@pytest.mark.parametrize("runs", ["ours", "stock"])
async def test_a_turn_enqueued_with_rqs_own_queue_is_run(runs, redis, ensemble, processes):
    first = await ensemble.submit("s", "first")
    queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
    options = {"agent": msgspec.to_builtins(agent_spec())}
    job = queue.enqueue(RUN_TURN, "s", "by RQ's own means", options)
    if runs == "ours":
        async with ensemble.worker():
            turn = await wait_until_async(lambda: redis.exists(f"ant:turn:{job.id}"))
            turn = await ensemble.client.turn(job.id)
            await turn.result(60)
    else:
        worker = stock_worker(processes, ensemble, "--burst")
        assert await asyncio.to_thread(worker.wait, 30) == 0
    await first.result(1)
    turn = await ensemble.client.turn(job.id)
    assert (await turn.result(1)).turn_id == job.id
    await ensemble.whole("s")
    assert [text for role, text in await ensemble.texts("s") if role == "user"] == [
        "first",
        "by RQ's own means",
    ]
    assert StartedJobRegistry(queue=queue).get_job_ids(cleanup=False) == []
    assert job_of(redis, turn).get_status() == "finished"


@pytest.mark.parametrize("deaths", [1, 3])
async def test_a_job_whose_worker_dies_while_it_reads_it_is_read_again_or_fails_visibly(
    deaths, redis, processes, ensemble
):
    queue = Queue("antiphon", connection=redis, serializer=JSONSerializer)
    options = {"agent": msgspec.to_builtins(agent_spec())}
    job = queue.enqueue(RUN_TURN, "s", "by RQ's own means", options)
    ensemble.supervisor(app="support.dying_reader:app", env={"JOB_DEATHS": str(deaths)})
    if deaths == 1:
        await ensemble.seen("s", "turn_finished")
        await ensemble.whole("s")
    else:
        await wait_until_async(lambda: redis.zscore("rq:failed:antiphon", job.id), 20, "the job has failed")
        assert b"died 3 times" in redis.hget(f"rq:job:{job.id}", "exc_info")
        assert not redis.exists(f"ant:turn:{job.id}")
    assert len(ensemble.stage.notes("dies")) == deaths


async def test_a_stock_worker_of_one_process_opens_the_model_service_for_each_turn(
    redis_url, tmp_path, processes
):
    """Each turn has an event loop of its own there; what one of them closes must not be used by the next."""
    async with ModelServer() as server, open_ensemble(redis_url, tmp_path / "stage") as ensemble:
        agent = AgentSpec(provider="openai-chat", model="any")
        turns = [await ensemble.submit("s", f"turn {i}", agent=agent) for i in range(3)]
        worker = processes.start(
            RQ, "worker", "-u", redis_url, "--serializer", "json", "--burst",
            "--worker-class", "rq.worker.SimpleWorker", "antiphon",
            env={**ensemble.stage.env, "OPENAI_API_KEY": "any", "OPENAI_BASE_URL": server.openai_url},
        )  # fmt: skip
        assert await asyncio.to_thread(worker.wait, 40) == 0
        for turn in turns:
            assert (await turn.result(60)).text
