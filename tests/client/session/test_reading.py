"""Whoever reads the events of a turn of their own uses the same session in the body of the loop."""

import asyncio
from functools import partial

import pytest
from support.eventually import wait_until

from antiphon import Agent, Message

CALLS = {
    "run": lambda session: session.run("b"),
    "clear": lambda session: session.clear(),
    "add_message": lambda session: session.add_message(Message.user("x")),
    "variables": lambda session: session.variables.update(a=1),
    "close": lambda session: session.close(),
    "delete": lambda session: session.delete(),
}


@pytest.mark.parametrize("call", CALLS)
def test_at_the_last_event_of_a_stream_the_session_is_free(runtime, call):
    session = runtime.agent().session("s")
    for event in session.stream("a"):
        if event.type == "turn_finished":
            CALLS[call](session)
    assert session.status().running is None


async def test_at_the_last_event_of_an_asynchronous_stream_the_session_is_free(runtime):
    session = runtime.agent().session("s")
    async for event in session.stream_async("a"):
        if event.type == "turn_finished":
            assert (await session.run_async("b")).text == "You said: b"
    assert [one.text for one in await session.messages_async()] == [
        "a", "You said: a", "b", "You said: b",
    ]  # fmt: skip
    await runtime.aclose()


def test_leaving_at_the_last_event_keeps_the_turn_and_lets_only_one_other_in(runtime):
    session = runtime.agent().session("s")
    with session.stream("a") as events:
        assert next(event for event in events if event.terminal)
        session.submit("b").result(60)
    assert [one.text for one in session.messages] == ["a", "You said: a", "b", "You said: b"]


@pytest.mark.parametrize("call", [name for name in CALLS if name != "delete"])
def test_the_session_of_a_turn_that_is_read_waits_for_no_reader(runtime, call):
    session, types = runtime.agent().session("s"), []
    for event in session.stream("a b"):
        if event.type == "turn_started":
            CALLS[call](session)
        types.append(event.type)
    assert types[-1] == "turn_finished"


def test_the_result_of_a_later_turn_is_there_while_reading(runtime):
    session, read = runtime.agent().session("s"), 0
    for event in session.stream("a"):
        if event.type == "turn_started":
            assert session.submit("b").result(60).text == "You said: b"
            read += 1
    assert read == 1


async def test_an_asynchronous_call_waits_for_the_turn_that_is_read(runtime):
    session, read = runtime.agent().session("s"), 0
    async for event in session.stream_async("a"):
        if event.type == "turn_started":
            assert (await session.run_async("b")).text == "You said: b"
            read += 1
    assert read == 1
    await runtime.aclose()


async def test_a_task_that_was_started_while_reading_waits_for_the_turn():
    session, task = Agent("scripted", "any").session("s"), None
    async for _event in session.stream_async("a"):
        task = task or asyncio.create_task(session.run_async("b"))
    assert task
    assert (await task).text == "You said: b"


async def test_who_has_left_the_loop_may_use_the_session_by_another_handle():
    agent = Agent("scripted", "any")
    async for event in agent.session("s").stream_async("a"):
        if event.type == "text_delta":
            break
    assert (await agent.session("s").run_async("b")).text == "You said: b"
    assert len(await agent.session("s").messages_async()) == 2


def in_the_inbox(session, turns):
    return len(session.status().waiting) == 2 or turns[-1].status() == "finished"


def test_a_turn_may_be_submitted_and_other_sessions_used_while_reading(runtime):
    agent = runtime.agent()
    session, turns = agent.session("s"), []
    for event in session.stream("a"):
        if event.type == "turn_started":
            turns += [session.submit("b"), session.submit("c", delay=0.001)]
            wait_until(
                partial(in_the_inbox, session, turns), description="the delayed turn stands in the inbox"
            )
            assert agent.session("other").run("x").text == "You said: x"
    assert [turn.result(60).text for turn in turns] == ["You said: b", "You said: c"]
