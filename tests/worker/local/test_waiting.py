"""Turns of this process that wait for one another, and what they leave behind."""

from __future__ import annotations

import asyncio

from support.eventually import wait_until, wait_until_async

from antiphon import Agent, tool
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


def test_a_finished_turn_does_not_keep_its_agent():
    runtime, session = local_runtime(), Agent("scripted", "any").session("s")
    before = len(runtime._carried)
    for _ in range(3):
        session.run("a")
    wait_until(lambda: len(runtime._carried) == before)
