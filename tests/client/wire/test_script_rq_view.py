"""RQ's own tools see a turn as a job, and what they do to it is put right or honoured."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
    clean_registries,
)
from rq.serializers import JSONSerializer
from rq.utils import str_to_date
from support.cells import LEASE_MS, TestCell, open_cell

from antiphon.model import Wait

pytestmark = pytest.mark.main_path

REGISTRIES = [
    DeferredJobRegistry, ScheduledJobRegistry, StartedJobRegistry, FinishedJobRegistry, FailedJobRegistry,
    CanceledJobRegistry,
]  # fmt: skip


class RqTools:
    """RQ's own classes and command, looking at the same Redis."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis = Redis.from_url(url)
        self.queue = Queue("antiphon", connection=self.redis, serializer=JSONSerializer)

    def job(self, turn: str = "t1") -> Job:
        return Job.fetch(turn, connection=self.redis, serializer=JSONSerializer)

    def places(self, turn: str = "t1") -> list[str]:
        """The registries of RQ that name the turn, and the queue."""
        found = [
            kind.__name__ for kind in REGISTRIES if turn in self.registry(kind).get_job_ids(cleanup=False)
        ]
        return found + ["Queue"] * self.queue.get_job_ids().count(turn)

    def registry(self, kind):
        return kind("antiphon", connection=self.redis, serializer=JSONSerializer)

    async def command(self, *arguments: str) -> str:
        """Run `rq`, with everything it may clean up on the way."""
        argv = [str(Path(sys.executable).parent / "rq"), *arguments, "--url", self.url]
        done = await asyncio.to_thread(
            subprocess.run, argv, capture_output=True, text=True, timeout=50, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@asynccontextmanager
async def both(url: str) -> AsyncIterator[tuple[TestCell, RqTools]]:
    """A cell at the real time, since RQ's own cleaning goes by that, and RQ's tools."""
    tools = RqTools(url)
    async with open_cell(url) as cell:
        await cell.set_clock(int(time.time() * 1000))
        yield cell, tools
    tools.redis.close()


async def test_each_status_has_its_status_and_place_in_rq(redis_url):
    async with both(redis_url) as (cell, rq):

        def seen(turn="t1"):
            return rq.job(turn).get_status().value, rq.places(turn)

        await cell.put("t1")
        assert seen() == ("queued", ["Queue"])
        await cell.put("t2")
        assert seen("t2") == ("deferred", ["DeferredJobRegistry"])
        await cell.put("t3", due_in_ms=5_000)
        assert seen("t3") == ("scheduled", ["ScheduledJobRegistry"])
        turn = await cell.take_one()
        assert seen() == ("started", ["StartedJobRegistry"])
        await cell.give_back(turn, "error", delay_ms=1000)
        assert seen() == ("scheduled", ["ScheduledJobRegistry"])
        await cell.reap_after(1000)
        assert seen() == ("queued", ["Queue"])
        await cell.end(await cell.take_one())
        assert seen() == ("finished", ["FinishedJobRegistry"])
        assert seen("t2") == ("queued", ["Queue"])
        await cell.end(await cell.take_one(), "failed", error="It broke.")
        assert seen("t2") == ("failed", ["FailedJobRegistry"])
        await cell.cancel("t3", "enough")
        assert seen("t3") == ("canceled", ["CanceledJobRegistry"])


async def test_rq_reads_the_job_whole(redis_url):
    async with both(redis_url) as (cell, rq):
        began = await cell.now()
        await cell.put("t1", "it's ☃")
        await cell.wait(1500)
        turn = await cell.take_one("worker-1")
        job = rq.job()
        assert job.func_name == "antiphon_worker.jobs.run_turn"
        assert (job.args, job.kwargs) == (["t1"], {})
        assert (job.origin, job.timeout, job.description) == ("antiphon", -1, "it's ☃")
        assert job.worker_name == "worker-1"
        assert (job.result_ttl, job.failure_ttl) == (3600, 7 * 24 * 3600)
        assert job.enqueued_at.timestamp() * 1000 == pytest.approx(began, abs=1)
        assert job.started_at.timestamp() * 1000 == pytest.approx(began + 1500, abs=1)
        await cell.end(turn)
        assert rq.job().ended_at.timestamp() * 1000 == pytest.approx(began + 1500, abs=1)


@pytest.mark.parametrize(
    "moment",
    [
        "1970-01-01T00:00:00.007Z",
        "2000-02-29T23:59:59.999Z",
        "2024-12-31T12:00:00.000Z",
        "2100-03-01T00:00:00.001Z",
    ],
)
async def test_times_are_written_as_rq_reads_them(redis_url, moment):
    from datetime import datetime

    async with both(redis_url) as (cell, rq):
        expected = datetime.fromisoformat(moment)
        await cell.set_clock(round(expected.timestamp() * 1000))
        await cell.put("t1")
        assert rq.job().enqueued_at == expected


async def test_a_record_has_no_field_that_says_nothing_yet(redis_url):
    """Such fields are a tenth of the record of a turn that waits."""
    async with both(redis_url) as (cell, tools):
        turn = await cell.started("t1")
        await cell.hold(turn)
        waits = tools.redis.hgetall("rq:job:t1")
        assert not {b"ended_at", b"exc_info"} & set(waits)
        assert (tools.job().started_at, tools.job().ended_at) == (str_to_date(waits[b"started_at"]), None)
        await cell.put("t2", "other")
        assert b"" not in tools.redis.hgetall("rq:job:t2").values()


async def test_rq_info_changes_nothing(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put_each("t1", "t2")
        await cell.put("t3", "s3")
        await cell.put("t4", "s4", due_in_ms=10**7)
        await cell.take_one(only="t1")
        before = await cell.contents()
        shown = await rq.command("info")
        assert "antiphon" in shown
        clean_registries(rq.queue)
        assert await cell.contents() == before
        assert [rq.places(turn) for turn in ("t1", "t2", "t3", "t4")] == [
            ["StartedJobRegistry"], ["DeferredJobRegistry"], ["Queue"], ["ScheduledJobRegistry"],
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("It broke.", "It broke."), ("", ""), ("\x00\xff ü €\n", "\x00\xff ü €\n"), ("ab" * 2048, "ab" * 2048),
        ("a" + "é" * 3000, "a" + "é" * 2047), ("aa" + "€" * 3000, "aa" + "€" * 1364),
    ],
    ids=["short", "empty", "odd", "4 KB", "cut in a character of two", "cut in a character of three"],
)  # fmt: skip
async def test_rqs_latest_result_says_why_a_turn_failed(error, shown, redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        await cell.end(await cell.take_one("w7"), "failed", error=error, error_code="provider")
        result = rq.job().latest_result()
        assert (result.type, result.worker_name) == (result.Type.FAILED, "w7")
        assert (result.exc_string or "") == shown
        assert 6 * 86400 < rq.redis.ttl("rq:results:t1") <= 7 * 86400


async def test_rqs_latest_result_is_of_the_last_run(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.end(await cell.started("t1"), "failed", error="It broke.")
        await cell.requeue("t1")
        turn = await cell.take_one()
        assert rq.job().latest_result() is None
        await cell.end(turn)
        assert rq.job().latest_result() is None
        await cell.end(await cell.started("t2"), "cancelled", error="enough")
        assert rq.redis.keys("rq:results:*") == []


async def test_rqs_latest_result_says_that_the_workers_of_a_turn_died(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.started("t1")
        await cell.wait(LEASE_MS)
        await cell.reap(crash_limit=1)
        assert rq.job().latest_result().exc_string == "The turn was given up after 1 crashes of its worker."


async def test_a_damaged_result_of_rq_keeps_no_turn_from_its_end(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        rq.redis.set("rq:results:t1", "no stream")
        assert await cell.end(await cell.take_one(), "failed", error="It broke.")
        assert await cell.status("t1") == "failed"


async def test_rq_requeue_runs_a_failed_turn_again(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.end(await cell.started("t1"), "failed", error="It broke.", error_code="provider")
        await cell.redis.delete("ant:bell:antiphon")
        await rq.command(
            "requeue", "--queue", "antiphon", "--serializer", "rq.serializers.JSONSerializer", "t1"
        )
        turn = await cell.take_one()
        assert (turn.turn_id, turn.run, turn.attempt) == ("t1", 2, 1)
        assert await cell.redis.ttl("ant:turn:t1") == -1
        assert rq.places() == ["StartedJobRegistry"]
        await cell.end(turn)
        assert await cell.history() == [b'"t1"']
        ends = [
            event["run"] for event in await cell.events() if event["type"] in ("turn_failed", "turn_finished")
        ]
        assert ends == [1, 2]
        assert (await cell.turn("t1")).fields["error"] == b""


async def test_a_requeued_turn_waits_for_its_session(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.end(await cell.started("t1"), "failed")
        second = await cell.started("t2")
        for _ in range(2):  # and a duplicate of it
            await cell.redis.rpush("rq:queue:antiphon", "t1")
        rq.registry(FailedJobRegistry).requeue("t1")
        assert (await cell.take()).turns == []
        assert await cell.inbox() == ["t2", "t1"]
        assert (await cell.status("t1"), rq.places("t1")) == ("waiting", ["DeferredJobRegistry"])
        await cell.end(second)
        turn = await cell.take_one()
        assert (turn.turn_id, turn.run) == ("t1", 2)


async def test_a_requeued_turn_whose_session_has_gone_begins_a_new_one(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.end(await cell.started("t1"), "failed")
        await cell.redis.delete("ant:session:s", "ant:events:s", "ant:history:s")
        rq.registry(FailedJobRegistry).requeue("t1")
        await cell.end(await cell.take_one(limit=1))
        assert rq.queue.get_job_ids() == [], "no second entry is left"
        assert await cell.history() == [b'"t1"']
        assert int(await cell.redis.hget("ant:session:s", "created")) == await cell.now()
        for key in ("ant:session:s", "ant:events:s", "ant:history:s"):
            assert await cell.redis.ttl(key) > 0, key


@pytest.mark.parametrize("status", ["finished", "cancelled"])
async def test_a_turn_that_has_ended_well_is_not_run_again_and_its_record_says_so(redis_url, status):
    async with both(redis_url) as (cell, rq):
        await cell.end(await cell.started("t1"), status)
        rq.queue._enqueue_job(rq.job())
        assert rq.job().get_status().value == "queued"
        assert (await cell.take()).turns == []
        expected = {
            "finished": ("finished", ["FinishedJobRegistry"]),
            "cancelled": ("canceled", ["CanceledJobRegistry"]),
        }
        assert (rq.job().get_status().value, rq.places()) == expected[status]
        assert len(await cell.events()) == 3


async def test_a_waiting_turn_pushed_by_hand_goes_on_waiting(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put_each("t1", "t2")
        turn = await cell.take_one()
        rq.queue._enqueue_job(rq.job("t2"))
        assert (await cell.take()).turns == []
        assert (rq.job("t2").get_status().value, rq.places("t2")) == ("deferred", ["DeferredJobRegistry"])
        await cell.end(turn)


async def test_rq_empty_is_put_right(redis_url):
    async with both(redis_url) as (cell, rq):
        for number in range(3):
            await cell.put(f"t{number}", f"s{number}")
        await cell.put("waits", "s0")
        await rq.command("empty", "antiphon")
        assert rq.queue.get_job_ids() == []
        with pytest.raises(NoSuchJobError):
            rq.job("t0")
        assert sorted((one.turn_id, one.what) for one in await cell.reap_after(30_000)) == [
            ("t0", "repaired"), ("t1", "repaired"), ("t2", "repaired"),
        ]  # fmt: skip
        assert sorted(rq.queue.get_job_ids()) == ["t0", "t1", "t2"]
        assert rq.job("t0").get_status().value == "queued"


async def test_a_deleted_job_is_put_right(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put_each("t1", "t2")
        rq.job("t1").delete()
        rq.job("t2").delete()
        assert [(one.turn_id, one.what) for one in await cell.reap_after(30_000)] == [("t1", "repaired")]
        turn = await cell.take_one()
        rq.job("t1").delete()
        await cell.end(turn)
        assert (rq.job("t1").get_status().value, rq.places("t1")) == ("finished", ["FinishedJobRegistry"])
        assert (rq.job("t2").get_status().value, rq.places("t2")) == ("queued", ["Queue"])


async def test_a_job_deleted_while_it_runs_comes_back(redis_url):
    async with both(redis_url) as (cell, rq):
        turn = await cell.started("t1")
        rq.job().delete()
        assert await cell.give_back(turn, "drain")
        assert rq.job().get_status().value == "queued"
        assert (await cell.take_one()).turn_id == "t1"


async def test_a_head_cancelled_in_rq_is_cancelled(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put_each("t1", "t2")
        rq.job("t1").cancel()
        assert (await cell.take()).turns == []
        assert [(one.turn_id, one.what) for one in await cell.reap_after(30_000)] == [("t1", "cancelled")]
        assert await cell.status("t1") == "cancelled"
        event = next(event for event in await cell.events() if event["type"] == "turn_cancelled")
        assert (event["turn_id"], event["reason"]) == ("t1", "cancelled in RQ")
        assert (await cell.take_one()).turn_id == "t2"


async def test_a_waiting_turn_cancelled_in_rq_is_cancelled_when_its_time_comes(redis_url):
    async with both(redis_url) as (cell, rq):
        for turn_id in ("t1", "t2", "t3"):
            await cell.put(turn_id)
        rq.job("t2").cancel()
        await cell.end(await cell.take_one())
        assert (await cell.take()).turns == []
        assert await cell.look_at() == await cell.now()
        assert [(one.turn_id, one.what) for one in await cell.reap()] == [("t2", "cancelled")]
        assert (await cell.take_one()).turn_id == "t3"


async def test_a_delayed_turn_cancelled_in_rq_is_cancelled_when_it_is_due(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1", due_in_ms=1000, ttl_ms=1000)
        rq.job("t1").cancel()
        assert [(one.turn_id, one.what) for one in await cell.reap_after(1000)] == [("t1", "cancelled")]
        assert await cell.inbox() == []


@pytest.mark.parametrize("aside", [False, True])
async def test_a_sleeping_turn_cancelled_in_rq_is_cancelled_at_once(redis_url, aside):
    async with both(redis_url) as (cell, rq):
        await cell.hold(await cell.started("t1"), Wait("c1", "sleep", seconds=8 * 3600.0), aside=aside)
        rq.job("t1").cancel()
        assert [one.turn_id for one in await cell.reap(queues=["antiphon"])] == ["t1"]
        turn = await cell.take_one()
        assert turn.stop == "cancelled in RQ"
        await cell.end(turn, "cancelled")


async def test_a_damaged_session_cancelled_in_rq_is_looked_at_no_more_often(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.hold(await cell.started("t1"), Wait("c1", "sleep", seconds=8 * 3600.0))
        await cell.redis.hset("ant:session:s", "seq", "damaged")
        rq.job("t1").cancel()
        for _ in range(2):
            await cell.reap(queues=["antiphon"])
            assert await cell.look_at() == await cell.now() + 60_000, "it is set aside"
        await cell.redis.flushdb()


async def test_a_turn_with_something_to_keep_is_cancelled_by_a_worker(redis_url):
    async with both(redis_url) as (cell, rq):
        turn = await cell.started("t1")
        await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[])
        await cell.give_back(turn, "error")
        rq.job("t1").cancel()
        assert [(one.turn_id, one.what) for one in await cell.reap_after(30_000)] == [("t1", "repaired")]
        turn = await cell.take_one()
        assert (turn.stop, turn.journal) == ("cancelled in RQ", [b"one"])


async def test_a_running_turn_that_rq_calls_failed_runs_on(redis_url):
    async with both(redis_url) as (cell, rq):
        turn = await cell.started("t1")
        rq.job().set_status("failed")
        rq.registry(FailedJobRegistry).add(rq.job(), exc_string="Moved by hand")
        await cell.end(turn)
        assert (rq.job().get_status().value, rq.places()) == ("finished", ["FinishedJobRegistry"])


@pytest.mark.parametrize("wrong", ["deferred", "scheduled", "finished", "failed", "canceled"])
async def test_a_transition_takes_a_turn_out_of_every_wrong_registry(redis_url, wrong):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        rq.job().set_status(wrong)
        await cell.redis.zadd(f"rq:{wrong}:antiphon", {"t1": await cell.now()})
        turn = await cell.take_one()
        assert (rq.job().get_status().value, rq.places()) == ("started", ["StartedJobRegistry"])
        await cell.redis.zadd(f"rq:{wrong}:antiphon", {"t1": await cell.now()})
        await cell.give_back(turn, "drain")
        assert rq.places() == ["Queue"]


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
@pytest.mark.parametrize("wrong", ["deferred", "scheduled", "finished", "failed", "canceled"])
async def test_the_end_of_a_turn_takes_it_out_of_the_registry_that_rq_put_it_in(redis_url, wrong, status):
    async with both(redis_url) as (cell, rq):
        turn = await cell.started()
        rq.job().set_status(wrong)
        await cell.redis.zadd(f"rq:{wrong}:antiphon", {"t1": await cell.now()})
        await cell.end(turn, status)
        word = "canceled" if status == "cancelled" else status
        assert (rq.job().get_status().value, rq.places()) == (word, [f"{word.capitalize()}JobRegistry"])


@pytest.mark.parametrize("moment", ["queued", "started"])
async def test_a_record_that_rq_has_deleted_is_written_whole_again(redis_url, moment):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        whole = rq.job().to_dict()
        if moment == "queued":
            await cell.redis.delete("rq:job:t1")
        turn = await cell.take_one()
        if moment == "started":
            await cell.redis.delete("rq:job:t1")
        await cell.end(turn)
        after = rq.job().to_dict()
        for field in ("data", "origin", "description", "timeout", "created_at", "enqueued_at", "result_ttl"):
            assert after[field] == whole[field], field
        assert after["started_at"]
        assert rq.places() == ["FinishedJobRegistry"]


async def test_a_queued_turn_that_rq_calls_failed_is_put_right(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        await cell.redis.lpop("rq:queue:antiphon")
        job = rq.job()
        job.set_status("failed")
        rq.registry(FailedJobRegistry).add(job, exc_string="Moved by hand")
        assert [one.what for one in await cell.reap_after(30_000)] == ["repaired"]
        assert (rq.job().get_status().value, rq.places()) == ("queued", ["Queue"])
        assert await cell.redis.ttl("rq:job:t1") == -1


async def test_rq_suspend_and_resume(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        await rq.command("suspend")
        assert (await cell.take()).suspended
        await rq.command("resume")
        assert (await cell.take_one()).turn_id == "t1"


async def test_registries_do_not_grow_for_ever(redis_url):
    async with both(redis_url) as (cell, rq):
        now = await cell.now()
        for name in ("finished", "failed", "canceled"):
            await cell.redis.zadd(f"rq:{name}:antiphon", {"old": now // 1000 - 61, "kept": now // 1000 + 60})
        for number, status in enumerate(["finished", "failed", "cancelled"]):
            await cell.end(await cell.started(f"t{number}"), status)
        await cell.reap(queues=["antiphon"])
        for name, turn in (("finished", "t0"), ("failed", "t1"), ("canceled", "t2")):
            members = await cell.redis.zrange(f"rq:{name}:antiphon", 0, -1)
            assert sorted(members) == [b"kept", turn.encode()]
        assert rq.queue.get_job_ids() == []


async def test_the_queue_is_known_to_rq(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1", queue="bulk")
        assert [queue.name for queue in Queue.all(connection=rq.redis)] == ["bulk"]


@pytest.mark.parametrize("reaped", [False, True])
async def test_a_lease_that_ends_leaves_no_started_job(redis_url, reaped):
    async with both(redis_url) as (cell, _):
        turn = await cell.started("t1")
        if reaped:
            await cell.reap_after(LEASE_MS)
        else:
            await cell.give_back(turn, "drain")
        assert await cell.redis.exists("rq:wip:antiphon") == 0


@pytest.mark.parametrize("how", ["lease", "given back"])
async def test_a_cancelled_turn_whose_run_is_over_is_no_started_job_whoever_takes_it_next(redis_url, how):
    async with both(redis_url) as (cell, rq):
        turn = await cell.started("t1")
        rq.job("t1").cancel()
        if how == "lease":
            await cell.reap_after(LEASE_MS)
        else:
            await cell.give_back(turn, "drain")
        assert await cell.redis.zcard("rq:wip:antiphon") == 0
        await cell.redis.rpush("rq:queue:antiphon", "t1")  # before the reaper has cancelled it
        turn = await cell.take_one("w2")
        assert await cell.redis.zrange("rq:wip:antiphon", 0, -1) == [f"t1:{turn.fence}".encode()]
        await cell.end(turn)
        assert await cell.redis.zcard("rq:wip:antiphon") == 0


async def test_what_a_dead_stock_worker_noted_as_running_is_forgotten(redis_url):
    async with both(redis_url) as (cell, rq):
        await cell.started("t1")
        rq.redis.zadd("rq:wip:antiphon", {"t1:theirs": 1, "t2:other": 1})
        rq.redis.zadd("rq:executions:t1", {"theirs": 1})
        await cell.reap_after(LEASE_MS)
        assert rq.redis.zrange("rq:wip:antiphon", 0, -1) == [b"t2:other"]
        assert rq.redis.exists("rq:executions:t1") == 0


@pytest.mark.parametrize("status", ["finished", "failed"])
async def test_a_cancel_in_rq_that_lands_after_the_end_does_not_stay(redis_url, status):
    """RQ's cancel reads the job, the turn ends, the cancel writes."""
    async with both(redis_url) as (cell, rq):
        turn = await cell.started("t1")
        job, ended = rq.job(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def end():
            await cell.end(turn, status)
            ended.set()

        read = job._remove_from_registries

        def after_the_end(**options):
            read(**options)
            asyncio.run_coroutine_threadsafe(end(), loop).result(60)

        job._remove_from_registries = after_the_end
        await asyncio.to_thread(job.cancel)
        assert ended.is_set()
        assert rq.job().get_status().value == "canceled", "the race was lost by RQ"
        assert [(one.turn_id, one.what) for one in await cell.reap(queues=["antiphon"])] == [
            ("t1", "corrected")
        ]
        registry = {"finished": "FinishedJobRegistry", "failed": "FailedJobRegistry"}[status]
        assert (rq.job().get_status().value, rq.places()) == (status, [registry])
        assert await cell.reap(queues=["antiphon"]) == []
        assert 0 < await cell.redis.ttl("rq:job:t1") <= (1 if status == "finished" else 7 * 24) * 3600


async def test_a_failure_in_rq_that_lands_after_the_end_does_not_stay(redis_url):
    async with both(redis_url) as (cell, rq):
        turn = await cell.started("t1")
        job = rq.job()
        await cell.end(turn)
        job.set_status("failed")
        rq.registry(FailedJobRegistry).add(job, exc_string="Its work horse was killed")
        assert rq.places() == ["FinishedJobRegistry", "FailedJobRegistry"]
        assert [(one.turn_id, one.what) for one in await cell.reap(queues=["antiphon"])] == [
            ("t1", "corrected")
        ]
        assert (rq.job().get_status().value, rq.places()) == ("finished", ["FinishedJobRegistry"])
        assert await cell.redis.hget("rq:job:t1", "exc_info") == b""


@pytest.mark.parametrize(
    ("status", "registry", "hours"),
    [
        ("finished", "FinishedJobRegistry", 1),
        ("cancelled", "CanceledJobRegistry", 1),
        ("failed", "FailedJobRegistry", 7 * 24),
    ],
)
async def test_the_record_of_an_ended_turn_stays_as_long_as_it_is_of_use(redis_url, status, registry, hours):
    async with both(redis_url) as (cell, rq):
        await cell.put("t1")
        await cell.end(await cell.take_one(), status)
        kind = {"finished": "rq_finished", "failed": "rq_failed", "cancelled": "rq_canceled"}[status]
        left = await cell.redis.zscore(cell.keys.of_rq(kind, "antiphon"), "t1") - await cell.now() / 1000
        assert rq.places() == [registry]
        assert left == pytest.approx(hours * 3600, abs=1)
        assert hours * 3600 - 60 < await cell.redis.ttl("rq:job:t1") <= hours * 3600
        assert await cell.redis.ttl("ant:turn:t1") > 6 * 86_400, "the turn itself is kept"
