"""Synchronous calls: from threads, inside loops, after forks, interrupted, and from tools."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import sys
import threading

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import Agent, tool
from antiphon.errors import UsageError
from antiphon.session import background
from antiphon.session.background import call, iterate, spawn, when_loop_ends
from antiphon.testing import script, tool_call

# What one call takes today: who needs more says so here, who needs less lowers it.
MOST_STEPS_A_CALL = 3
MOST_CALLS_A_CALL = 80

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


async def test_a_call_that_blocks_a_loop_names_the_asynchronous_one_once(caplog, monkeypatch):
    monkeypatch.setattr(background, "_blocking", set())
    session = Agent(script("a", repeat=True), "any").session()
    for _ in range(2):
        session.run("1")
        list(session.stream("2"))
        session.submit("3").result(60)
        assert session.messages
        assert session.variables == {}
        assert [info.session_id for info in session.agent.sessions()] == [session.session_id]
    told = [record for record in caplog.records if record.name == "antiphon.session"]
    assert {record.levelname for record in told} == {"WARNING"}
    assert [record.instead for record in told] == [
        "Session.run_async", "Session.stream_async", "Session.submit_async", "AsyncTurn.result",
        "Session.messages_async", "Session.variables_async", "AsyncSessionList",
    ]  # fmt: skip
    assert "use Session.run_async there instead" in told[0].getMessage()


def test_a_call_without_a_loop_says_nothing(caplog):
    Agent(script("a"), "any").session().run("1")
    assert [record for record in caplog.records if record.name == "antiphon.session"] == []


def test_a_call_is_handed_over_in_few_steps():
    """What wakes the loop, the call's beginning, and its task; and few calls of functions in both threads."""
    number, rounds, steps, calls = 50, [], 0, 0

    def note(frame, event, _argument):
        nonlocal steps, calls
        calls += event in ("call", "c_call")
        steps += event == "call" and frame.f_code is asyncio.events.Handle._run.__code__

    async def nothing():
        pass

    async def profile(function):
        sys.setprofile(function)

    known = sys.getprofile()
    call(profile(note))
    sys.setprofile(note)
    try:
        for _ in range(
            20
        ):  # what earlier tests have left on the loop, and the collector, only add to a round
            before = steps, calls
            for _ in range(number):
                call(nothing())
            rounds.append((steps - before[0], calls - before[1]))
    finally:
        sys.setprofile(known)
        call(profile(None))
    assert min(steps for steps, _ in rounds) / number <= MOST_STEPS_A_CALL + 0.1
    assert min(calls for _, calls in rounds) / number <= MOST_CALLS_A_CALL


def test_a_call_that_is_interrupted_before_its_first_step_ends():
    stepped = []

    async def work():
        stepped.append(True)

    async def hold(entered, leave):
        entered.set()
        leave.wait(10)

    entered, leave = threading.Event(), threading.Event()
    loop = call(running_loop())
    spawn(hold(entered, leave))  # the loop stands still, so that both wait for it
    assert entered.wait(10)
    started = background._Started(loop, work())
    started.begin()
    started.cancel()
    leave.set()
    _, error = started.wait()
    assert isinstance(error, asyncio.CancelledError) or stepped == [True]
    never = background._Started(loop, work())
    loop.call_soon_threadsafe(never._cancel)
    _, error = never.wait()
    assert isinstance(error, asyncio.CancelledError)


async def running_loop():
    return asyncio.get_running_loop()


def test_exceptions_come_back():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError):
        call(fail())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_task_that_raises_what_stops_loops_ends_only_itself(error, caplog):
    async def ends():
        raise error

    async def waits():
        await asyncio.create_task(ends())

    loop = call(thread_of_loop())
    for work in (ends, waits):
        with pytest.raises(type(error)):
            call(work())
    assert call(thread_of_loop()) is loop
    assert f"a task raised {type(error).__name__}" in caplog.text


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


def test_a_call_is_interrupted_by_a_signal_that_another_thread_receives():
    """It does not wake the thread that waits."""
    caller = threading.get_ident()

    async def forever():
        await wait_until_async(lambda: sys._current_frames()[caller].f_code.co_name == "wait")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        call(forever())


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
    assert turn.result(60).text == "a"


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


def test_spawned_work_goes_on_alone():
    done = threading.Event()

    async def work():
        done.set()

    spawn(work())
    wait_until(done.is_set, description="the work is done")


@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")
async def test_a_loop_that_goes_on_after_it_closed_its_generators_keeps_none_of_them():
    """``Runner.run_sync`` of the Agents SDK ends each run so."""
    loop, closed = asyncio.get_running_loop(), []

    async def close():
        closed.append(1)

    for _ in range(3):
        await when_loop_ends(close)
        await loop.shutdown_asyncgens()
    assert len(closed) == 3
    assert not background._waiting[loop]
