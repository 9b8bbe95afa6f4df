"""Turns of a session: run, stream, json, submit; owned by their callers, served in order."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pytest
from pydantic import BaseModel
from support.eventually import wait_until, wait_until_async

from antiphon import Agent, Message, tool
from antiphon.errors import (
    AgentError,
    InvalidMessage,
    InvalidOutput,
    KeyReused,
    ProviderOverloaded,
    ProviderRejected,
    ResultTimeout,
    SessionBusy,
    TurnCancelled,
    UnknownAgent,
    UsageError,
)
from antiphon.events import TurnFinished
from antiphon.model import Image, Text, Usage
from antiphon.testing import answer, script, tool_call


class Gate:
    """A model that waits in the middle of its answer until it is let go, wherever it runs."""

    def __init__(self, *answers):
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.script = script(*(["begun ", self._wait, text] for text in answers))

    async def _wait(self):
        self.reached.set()
        await wait_until_async(self.opened.is_set, description="the test opens the gate")

    def wait(self):
        assert self.reached.wait(10)
        self.reached.clear()

    def open(self):
        self.opened.set()


def roles(session):
    return [message.role for message in session.messages]


def texts(session):
    return [message.text for message in session.messages]


def test_a_session_remembers(runtime):
    runtime.use(lines := script("Hello.", "Alice."))
    session = runtime.agent(system="Be brief.").session()
    assert session.run("I am Alice.").text == "Hello."
    response = session.run("Who am I?")
    assert response.text == "Alice."
    assert response.session_id == session.session_id
    assert response.stop_reason == "end"
    assert [message.text for message in lines.requests[1].messages] == ["I am Alice.", "Hello.", "Who am I?"]
    assert lines.requests[1].system == "Be brief."
    assert texts(session) == ["I am Alice.", "Hello.", "Who am I?", "Alice."]


def test_parameters_of_one_call_go_to_the_model(runtime):
    runtime.use(lines := script("a", "b"))
    session = runtime.agent(model="small", temperature=0.1, max_tokens=5).session()
    session.run("1", temperature=0.7, max_tokens=500)
    session.run("2", model="large")
    assert lines.requests[0].params == {"temperature": 0.7, "max_tokens": 500}
    assert lines.requests[1].params == {"temperature": 0.1, "max_tokens": 5}
    assert [request.model for request in lines.requests] == ["small", "large"]


def test_input_is_text_parts_or_a_message(runtime):
    runtime.use(script("a", "b", "c"))
    session = runtime.agent().session()
    session.run(["Look: ", Image(url="https://example.com/a.png")])
    session.run(Message.user("two"))
    session.run({"role": "user", "content": "three"})
    parts = [message.parts for message in session.messages if message.role == "user"]
    assert parts == [[Text("Look: "), Image(url="https://example.com/a.png")], [Text("two")], [Text("three")]]


def test_the_input_is_not_changed_by_the_turn(runtime):
    runtime.use(script("a"))
    message = Message.user("Hi")
    runtime.agent().session().run(message)
    assert message == Message.user("Hi")


@pytest.mark.parametrize("given", [None, 7, [{"type": "hologram"}]])
def test_what_is_no_input_is_refused_before_anything_happens(runtime, given):
    session = runtime.agent().session()
    with pytest.raises(InvalidMessage):
        session.run(given)
    with pytest.raises(InvalidMessage):
        session.stream(given)
    assert session.messages == []


def test_messages_say_whose_turn_they_belong_to(runtime):
    runtime.use(script("a"))
    session = runtime.agent(name="support").session()
    response = session.run("Hi")
    assert [message.turn_id for message in session.messages] == [response.turn_id] * 2
    assert [message.agent for message in session.messages] == [None, "support"]
    assert all(message.created for message in session.messages)


def test_stream_gives_the_deltas_and_ends_with_the_response(runtime):
    runtime.use(script("one two three"))
    session = runtime.agent().session()
    events = list(session.stream("Count"))
    assert "".join(event.text for event in events if event.type == "text_delta") == "one two three"
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].response.text == "one two three"
    assert roles(session) == ["user", "assistant"]
    seqs = [event.seq for event in events]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert {event.session_id for event in events} == {session.session_id}
    assert {event.turn_id for event in events} == {session.messages[0].turn_id}


def test_leaving_a_stream_early_leaves_nothing(runtime):
    runtime.use(script("one two three", "four"))
    session = runtime.agent().session()
    for event in session.stream("Count"):
        if event.type == "text_delta":
            break
    assert session.messages == []
    session.run("Again")
    assert texts(session) == ["Again", "four"]


def test_a_stream_that_is_kept_is_left_all_the_same(runtime):
    runtime.use(script("one two three", "four"))
    session = runtime.agent().session()
    stream = session.stream("Count")
    for event in stream:
        if event.type == "text_delta":
            break
    assert session.run("Again").text == "four"
    assert texts(session) == ["Again", "four"]


def test_next_and_close_work_without_a_loop(runtime):
    runtime.use(script("one two three"))
    session = runtime.agent().session()
    with session.stream("Count") as stream:
        while next(stream).type != "text_delta":
            pass
    assert session.messages == []


def test_a_stream_that_is_never_read_does_nothing(runtime):
    runtime.use(lines := script("one"))
    session = runtime.agent().session()
    session.stream("Count")
    assert session.messages == []
    assert lines.requests == []


def test_breaking_at_the_terminal_event_keeps_the_turn(runtime):
    runtime.use(script("one two three"))
    session = runtime.agent().session()
    for event in session.stream("Count"):
        if event.terminal:
            break
    assert texts(session) == ["Count", "one two three"]


async def test_an_asynchronous_stream_works_with_and_without_await(runtime):
    runtime.use(script("one", "two"))
    session = runtime.agent().session()
    assert [event.text async for event in session.stream_async("a") if event.type == "text_delta"] == ["one"]
    assert [event.text async for event in await session.stream_async("b") if event.type == "text_delta"] == [
        "two"
    ]
    assert len(await session.messages_async()) == 4
    await runtime.aclose()


async def test_leaving_an_asynchronous_stream_early_leaves_nothing(runtime):
    runtime.use(script("one two three", "four"))
    session = runtime.agent().session()
    async for event in await session.stream_async("Count"):
        if event.type == "text_delta":
            break
    assert (await session.run_async("Again")).text == "four"
    assert [message.text for message in await session.messages_async()] == ["Again", "four"]
    await runtime.aclose()


async def test_a_cancelled_task_rolls_its_turn_back(runtime):
    gate = Gate("never", "yes")
    runtime.use(gate.script)
    session = runtime.agent().session()
    task = asyncio.create_task(session.run_async("Wait"))
    await wait_until_async(gate.reached.is_set, description="the model answers")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    assert (await session.run_async("Again")).text == "begun yes"
    assert [message.text for message in await session.messages_async()] == ["Again", "begun yes"]
    await runtime.aclose()


@pytest.mark.parametrize("error", [ProviderRejected("no"), AgentError("broken"), RuntimeError("a bug")])
def test_a_failure_is_an_agent_error_and_leaves_the_history_as_it_was(runtime, error):
    runtime.use(script("one", error, ["half an answer", error], "two"))
    session = runtime.agent().session()
    session.run("1")
    with pytest.raises(AgentError):
        session.run("2")
    with pytest.raises(AgentError) as caught:
        session.run("3")
    assert caught.value.session_id == session.session_id
    assert caught.value.turn_id
    assert texts(session) == ["1", "one"]
    session.run("4")
    assert texts(session) == ["1", "one", "4", "two"]


def test_a_provider_error_keeps_its_class(runtime):
    runtime.use(script(ProviderRejected("the model does not exist")))
    with pytest.raises(ProviderRejected, match="the model does not exist"):
        runtime.agent().session().run("Hi")


def test_a_failed_stream_raises_after_its_terminal_event(runtime):
    runtime.use(script(["half ", ProviderRejected("no")]))
    session = runtime.agent().session()
    seen = []
    with pytest.raises(ProviderRejected):
        seen.extend(event.type for event in session.stream("Hi"))
    assert seen[-1] == "turn_failed"
    assert seen.count("text_delta") == 1
    assert session.messages == []


def test_a_turn_that_takes_too_long_fails(runtime):
    gate = Gate("late")
    runtime.use(gate.script)
    session = runtime.agent().session()
    with pytest.raises(AgentError, match=r"0\.05 s") as caught:
        session.run("Hi", timeout=0.05)
    assert caught.value.code == "turn_timed_out"
    assert session.messages == []


@pytest.mark.parametrize("timeout", [0, -1, "soon", True])
def test_a_wrong_timeout_names_its_argument(runtime, timeout):
    with pytest.raises(UsageError, match="timeout="):
        runtime.agent().session().run("Hi", timeout=timeout)


@tool
def remember(name: str, value: str) -> str:
    """Remember something."""
    return f"{name} is {value}"


def test_tools_are_run_and_stay_in_the_history(runtime):
    runtime.use(script(tool_call("remember", name="cat", value="grey"), "Noted."))
    session = runtime.agent(tools=[remember]).session()
    response = session.run("My cat is grey.")
    assert response.text == "Noted."
    assert [(call.name, call.result) for call in response.tool_calls] == [("remember", "cat is grey")]
    assert roles(session) == ["user", "assistant", "tool", "assistant"]


def test_another_agent_works_on_one_turn(runtime):
    runtime.use(script("a", "b"))
    reviewer = runtime.agent(name="reviewer", model="large")
    session = runtime.agent(name="writer").session()
    session.run("1")
    session.run("2", agent=reviewer)
    assert [message.agent for message in session.messages if message.role == "assistant"] == [
        "writer",
        "reviewer",
    ]


def test_two_agents_share_one_session_by_its_id(runtime):
    runtime.use(script("a", "b"))
    runtime.agent(name="writer").session("shared").run("1")
    runtime.agent(name="reviewer").session("shared").run("2")
    assert texts(runtime.agent().session("shared")) == ["1", "a", "2", "b"]


def test_an_unknown_agent_is_named(runtime):
    with pytest.raises(UnknownAgent, match="'nobody'"):
        runtime.agent().session().run("Hi", agent="nobody")


class PydanticPlan(BaseModel):
    title: str
    steps: list[str]


class StructPlan(msgspec.Struct):
    title: str
    steps: list[str]


@dataclass
class DataPlan:
    title: str
    steps: list[str]


class DictPlan(TypedDict):
    title: str
    steps: list[str]


PLAN = {"title": "Cook", "steps": ["boil", "eat"]}


@pytest.mark.parametrize("schema", [PydanticPlan, StructPlan, DataPlan])
def test_structured_output_comes_as_the_type_asked_for(runtime, schema):
    runtime.use(lines := script(PLAN))
    session = runtime.agent().session()
    assert session.json("Plan", schema=schema).output == schema(**PLAN)
    assert lines.requests[0].output.schema["required"] == ["title", "steps"]


def test_structured_output_comes_as_a_typed_dictionary(runtime):
    runtime.use(script(PLAN, PLAN))
    session = runtime.agent().session()
    assert session.json("Plan", schema=DictPlan).output == PLAN
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    assert session.json("Plan", schema=schema).output == PLAN


def test_an_answer_that_does_not_fit_may_be_repaired_once(runtime):
    runtime.use(lines := script({"title": 7}, PLAN, "next"))
    session = runtime.agent().session()
    response = session.json("Plan", schema=StructPlan)
    assert response.output == StructPlan(**PLAN)
    assert "does not match StructPlan" in lines.requests[1].messages[-1].text
    assert roles(session) == ["user", "assistant"]
    assert texts(session)[0] == "Plan"
    assert msgspec.json.decode(texts(session)[1]) == PLAN
    session.run("And now?")
    assert [message.role for message in lines.requests[2].messages] == ["user", "assistant", "user"]


def test_an_answer_that_does_not_fit_twice_is_an_error_with_what_was_said(runtime):
    runtime.use(script("one", "no JSON", "still none"))
    session = runtime.agent().session()
    session.run("1")
    with pytest.raises(InvalidOutput) as caught:
        session.json("Plan", schema=StructPlan)
    assert caught.value.raw == "still none"
    assert texts(session) == ["1", "one"]


def test_a_repair_that_fails_leaves_nothing(runtime):
    runtime.use(script("no JSON", ProviderRejected("no")))
    session = runtime.agent().session()
    with pytest.raises(ProviderRejected):
        session.json("Plan", schema=StructPlan)
    assert session.messages == []


def test_what_cannot_be_asked_for_is_refused(runtime):
    with pytest.raises(UsageError):
        runtime.agent().session().json("Plan", schema=threading.Lock)


def test_two_threads_on_one_session_are_served_in_order(runtime):
    runtime.use(script(lambda request: f"answer to {request.messages[-1].text}", repeat=True))
    session = runtime.agent().session()
    threads = [threading.Thread(target=session.run, args=(f"{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = texts(session)
    assert sorted(found[::2]) == [f"{n}" for n in range(8)]
    assert found[1::2] == [f"answer to {text}" for text in found[::2]]


def test_a_busy_session_refuses_where_it_is_asked_to(runtime):
    gate = Gate("one")
    runtime.use(gate.script)
    session = runtime.agent().session()
    turn = session.submit("1")
    gate.wait()
    with pytest.raises(SessionBusy):
        session.run("2", if_busy="reject")
    with pytest.raises(SessionBusy):
        session.submit("2", if_busy="reject")
    with pytest.raises(SessionBusy):
        session.add_message(Message.user("2"), if_busy="reject")
    with pytest.raises(SessionBusy):
        session.clear(if_busy="reject")
    gate.open()
    assert turn.result(60).text == "begun one"
    assert texts(session) == ["1", "begun one"]


def test_an_unknown_way_to_treat_a_busy_session_is_named(runtime):
    session = runtime.agent().session()
    with pytest.raises(UsageError, match="if_busy="):
        session.run("1", if_busy="panic")
    with pytest.raises(UsageError, match="if_busy="):
        session.clear(if_busy="panic")


def test_edits_wait_for_the_turns_before_them(runtime):
    gate = Gate("one")
    runtime.use(gate.script)
    session = runtime.agent().session()
    turn = session.submit("1")
    gate.wait()
    edit = threading.Thread(target=session.add_message, args=(Message.user("noted"),))
    edit.start()
    assert session.messages == []
    gate.open()
    edit.join()
    assert turn.status() == "finished"
    assert texts(session) == ["1", "begun one", "noted"]


def test_a_submitted_turn_goes_on_without_its_caller(runtime):
    runtime.use(script(answer("one two", usage=Usage(3, 2))))
    session = runtime.agent().session()
    turn = session.submit("Count")
    response = turn.result(60)
    assert response.text == "one two"
    assert response.usage == Usage(3, 2)
    assert turn.status() == "finished"
    assert turn.session_id == session.session_id
    assert [event.type for event in turn.stream()][-1] == "turn_finished"
    assert {event.turn_id for event in turn.stream()} == {turn.id}


def test_waiting_for_a_submitted_turn_leaves_it_alone(runtime):
    gate = Gate("one")
    runtime.use(gate.script)
    session = runtime.agent().session()
    turn = session.submit("1")
    with pytest.raises(ResultTimeout):
        turn.result(timeout=0.05)
    for event in turn.stream():
        if event.type == "text_delta":
            break
    gate.open()
    assert turn.result(60).text == "begun one"


def test_a_stream_of_a_submitted_turn_goes_on_after_a_cursor(runtime):
    runtime.use(script("one two"))
    turn = runtime.agent().session().submit("Count")
    turn.result(60)
    events = list(turn.stream())
    assert [event.seq for event in turn.stream(after=events[1].seq)] == [event.seq for event in events[2:]]
    assert [event.seq for event in turn.stream(after=str(events[1].seq))] == [
        event.seq for event in events[2:]
    ]


def test_a_cancelled_turn_keeps_its_finished_steps(runtime):
    gate = Gate()
    runtime.use(script(tool_call("remember", name="cat", value="grey"), ["half ", gate._wait]))
    session = runtime.agent(tools=[remember]).session()
    turn = session.submit("My cat is grey.")
    gate.wait()
    assert turn.cancel("enough") == "requested"
    with pytest.raises(TurnCancelled, match="enough"):
        turn.result(60)
    assert turn.status() == "cancelled"
    assert turn.cancel() == "cancelled"
    assert roles(session) == ["user", "assistant", "tool"]


def test_a_cancelled_turn_without_a_finished_step_leaves_nothing(runtime):
    gate = Gate("one", "two")
    runtime.use(gate.script)
    session = runtime.agent().session()
    turn, next_turn = session.submit("1"), session.submit("2")
    gate.wait()
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result(60)
    gate.open()
    assert next_turn.result(60).text == "begun two"
    assert texts(session) == ["2", "begun two"]


def test_a_waiting_turn_can_be_cancelled(runtime):
    gate = Gate("one", "three")
    runtime.use(gate.script)
    session = runtime.agent().session()
    first, second, third = (session.submit(text) for text in "123")
    gate.wait()
    second.cancel()
    with pytest.raises(TurnCancelled):
        second.result(60)
    gate.open()
    first.result(60)
    third.result(60)
    assert texts(session) == ["1", "begun one", "3", "begun three"]


def test_a_failed_turn_says_so_to_everybody_who_asks(runtime):
    runtime.use(script(ProviderRejected("no")))
    session = runtime.agent().session()
    turn = session.submit("1")
    with pytest.raises(AgentError, match="no"):
        turn.result(60)
    assert turn.status() == "failed"
    assert list(turn.stream())[-1].type == "turn_failed"


def test_the_same_key_submits_once(runtime):
    runtime.use(lines := script("one", "two"))
    session = runtime.agent().session()
    first = session.submit("1", key="k")
    assert session.submit("1", key="k").id == first.id
    first.result(60)
    assert session.submit("1", key="k").result(60).text == "one"
    with pytest.raises(KeyReused):
        session.submit("2", key="k")
    assert runtime.agent().session().submit("1", key="k").id != first.id
    wait_until(lambda: len(lines.requests) == 2, description="the other session's turn runs")
    assert len(session.messages) == 2


def test_a_turn_may_be_submitted_for_later(runtime):
    runtime.use(script("now", "later"))
    session = runtime.agent().session()
    turn = session.submit("2", delay=0.3)
    assert session.run("1").text == "now"
    assert turn.result(60).text == "later"
    assert texts(session) == ["1", "now", "2", "later"]


async def test_everything_can_be_awaited(runtime):
    runtime.use(script("one", PLAN, "three"))
    session = runtime.agent().session(variables={"a": 1})
    assert (await session.run_async("1")).text == "one"
    assert (await session.json_async("2", schema=StructPlan)).output == StructPlan(**PLAN)
    turn = await session.submit_async("3")
    assert (await turn.result(60)).text == "three"
    assert await turn.status() == "finished"
    await session.add_message_async(Message.user("4"))
    assert len(await session.history_async(-1)) == 1
    await session.set_variables_async({"b": 2})
    assert await session.variables_async() == {"a": 1, "b": 2}
    await session.set_metadata_async({"c": 3})
    assert await session.metadata_async() == {"c": 3}
    fork = await session.fork_async()
    assert len((await fork.to_dict_async())["messages"]) == 7
    await session.clear_async()
    assert await session.messages_async() == []
    assert (await session.status_async()).messages == 0
    assert await session.children_async() == []
    assert await session.parent_async() is None
    await session.close_async()
    assert await session.delete_async() is True
    await runtime.aclose()


def test_synchronous_calls_work_inside_a_running_loop(runtime):
    runtime.use(script("one", "two"))

    async def notebook():
        session = runtime.agent().session()
        session.run("1")
        return [event.text for event in session.stream("2") if event.type == "text_delta"]

    assert asyncio.run(notebook()) == ["two"]


async def test_an_asynchronous_call_does_not_block_the_loop(runtime):
    gate = Gate("one")
    runtime.use(gate.script)
    session = runtime.agent().session()
    task = asyncio.create_task(session.run_async("1"))
    await wait_until_async(gate.reached.is_set, description="the model answers")
    assert not task.done()
    gate.open()
    assert (await task).text == "begun one"
    await runtime.aclose()


def test_status_says_what_is_done_running_and_waiting(runtime):
    gate = Gate("two")
    runtime.use(script(tool_call("remember", name="a", value="b"), ["x ", gate._wait, "y"], "z"))
    session = runtime.agent(tools=[remember]).session()
    assert session.status().state == "idle"
    first, second = session.submit("1"), session.submit("2")
    gate.wait()
    status = session.status()
    assert status.state == "busy"
    assert status.running.turn_id == first.id
    assert status.running.status == "running"
    assert status.running.step == 2
    assert status.waiting == [second.id]
    gate.open()
    second.result(60)
    wait_until(lambda: session.status().state == "idle", description="the session is idle")
    assert session.status().messages == 6


def test_retryable_errors_are_agent_errors_too():
    session = Agent(script(ProviderOverloaded("busy")), "any").session()
    with pytest.raises(ProviderOverloaded):
        session.run("Hi")
