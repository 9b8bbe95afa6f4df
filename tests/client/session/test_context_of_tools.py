"""The context of a tool means the same in this process and on workers."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.eventually import wait_until

from antiphon import tool
from antiphon.errors import AgentError, ProviderRejected, TurnCancelled, TurnFailed
from antiphon.testing import script, tool_call
from antiphon.tools import Context
from antiphon_worker.loop.toolbox import PAUSE_SECONDS


@tool
def export(context: Context) -> str:
    """Say something in every way."""
    context.progress("Begun")
    context.emit("file.opened", {"name": "a.csv"})
    context.progress("Done", 1)
    context.emit("file.closed")
    return "exported"


async def test_a_reader_gets_what_a_tool_says_in_order_with_all_other_events(runtime):
    runtime.use(script(tool_call("export"), "Done"))
    session = runtime.agent(tools=[export]).session("s")
    turn = await session.submit_async("Export it")
    events = [event async for event in turn.stream()]
    await runtime.aclose()
    names = [event.type for event in events]
    said = names[names.index("tool_call") + 1 : names.index("tool_result")]
    assert said == ["tool_progress", "custom", "tool_progress", "custom"]
    assert [event.seq for event in events] == list(range(events[0].seq, events[0].seq + len(events)))
    begun, opened, done, closed = [one for one in events if one.type in ("tool_progress", "custom")]
    assert {(one.turn_id, one.run, one.attempt, one.step) for one in (begun, opened, done, closed)} == {
        (turn.id, 1, 1, 1)
    }
    assert {one.call_id for one in events if hasattr(one, "call_id")} == {"call_1"}
    assert (begun.name, begun.text, begun.fraction) == ("export", "Begun", None)
    assert (done.text, done.fraction) == ("Done", 1.0)
    assert (opened.name, opened.data) == ("file.opened", {"name": "a.csv"})
    assert (closed.name, closed.data) == ("file.closed", None)


def test_what_a_tool_says_stays_out_of_the_history(runtime):
    runtime.use(script(tool_call("export"), "Done"))
    session = runtime.agent(tools=[export]).session("s")
    response = session.run("Export it")
    assert [call.result for call in response.tool_calls] == ["exported"]
    assert "a.csv" not in str([message.parts for message in session.messages])


def test_progress_is_seen_while_the_tool_runs(runtime):
    seen = threading.Event()

    @tool
    def slow(context: Context) -> str:
        context.progress("Half", 0.5)
        return "seen" if seen.wait(10) else "nobody saw it"

    runtime.use(script(tool_call("slow"), "Done"))
    results = []
    for event in runtime.agent(tools=[slow]).session("s").stream("Go"):
        if event.type == "tool_progress":
            seen.set()
        if event.type == "tool_result":
            results.append(event.result)
    assert results == ["seen"]


def test_progress_in_a_tight_loop_makes_few_events(runtime):
    @tool
    def flood(context: Context) -> None:
        for number in range(20_000):
            context.progress(f"{number}", number / 20_000)

    runtime.use(script(tool_call("flood"), "Done"))
    began = time.monotonic()
    said = [
        event
        for event in runtime.agent(tools=[flood]).session("s").stream("Go")
        if event.type == "tool_progress"
    ]
    rounds = (time.monotonic() - began) / PAUSE_SECONDS
    assert 1 <= len(said) <= rounds + 2
    assert said[-1].text == "19999"


def test_a_tool_that_emits_too_much_fails_and_its_turn_goes_on(runtime):
    @tool
    def flood(context: Context) -> None:
        context.emit("large", "x" * 20_000)

    runtime.use(script(tool_call("flood"), "Done"))
    response = runtime.agent(tools=[flood]).session("s").run("Go")
    (call,) = response.tool_calls
    assert call.is_error
    assert "custom_bytes" in call.result
    assert response.text == "Done"


def waiting_tools(begun, told):
    @tool
    def thread(context: Context) -> None:
        begun.append(context.cancelled)
        wait_until(lambda: context.cancelled, description="the turn stops")
        told.append("thread")

    @tool
    async def coroutine(context: Context) -> None:
        begun.append(context.cancelled)
        try:
            await asyncio.Event().wait()
        finally:
            told.append(f"coroutine: {context.cancelled}")

    return [thread, coroutine]


def both_told(begun, told):
    wait_until(lambda: len(told) == 2, description="both tools know")
    assert begun == [False, False]
    assert sorted(told) == ["coroutine: True", "thread"]


def test_tools_are_told_that_their_turn_was_cancelled(runtime):
    begun, told = [], []
    runtime.use(script([tool_call("thread"), tool_call("coroutine")], "never"))
    turn = runtime.agent(tools=waiting_tools(begun, told)).session("s").submit("Go")
    wait_until(lambda: len(begun) == 2, description="both tools run")
    turn.cancel()
    both_told(begun, told)
    with pytest.raises(TurnCancelled):
        turn.result(60)


def test_tools_are_told_that_their_turn_has_run_out_of_time(runtime):
    begun, told = [], []
    runtime.use(script([tool_call("thread"), tool_call("coroutine")], "never"))
    turn = runtime.agent(tools=waiting_tools(begun, told)).session("s").submit("Go", timeout=1)
    both_told(begun, told)
    with pytest.raises(TurnFailed) as caught:
        turn.result(60)
    assert caught.value.code == "turn_timed_out"


def test_a_requeued_turn_gives_its_calls_other_keys(runtime):
    seen = []

    @tool
    def look(context: Context) -> None:
        seen.append((context.key, context.run))

    runtime.use(script(tool_call("look"), ProviderRejected("no"), tool_call("look"), "Done"))
    turn = runtime.agent(tools=[look]).session("s").submit("Go")
    with pytest.raises(AgentError):
        turn.result(60)
    turn.requeue()
    assert turn.result(60).text == "Done"
    (first, one), (second, two) = seen
    assert (one, two) == (1, 2)
    assert first != second
