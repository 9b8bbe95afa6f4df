"""No service of a worker process ends with what it reads in Redis: it starts again, and the log says so once."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from support import forks
from support.eventually import wait_until_async
from support.here import running_worker

from antiphon.errors import CorruptRecord
from antiphon.input.request import AgentSpec
from antiphon_worker.process import service as module
from antiphon_worker.process.service import Service

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
