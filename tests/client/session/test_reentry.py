"""Who waits for what: edits of sessions that are never idle, and calls that would wait for themselves."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import Message
from antiphon.errors import AgentError, ResultTimeout, UsageError
from antiphon.redis import runtime as redis_runtime
from antiphon.testing import script, tool_call


class Gates:
    """A model that waits in each answer until the test lets it go on."""

    def __init__(self, count):
        self.begun = [threading.Event() for _ in range(count)]
        self.opened = [threading.Event() for _ in range(count)]
        self.script = script(*([self._wait(number), f"a{number}"] for number in range(count)))

    def _wait(self, number):
        async def wait():
            self.begun[number].set()
            await wait_until_async(self.opened[number].is_set, description=f"gate {number} opens")

        return wait


def test_an_edit_of_a_session_that_is_never_idle_goes_before_the_turn_after_next(
    workers_runtime, monkeypatch
):
    """Whoever edits hears late of the end of each turn: the next one has begun by then, where it may."""
    gates, waited_for, ended = Gates(3), [], redis_runtime._ended

    async def late(turn, timeout=None):
        waited_for.append(turn.id)
        await ended(turn, timeout)
        with suppress(AssertionError):
            await wait_until_async(gates.begun[len(waited_for)].is_set, timeout=0.05)

    monkeypatch.setattr(redis_runtime, "_ended", late)
    workers_runtime.use(gates.script)
    session = workers_runtime.agent().session("s")
    turns = [session.submit("0")]
    message = {"role": "user", "content": "the edit"}
    thread = threading.Thread(target=session.add_message, args=(message,))
    thread.start()
    wait_until(lambda: len(waited_for) == 1, description="the edit waits for the only turn")
    turns += [session.submit("1"), session.submit("2")]
    gates.opened[0].set()
    wait_until(lambda: len(waited_for) == 2, description="the edit waits for the turn that has begun")
    gates.opened[1].set()
    gates.opened[2].set()
    thread.join(20)
    assert [turn.result(60).text for turn in turns] == ["a0", "a1", "a2"]
    assert waited_for == [turn.id for turn in turns[:2]]
    assert [message.text for message in session.messages] == ["0", "a0", "1", "a1", "the edit", "2", "a2"]


def texts(session):
    return [message.text for message in session.messages]


def test_a_child_that_reports_within_its_parents_own_turn_is_told_what_to_do_instead(runtime):
    told, children = [], []

    def research() -> str:
        """Look it up."""
        child = parent.child()
        children.append(child)
        answer = child.run("Search").text
        try:
            child.report()
        except AgentError as error:
            told.append(error)
        return answer

    runtime.use(script(tool_call("research"), "The facts.", "Done."))
    parent = runtime.agent(tools=[research]).session("parent")
    assert parent.run("Find out").tool_calls[0].result == "The facts."
    (error,) = told
    assert isinstance(error, UsageError)
    assert "would wait for the turn that it is part of" in error.message
    assert "also a child's answer" in error.message
    assert texts(parent)[-1] == "Done."
    children[0].report()
    assert texts(parent)[-2:] == ["Done.", "The facts."]


def test_a_child_that_reports_within_an_asynchronous_tool_is_told_so_too(runtime):
    async def research() -> str:
        """Look it up."""
        child = parent.child()
        await child.run_async("Search")
        await child.report_async()
        return "reported"

    runtime.use(script(tool_call("research"), "The facts.", "Done."))
    parent = runtime.agent(tools=[research]).session("parent")
    (call,) = parent.run("Find out").tool_calls
    assert call.is_error
    assert "would wait for the turn that it is part of" in call.result


WAITING = {
    "run": lambda session: session.run("again"),
    "json": lambda session: session.json("again", schema={"type": "object"}),
    "stream": lambda session: next(session.stream("again")),
    "add_message": lambda session: session.add_message(Message.user("x")),
    "clear": lambda session: session.clear(),
    "set_variables": lambda session: session.set_variables({"a": 1}),
    "close": lambda session: session.close(),
    "delete": lambda session: session.delete(),
}


@pytest.mark.parametrize("submitted", [False, True], ids=["run", "submitted"])
@pytest.mark.parametrize("call", WAITING)
def test_a_tool_is_told_that_its_call_would_wait_for_itself(runtime, call, submitted):
    def again() -> str:
        """Ask again."""
        WAITING[call](session)
        return "never"

    runtime.use(script(tool_call("again"), "Done."))
    session = runtime.agent(tools=[again]).session("s")
    response = session.submit("Go").result(60) if submitted else session.run("Go")
    assert response.text == "Done."
    assert "would wait for the turn that it is part of" in response.tool_calls[0].result
    assert len(session.messages) == 4


def test_a_tool_may_submit_turns_of_its_own_session_for_later(runtime):
    turns, told = [], []

    def later() -> str:
        """Go on later."""
        turns.extend([session.submit("1"), session.submit("2", delay=0.01)])
        for timeout in (0, None):
            try:
                turns[0].result(timeout)
            except AgentError as error:
                told.append(error)
        return "submitted"

    runtime.use(script(tool_call("later"), "Done.", "a", "b"))
    session = runtime.agent(tools=[later]).session("s")
    assert session.run("Go").tool_calls[0].result == "submitted"
    assert {turn.result(60).text for turn in turns} == {"a", "b"}
    assert [type(error) for error in told] == [ResultTimeout, UsageError]
    assert "would wait for the turn that it is part of" in told[1].message


def test_what_a_tool_leaves_behind_may_use_the_session_when_the_turn_has_ended(runtime):
    ended, answers, left = threading.Event(), [], []

    async def later():
        await wait_until_async(ended.is_set, description="the turn has ended")
        answers.append((await session.run_async("later")).text)

    async def start() -> str:
        """Do something later."""
        left.append(asyncio.get_running_loop().create_task(later()))
        return "started"

    runtime.use(script(tool_call("start"), "Done.", "Now."))
    session = runtime.agent(tools=[start]).session("s")
    assert session.run("Go").text == "Done."
    ended.set()
    wait_until(lambda: answers, description="the answer of what was left behind")
    assert answers == ["Now."]


def test_a_tool_may_wait_for_other_sessions(runtime):
    def other() -> str:
        """Ask in another session."""
        return agent.session("other").run("Hi").text

    runtime.use(script(tool_call("other"), "Hello.", "Done."))
    agent = runtime.agent(tools=[other])
    assert agent.session("s").run("Go").tool_calls[0].result == "Hello."
