"""What a tool says and hears through its context while it runs; on plain lists."""

import asyncio
import threading

import pytest
from support.eventually import wait_until
from support.journals import Journal

from antiphon.events import CustomEvent, ToolProgress, ToolResultEvent
from antiphon.model import Message, ToolCall
from antiphon.testing import script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker.loop import step_calls
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import run_loop
from antiphon_worker.loop.toolbox import PAUSE_SECONDS, RunningCall, ToolBox
from antiphon_worker.providers.scripted import ScriptedProvider


class Events(Journal):
    """Journal and sink of a turn: what they publish, in one list."""

    def of(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]


async def turn(*tools, calls=None, events=None, context=None):
    """Run a turn in which the model calls each tool once, and return its events."""
    events = events or Events()
    lines = script(calls or [tool_call(one.name) for one in tools], "Done")
    inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=list(tools))
    context = context or Context("session", "turn")
    await run_loop(ScriptedProvider(lines), inp, ToolBox(), events, events, context)
    return events


async def test_a_tool_is_told_attempt_run_and_step():
    seen = []

    @tool
    def look(context: Context) -> None:
        seen.append(context)

    await turn(look, context=Context("s", "t", attempt=3, run=2))
    (one,) = seen
    assert (one.session_id, one.turn_id, one.call_id) == ("s", "t", "call_1")
    assert (one.attempt, one.run, one.step_number) == (3, 2, 1)


async def test_every_call_has_a_key_of_its_own_and_keeps_it_when_it_is_repeated():
    keys = []

    @tool
    def look(context: Context) -> None:
        keys.append(context.key)

    calls = [tool_call("look"), tool_call("look")]
    await turn(look, calls=calls)
    await turn(look, calls=calls, context=Context("session", "turn", attempt=2))
    await turn(look, calls=calls, context=Context("session", "turn", run=2))
    await turn(look, calls=calls, context=Context("session", "other"))
    assert sorted(keys[:2]) == sorted(keys[2:4])
    assert len(set(keys)) == 6


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
async def test_what_a_tool_says_is_published_before_its_result_in_order(kind):
    def say(context):
        context.progress("Begun")
        context.emit("found", {"rows": [1]})
        context.progress("Half", 0.5)
        context.progress("All but done", 0.9)

    @tool
    def synchronous(context: Context) -> str:
        say(context)
        return "said"

    @tool
    async def asynchronous(context: Context) -> str:
        say(context)
        return "said"

    events = await turn({"synchronous": synchronous, "asynchronous": asynchronous}[kind])
    begun, found, *last, result = events.of(ToolProgress, CustomEvent, ToolResultEvent)
    where = {"step": 1, "call_id": "call_1"}
    assert begun.to_dict() == ToolProgress(**where, name=kind, text="Begun").to_dict()
    assert found.to_dict() == CustomEvent(**where, name="found", data={"rows": [1]}).to_dict()
    assert last[-1].to_dict() == ToolProgress(**where, name=kind, text="All but done", fraction=0.9).to_dict()
    assert result.result == "said"
    assert [type(entry).__name__ for entry in events.entries] == ["StepEntry", "ToolFinished"]


async def test_what_a_tool_says_is_published_while_it_runs():
    events = Events()

    @tool
    def wait(context: Context) -> None:
        for number in range(3):
            context.progress(f"{number}")
            wait_until(lambda: len(events.of(ToolProgress)) > number, description="it is published")  # noqa: B023

    await turn(wait, events=events)
    assert [event.text for event in events.of(ToolProgress)] == ["0", "1", "2"]


async def test_a_full_sink_is_given_nothing_until_the_call_is_over():
    events = Events()
    heard = []

    @tool
    async def wait(context: Context) -> None:
        events.full = True
        context.progress("1")
        for number in range(100):
            context.emit("e", number)
        loop, passed = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(3 * PAUSE_SECONDS, passed.set)
        await passed.wait()
        heard.append(len(events.of(ToolProgress, CustomEvent)))

    await turn(wait, events=events)
    assert heard == [0]
    assert len(events.of(ToolProgress, CustomEvent)) == 101


async def test_a_call_may_publish_a_thousand_events_and_the_tool_is_told():
    @tool
    def flood(context: Context) -> str:
        for number in range(1_001):
            context.emit("e", number)
        return "never"

    events = await turn(flood)
    assert [event.data for event in events.of(CustomEvent)] == list(range(1_000))
    (result,) = events.of(ToolResultEvent)
    assert "custom_events" in result.result
    assert result.is_error


async def test_events_from_many_threads_are_all_published():
    @tool
    def share(context: Context) -> None:
        threads = [
            threading.Thread(target=lambda n=n: [context.emit("e", [n, m]) for m in range(50)])
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = await turn(share)
    said = [tuple(event.data) for event in events.of(CustomEvent)]
    assert sorted(said) == [(n, m) for n in range(8) for m in range(50)]
    assert all([m for n, m in said if n == one] == list(range(50)) for one in range(8))


async def test_a_synchronous_tool_that_takes_too_long_is_told_and_says_nothing_more(caplog):
    ended = threading.Event()

    @tool(timeout=0.05)
    def slow(context: Context) -> None:
        context.progress("working")
        wait_until(lambda: context.cancelled, description="it is cancelled")
        wait_until(lambda: events.of(ToolResultEvent), description="its result is there")
        assert context.cancelled
        context.progress("late")
        context.emit("late")
        ended.set()

    events = Events()
    await turn(slow, events=events)
    wait_until(ended.is_set, description="the tool has ended")
    assert [event.text for event in events.of(ToolProgress)] == ["working"]
    assert events.of(CustomEvent) == []
    (line,) = [one.getMessage() for one in caplog.records if "is dropped" in one.getMessage()]
    assert line.startswith("tool slow (call call_1) in turn turn ")


async def test_a_tool_that_ignores_its_cancellation_says_nothing_after_its_turn(monkeypatch, caplog):
    monkeypatch.setattr(step_calls, "CANCEL_GRACE_SECONDS", 0.05)
    begun, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    events = Events()

    @tool
    async def stubborn(context: Context) -> None:
        begun.set()
        while not goes_on.is_set():
            try:
                await goes_on.wait()
            except asyncio.CancelledError:
                context.progress("not yet")
        context.progress("too late")
        ended.set()

    work = asyncio.create_task(turn(stubborn, events=events))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    goes_on.set()
    await ended.wait()
    assert [event.text for event in events.of(ToolProgress)] == ["not yet"]
    assert "is dropped" in caplog.text


async def test_what_is_said_when_the_loop_is_closed_harms_nobody():
    loop = asyncio.new_event_loop()

    async def begin():
        return RunningCall(ToolCall("c1", "t", {}), 1, Events(), "turn", None)

    running = await asyncio.to_thread(loop.run_until_complete, begin())
    loop.close()
    running.progress("nobody hears it", None)
