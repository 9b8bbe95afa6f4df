"""Turns of this process that wait for one another, and what they leave behind."""

import asyncio
import gc
import weakref

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import Agent, tool
from antiphon.errors import ProviderRejected
from antiphon.input.values import now_ms
from antiphon.model import ToolCall
from antiphon.session.runtime import local_runtime
from antiphon.testing import script


def inbox(session_id):
    session = local_runtime().cell().session(session_id)
    return session.inbox if session else []


async def test_nobody_looks_for_the_worker_of_a_turn_of_this_process(monkeypatch):
    looked = []

    async def look(cell, turn_id):
        looked.append(turn_id)

    monkeypatch.setattr("antiphon.redis.runtime.warn_if_unserved", look)
    go_on = asyncio.Event()

    @tool
    async def wait() -> str:
        await go_on.wait()
        return "waited"

    agent = Agent(script(ToolCall("", "wait"), "one", "two"), "any", tools=[wait])
    first = asyncio.create_task(agent.session("s").run_async("a"))
    await wait_until_async(lambda: len(inbox("s")) == 1)
    second = asyncio.create_task(agent.session("s").run_async("b"))
    await wait_until_async(lambda: len(inbox("s")) == 2)
    await asyncio.sleep(0)
    go_on.set()
    assert [(await one).text for one in (first, second)] == ["one", "two"]
    assert looked == []


def used(agent):
    """End turns in every way after which they cannot run again."""
    session = agent.session("s")
    session.run("finished")
    session.submit("cancelled", delay=3600).cancel()
    for _ in range(2):
        session.submit("repeated", key="k").result(timeout=20)
    return weakref.ref(agent)


def test_turns_that_cannot_run_again_do_not_keep_their_agent():
    agent = used(Agent("scripted", "any"))

    def is_gone():
        gc.collect()
        return agent() is None

    wait_until(is_gone)


def test_a_failed_turn_keeps_its_agent_to_run_again():
    turn = Agent(script(ProviderRejected("no"), "yes"), "any").session("s").submit("a")
    with pytest.raises(ProviderRejected):
        turn.result(timeout=20)
    gc.collect()
    turn.requeue()
    assert turn.result(timeout=20).text == "yes"


def test_a_cancelled_turn_leaves_nothing_that_waits_for_its_time():
    Agent("scripted", "any").session("s").submit("a", delay=3600).cancel()
    wait_until(lambda: not local_runtime()._servers)


def test_a_turn_is_due_in_time_when_the_clock_is_put_back(monkeypatch):
    turn = Agent("scripted", "any").session("s").submit("a", delay=0.3)
    before = turn.info()
    monkeypatch.setattr("antiphon_worker.local.cell.now_ms", lambda: now_ms() - 3_600_000)
    assert turn.result(timeout=20).text == "You said: a"
    after = turn.info()
    assert before.due <= after.started < after.created + 60_000
