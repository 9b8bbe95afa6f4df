"""Synchronous calls: from threads, inside loops, after forks, interrupted, and from tools."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import threading

import pytest
from support.eventually import wait_until

from antiphon import Agent, tool
from antiphon.errors import UsageError
from antiphon.session.background import call, iterate, spawn
from antiphon.testing import script, tool_call

where = contextvars.ContextVar("where", default="nowhere")


async def thread_of_loop():
    return threading.current_thread()


def test_there_is_one_loop_for_all_threads():
    seen = set()
    threads = [threading.Thread(target=lambda: seen.add(call(thread_of_loop()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    assert seen.pop().daemon


def test_the_callers_context_goes_along():
    async def read():
        return where.get()

    where.set("here")
    assert call(read()) == "here"


def test_exceptions_come_back():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        call(fail())


def test_waiting_for_the_loop_on_the_loop_is_refused():
    async def nested():
        return call(thread_of_loop())

    with pytest.raises(UsageError, match="_async"):
        call(nested())


def test_leaving_an_iteration_closes_the_generator_first():
    closed = []

    async def numbers():
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    for number in iterate(numbers()):
        if number == 3:
            break
    assert closed == [True]


def test_an_iteration_dropped_on_the_loop_is_closed_too():
    closed = threading.Event()

    async def numbers():
        try:
            yield 1
        finally:
            closed.set()

    async def drop(items):
        items.clear()

    items = [iterate(numbers())]
    next(items[0])
    call(drop(items))
    gc.collect()
    assert closed.wait(5)


def test_an_interrupted_call_cleans_up_before_it_raises():
    started, cleaned = threading.Event(), []

    async def work():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    def interrupt():
        started.wait(5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call(work())
    thread.join()
    assert cleaned == [True]


def test_an_interrupted_run_leaves_nothing_in_the_history():
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    async def forever():
        await asyncio.Event().wait()

    session = Agent(script(["half ", interrupt, forever], "whole"), "any").session()
    with pytest.raises(KeyboardInterrupt):
        session.run("1")
    session.run("2")
    assert [message.text for message in session.messages] == ["2", "whole"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_the_sessions_and_a_loop_of_its_own():
    session = Agent(script("one", "two"), "any").session()
    session.run("1")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            session.run("2")
            code = 0 if len(session.messages) == 4 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    session.run("2")
    assert len(session.messages) == 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_in_the_middle_of_a_turn_is_not_stuck():
    entered, leave = threading.Event(), threading.Event()

    async def hold():
        entered.set()
        await asyncio.to_thread(leave.wait, 10)

    session = Agent(script(["a", hold], "two"), "any").session()
    turn = session.submit("1")
    assert entered.wait(5)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if session.run("2").text == "two" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    leave.set()
    assert turn.result(10).text == "a"


def test_a_tool_may_use_another_session():
    expert = Agent(script("forty-two"), "any")

    @tool
    def ask(question: str) -> str:
        """Ask the expert."""
        return expert.session().run(question).text

    @tool
    async def ask_async(question: str) -> str:
        """Ask the expert."""
        return (await expert.session().run_async(question)).text

    for asked in (ask, ask_async):
        expert.provider = script("forty-two")
        session = Agent(script(tool_call(asked.name, question="?"), "Done."), "any", tools=[asked]).session()
        assert session.run("Ask").tool_calls[0].result == "forty-two"


def test_a_tool_that_waits_for_its_own_session_is_told_so():
    sessions = []

    @tool
    def again() -> str:
        """Say it again."""
        return sessions[0].run("again").text

    @tool
    async def again_async() -> str:
        """Say it again."""
        return (await sessions[0].run_async("again")).text

    for tried in (again, again_async):
        session = Agent(script(tool_call(tried.name), "Done."), "any", tools=[tried]).session()
        sessions[:] = [session]
        outcome = session.run("Go").tool_calls[0]
        assert outcome.is_error
        assert "wait for the turn that it is part of" in outcome.result


def test_a_tool_sees_the_callers_context():
    @tool
    def read() -> str:
        """Read it."""
        return where.get()

    where.set("a view")
    session = Agent(script(tool_call("read"), "Done."), "any", tools=[read]).session()
    assert session.run("Go").tool_calls[0].result == "a view"


async def test_an_asynchronous_tool_runs_on_the_callers_loop():
    loops = []

    @tool
    async def note() -> str:
        """Note it."""
        loops.append(asyncio.get_running_loop())
        return "noted"

    session = Agent(script(tool_call("note"), "Done."), "any", tools=[note]).session()
    await session.run_async("Go")
    assert loops == [asyncio.get_running_loop()]


def test_one_session_is_used_from_several_loops():
    session = Agent(script(lambda request: f"{len(request.messages)}", repeat=True), "any").session()

    async def several():
        await asyncio.gather(*(session.run_async("x") for _ in range(5)))

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    session.run("x")
    for thread in threads:
        thread.join()
    assert [message.text for message in session.messages[1::2]] == [f"{n}" for n in range(1, 33, 2)]


def test_spawned_work_goes_on_alone():
    done = threading.Event()

    async def work():
        done.set()

    spawn(work())
    wait_until(done.is_set, description="the work is done")
