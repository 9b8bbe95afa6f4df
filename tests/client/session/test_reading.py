"""Whoever reads the events of a turn of their own uses the same session in the body of the loop."""

import asyncio
from functools import partial

import pytest
from support.eventually import wait_until

from antiphon import Agent, Message
from antiphon.errors import UsageError

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


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_would_wait_for_the_turn_being_read_here_says_so(call):
    session, refused = Agent("scripted", "any").session("s"), 0
    for event in session.stream("a b"):
        if event.type == "text_delta":
            with pytest.raises(UsageError, match="would deadlock"):
                CALLS[call](session)
            refused += 1
    assert refused == 4
    assert [one.text for one in session.messages] == ["a b", "You said: a b"]
    CALLS[call](session)


def test_the_result_of_a_later_turn_is_not_waited_for_while_reading():
    session, turns = Agent("scripted", "any").session("s"), []
    for event in session.stream("a"):
        if event.type == "turn_started":
            turns.append(session.submit("b"))
            with pytest.raises(UsageError, match="would deadlock"):
                turns[0].result()
    assert turns[0].result().text == "You said: b"


async def test_an_asynchronous_call_that_would_wait_for_the_turn_being_read_here_says_so():
    session = Agent("scripted", "any").session("s")
    async for event in session.stream_async("a"):
        if event.type == "text_delta":
            with pytest.raises(UsageError, match="would deadlock"):
                await asyncio.wait_for(session.run_async("b"), 20)
    assert (await session.run_async("c")).text == "You said: c"


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
