"""Sessions of this process on the real SDKs, against a model server, in processes that must end without a word."""

import asyncio
import textwrap
import threading

import pytest
from support.models import ModelProcess

from antiphon import Agent
from antiphon.testing import script

ASK = """
    import asyncio
    from antiphon import Agent, tool
    from antiphon.errors import AgentError

    agent = Agent(provider="{provider}", model="any", max_tokens=200)
    session = agent.session()
    first = session.run("Hello")
    assert first.text.startswith("[turn 1"), first.text
    for event in session.stream("Again"):
        if event.type == "text_delta":
            break
    assert len(session.messages) == 2

    async def main():
        second = await session.run_async("And now?")
        assert second.text.startswith("[turn 2"), second.text
        async for event in await session.stream_async("Again"):
            if event.type == "text_delta":
                break
        assert len(await session.messages_async()) == 4

    asyncio.run(main())
    asyncio.run(session.run_async("On another loop"))
    third = session.run("And back")
    assert third.text.startswith("[turn 4"), third.text
    try:
        agent.session().run("Hi", model="no-such-model")
    except AgentError as error:
        print(error.code)
"""


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "anthropic"])
def test_a_session_talks_to_a_service_from_any_loop_and_ends_quietly(provider, processes):
    models = ModelProcess(processes)
    code = textwrap.dedent(ASK).replace("{provider}", provider)
    process = processes.python("-W", "error", "-c", code, env=models.environment)
    assert process.wait(60) == 0, process.output
    assert process.output == "provider_rejected\n"


async def test_whoever_waits_with_a_time_limit_misses_nothing():
    gate = threading.Event()
    lines = script(["Hello ", lambda: asyncio.to_thread(gate.wait), "World"])
    turn = await Agent(lines, "any").session().submit_async("hello")
    events, seen, gave_up = turn.stream(), [], 0
    while not seen or not seen[-1].terminal:
        try:
            seen.append(await asyncio.wait_for(anext(events), 0.002))
        except TimeoutError:
            gave_up += 1
            if gave_up > 3:
                gate.set()
    assert gave_up > 3
    assert [event.to_json() for event in seen] == [
        event.to_json() for event in [e async for e in turn.stream()]
    ]


async def test_a_silent_turn_gives_heartbeats():
    gate = threading.Event()
    lines = script([lambda: asyncio.to_thread(gate.wait), "World"])
    turn = await Agent(lines, "any").session().submit_async("hello")
    types = []
    async for event in turn.stream(heartbeat=0.01):
        types.append(event.type)
        if types.count("heartbeat") == 3:
            gate.set()
    assert types.count("heartbeat") >= 3
    assert [kind for kind in types if kind != "heartbeat"] == [
        "turn_queued", "turn_started", "text_delta", "step_finished", "turn_finished",
    ]  # fmt: skip


async def test_a_reader_that_is_closed_is_over():
    turn = await Agent(script("World"), "any").session().submit_async("hello")
    async with turn.stream() as events:
        first = await anext(events)
    assert first.type == "turn_queued"
    assert [event async for event in events] == []
