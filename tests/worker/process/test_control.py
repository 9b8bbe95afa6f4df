"""What comes over the control channels, from whomever: a worker carries it out or leaves it, and goes on."""

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from support import forks
from support.eventually import patience, wait_until_async
from support.here import running_worker

from antiphon.errors import CorruptRecord, TurnCancelled
from antiphon.input.request import AgentSpec
from antiphon_worker.__main__ import _work as run_workers
from antiphon_worker.process import service as module
from antiphon_worker.process.service import Service


class OfACell:
    """The worker of one cell, which runs until it is drained."""

    def __init__(self):
        self.drained, self.calls = asyncio.Event(), 0

    def drain(self):
        self.calls += 1
        self.drained.set()

    async def run(self):
        await self.drained.wait()


async def test_a_process_whose_worker_of_one_cell_was_drained_ends():
    workers = [OfACell() for _ in range(3)]
    working = asyncio.create_task(run_workers(workers, None))
    await asyncio.sleep(0)
    workers[1].drain()  # the control channel of its cell has asked for it
    await asyncio.wait_for(working, patience(5))
    assert [one.calls for one in workers] == [1, 2, 1], "a second call stops turns at once"


DEEP = b'{"command":' + b"[" * 100_000
CHANNELS = ["ant:control:{}", "rq:pubsub:{}"]
MESSAGES = {
    "a stop without an id": b'{"command":"stop-job"}',
    "a cancel without an id": b'{"command":"cancel"}',
    "an id that is a number": b'{"command":"stop-job","job_id":7}',
    "an id that is none": '{"command":"stop-job","job_id":"…:\\u0000"}'.encode(),
    "an unknown id": b'{"command":"stop-job","job_id":"nobody"}',
    "deep JSON": DEEP,
    "deep JSON that is closed": b'{"command":"cancel","turn_id":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "no JSON": b"stop it",
    "no UTF-8": b'{"command":"\xff\xfe"}',
    "no object": b'["drain"]',
    "null": b"null",
    "a command that is none": b'{"command":{"drain":1}}',
    "an unknown command": b'{"command":"explode"}',
    "a kill-horse": b'{"command":"kill-horse"}',
    "nothing": b" ",
    "a million bytes": b"x" * 1_000_000,
}


@pytest.mark.parametrize("channel", CHANNELS)
async def test_no_message_on_a_control_channel_ends_a_worker(channel, ensemble, redis_url):
    async with ensemble.worker() as worker:
        held = await ensemble.submit("s", "go on gate:g")
        await ensemble.waits("g")
        with Redis.from_url(redis_url) as redis:
            for message in MESSAGES.values():
                assert redis.publish(channel.format(worker.name), message) == 1
            assert not worker._draining.is_set()
            last = await ensemble.submit("t", "hang")
            await wait_until_async(lambda: ensemble.stage.notes("asked", text="hang"))
            command = {"command": "cancel" if "control" in channel else "stop-job", "reason": "enough"}
            redis.publish(
                channel.format(worker.name), json.dumps(command | {"turn_id": last.id, "job_id": last.id})
            )
        with pytest.raises(TurnCancelled):
            await last.result(60)
        ensemble.stage.open("g")
        assert (await held.result(60)).text


@pytest.mark.parametrize(
    ("channel", "command"), [(CHANNELS[0], "drain"), (CHANNELS[1], "shutdown")], ids=["ours", "RQ's"]
)
async def test_whoever_may_publish_there_drains_a_worker(channel, command, ensemble, redis_url):
    async with ensemble.worker() as worker:
        await wait_until_async(lambda: _heard(redis_url, channel.format(worker.name)))
        with Redis.from_url(redis_url) as redis:
            redis.publish(channel.format(worker.name), json.dumps({"command": command}))
        await wait_until_async(worker._draining.is_set)


def _heard(url, channel):
    with Redis.from_url(url) as redis:
        return redis.pubsub_numsub(channel)[0][1] == 1


async def test_who_may_not_publish_there_drains_nobody(ensemble, redis_url):
    """The rights of a user of a client: its own channels alone."""
    async with ensemble.worker() as worker:
        await wait_until_async(lambda: _heard(redis_url, CHANNELS[0].format(worker.name)))
        with Redis.from_url(redis_url) as redis:
            redis.execute_command(
                "ACL",
                "SETUSER",
                "client",
                "reset",
                "on",
                ">pw",
                "~ant:*",
                "~rq:*",
                "&ant:live:*",
                "+@all",
                "-@admin",
            )
            try:
                with Redis.from_url(redis_url, username="client", password="pw") as limited:
                    for channel in CHANNELS:
                        with pytest.raises(NoPermissionError):
                            limited.publish(channel.format(worker.name), '{"command":"drain"}')
                    assert limited.publish("ant:live:0:s", "x") == 0
            finally:
                redis.execute_command("ACL", "DELUSER", "client")
        assert not worker._draining.is_set()


COMMAND = str(Path(sys.executable).with_name("antiphon"))
AGENT = AgentSpec(provider="scripted", model="m")


@pytest.mark.parametrize(
    ("error", "said"),
    [(CorruptRecord("The key is damaged."), "The key is damaged"), (ValueError("secret"), "ValueError")],
)
async def test_a_service_that_fails_starts_again_and_says_so_once(monkeypatch, caplog, error, said):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "STEADY_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "antiphon.worker")
    starts, works = 0, asyncio.Event()

    async def start():
        nonlocal starts
        starts += 1
        if starts < 4:
            raise error
        await works.wait()

    running = asyncio.create_task(Service(start, "reaper").run())
    await wait_until_async(lambda: "the reaper works again" in caplog.text)
    works.set()
    await running
    assert caplog.text.count("the reaper is interrupted, trying again") == 1
    assert said in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.lasting_keys("ant:webhook*", "ant:dispatched", "ant:schedule*")
async def test_names_that_are_not_utf8_end_no_worker(client, redis_url, cell, caplog):
    async with running_worker(redis_url):
        await client.webhooks().set("hook", "https://example.com/")
        for key in ("webhooks", "active", "due", "aside", "sessions", "schedules", "ending", "forget"):
            await cell.redis.zadd(f"ant:{key}", {b"\xff": 0})
        await cell.redis.rpush("rq:queue:antiphon", b"\xff")
        for number in range(3):
            turn = await client.submit(f"s{number}", "Hello", agent=AGENT)
            await turn.result(20)
        await wait_until_async(lambda: _gone(cell))
    assert "is interrupted" not in caplog.text


async def _gone(cell):
    return await cell.redis.zrange("ant:webhooks", 0, -1) == [b"hook"]


async def test_a_damaged_fence_is_an_outage_that_the_log_names_and_that_ends_with_the_damage(
    client, redis_url, cell, caplog
):
    caplog.set_level(logging.INFO)
    async with running_worker(redis_url):
        await cell.redis.set("ant:fence", "abc")
        turns = [await client.submit(f"s{number}", "Hello", agent=AGENT) for number in range(2)]
        await wait_until_async(lambda: "outage_began" in actions(caplog))
        assert "no turns can be taken, trying again: The key ant:fence must be a whole number" in caplog.text
        check = await asyncio.to_thread(forks.run, [COMMAND, "redis", "check", "--redis-url", redis_url])
        assert (check.returncode, "The key ant:fence must be" in check.stderr) == (1, True)
        await cell.redis.delete("ant:fence")
        for turn in turns:
            await turn.result(20)
        assert "outage_ended" in actions(caplog)
    assert not await cell.redis.exists("ant:quarantined")


def actions(caplog):
    return [getattr(record, "action", "") for record in caplog.records]
