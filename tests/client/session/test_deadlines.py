"""``timeout=`` of a turn that its caller owns: one deadline over waiting, retries and running."""

import asyncio
import threading
import time

import pytest
from redis import Redis
from support.eventually import wait_until, wait_until_async

from antiphon import Agent
from antiphon.errors import AgentError, ProviderRateLimited, TurnFailed
from antiphon.testing import script
from antiphon_worker import Allow, App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings

SOON = 0.2
LONG = 10.0


@pytest.fixture
def gate():
    """Opened when the test is over."""
    opened = threading.Event()
    yield opened
    opened.set()


def waits_for(gate):
    async def wait():
        await wait_until_async(gate.is_set, timeout=60, description="the gate opens")

    return script([wait, "first"], ["second"])


def timed_out(act):
    began = time.monotonic()
    with pytest.raises(TurnFailed, match=r"within 0\.2 s") as caught:
        act()
    assert caught.value.code == "turn_timed_out"
    assert time.monotonic() - began < LONG


@pytest.mark.parametrize("call", ["run", "stream", "json"])
def test_a_turn_that_waits_for_another_one_is_given_up_at_its_time_out(runtime, gate, call):
    runtime.use(waits_for(gate))
    session = runtime.agent().session("s")
    first = session.submit("one")
    wait_until(lambda: session.status().running, description="the first turn runs")
    match call:
        case "run":
            timed_out(lambda: session.run("two", timeout=SOON))
        case "stream":
            timed_out(lambda: list(session.stream("two", timeout=SOON)))
        case _:
            timed_out(lambda: session.json("two", schema=dict, timeout=SOON))
    assert session.status().waiting == []
    gate.set()
    assert first.result(60).text == "first"
    assert [message.text for message in session.messages] == ["one", "first"]
    assert session.run("three").text == "second"


async def test_an_awaited_turn_is_given_up_at_its_time_out(runtime, gate):
    runtime.use(waits_for(gate))
    session = runtime.agent().session("s")
    first = await session.submit_async("one")
    with pytest.raises(TurnFailed, match="within"):
        async with asyncio.timeout(LONG):
            await session.run_async("two", timeout=SOON)
    gate.set()
    await first.result(60)
    assert len(await session.messages_async()) == 2
    await runtime.aclose()


def test_a_turn_that_no_worker_takes_is_given_up_at_its_time_out(redis_url):
    session = Agent("scripted", "any", redis=redis_url).session("s")
    timed_out(lambda: session.run("hi", timeout=SOON))
    assert session.status().waiting == []
    with Redis.from_url(redis_url) as redis:
        assert redis.zscore("ant:active", "s") is None


async def test_a_turn_that_waits_to_be_tried_again_is_given_up_at_its_time_out(redis_url):
    model = ScriptedProvider(script(ProviderRateLimited(retry_after=60.0), "late"))
    app = App(providers={"busy": model}, travelling=Allow(providers=["busy"]))
    worker = Worker(Settings(redis_url=redis_url), app, url=redis_url)
    working = asyncio.create_task(worker.run())
    session = Agent("busy", "any", redis=redis_url).session("s")
    seen = []

    async def read():
        async for event in session.stream_async("hi", timeout=1.0):
            seen.append(event.type)  # noqa: PERF401 - what came before the error

    with pytest.raises(TurnFailed) as caught:
        await asyncio.wait_for(read(), LONG)
    assert "turn_retrying" in seen
    assert caught.value.code == "turn_timed_out"
    assert (await session.status_async()).waiting == []
    await session.agent.runtime.aclose()
    worker.abort()
    await working


def test_the_repair_of_an_answer_has_what_is_left_of_the_time(runtime, gate):
    async def wait():
        await wait_until_async(gate.is_set, timeout=60, description="the gate opens")

    runtime.use(script("no JSON", [wait, "{}"]))
    session = runtime.agent().session("s")
    began = time.monotonic()
    with pytest.raises(AgentError) as caught:
        session.json("hi", schema=dict, timeout=1.0)
    assert caught.value.code == "turn_timed_out"
    assert time.monotonic() - began < LONG
    assert session.messages == []


def test_a_turn_at_work_says_in_its_terminal_event_that_it_timed_out(runtime, gate):
    runtime.use(waits_for(gate))
    seen = []
    with pytest.raises(TurnFailed):
        seen.extend(event.type for event in runtime.agent().session("s").stream("one", timeout=SOON))
    assert seen[-1] == "turn_failed"
