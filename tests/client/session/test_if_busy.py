"""A second message while a turn runs: it interrupts it, rolls it back, or steers it."""

from __future__ import annotations

import asyncio

import pytest
from support.eventually import wait_until
from support.gates import Gate

from antiphon import tool
from antiphon.errors import AgentError, ProviderRejected, SessionBusy, TurnCancelled, UsageError
from antiphon.testing import script, tool_call


def page(session, **options):
    return [(one.text or one.role, one.status) for one in session.history(**options)]


def said(session):
    return [one.text or one.role for one in session.messages]


def shown(request):
    """What the model was shown of the conversation."""
    return [one.text or one.role for one in request.messages]


def kinds(turn):
    return [event.type for event in turn.stream()]


class Held:
    """A tool that waits for the test, and with ``stubborn`` does not heed a cancellation."""

    def __init__(self, *, stubborn=False):
        self.gate = gate = Gate()

        @tool
        async def look() -> str:
            """Look."""
            try:
                await gate()
            except asyncio.CancelledError:
                if stubborn:
                    await gate()
                raise
            return "seen"

        self.tool = look


# Interrupt.


def test_an_interrupting_turn_keeps_what_was_said_and_runs_before_all_that_waits(runtime):
    gate = Gate()
    runtime.use(script(["half ", gate], "two", "three"))
    session = runtime.agent().session("s")
    first = session.submit("1")
    wait_until(lambda: any(event.type == "text_delta" for event in session_events(session, first)), 10)
    third = session.submit("3")
    second = session.submit("2", if_busy="interrupt")
    assert second.result(10).text == "two"
    assert third.result(10).text == "three"
    assert said(session) == ["1", "half ", "2", "two", "3", "three"]
    assert [one.interrupted for one in session.messages] == [False, True, False, False, False, False]
    with pytest.raises(TurnCancelled, match=f"interrupted by turn {second.id}"):
        first.result(10)
    ends = [event for event in first.stream() if event.terminal]
    assert [(end.type, end.keep, end.kept) for end in ends] == [("turn_cancelled", "partial", 2)]


def session_events(session, turn):
    """What has come of a turn that goes on."""
    found = []
    for event in turn.stream():
        found.append(event)
        if event.type == "text_delta":
            break
    return found


def test_an_interrupted_call_has_a_result_that_says_so(runtime):
    held = Held()
    lines = script([tool_call("look")], "two")
    runtime.use(lines)
    session = runtime.agent(tools=[held.tool]).session("s")
    session.submit("1")
    held.gate.wait()
    session.submit("2", if_busy="interrupt").result(10)
    assert said(session) == ["1", "assistant", "tool", "2", "two"]
    assert "unknown what it has done" in session.messages[2].tool_results[0].text
    assert shown(lines.requests[-1]) == ["1", "assistant", "tool", "2"]


def test_interrupting_twice_leaves_each_question_in_its_order(runtime):
    held = Held(stubborn=True)
    runtime.use(script([tool_call("look")], "answer"))
    session = runtime.agent(tools=[held.tool]).session("s")
    session.submit("1")
    held.gate.wait()
    turns = [session.submit(str(number), if_busy="interrupt") for number in (2, 3, 4)]
    held.gate.opened.set()
    assert turns[-1].result(10).text == "answer"
    questions = [one for one in session.messages if one.role == "user"]
    assert [one.text for one in questions] == ["1", "2", "3", "4"]
    assert session.messages[-1].text == "answer"
    for turn in turns[:-1]:
        assert turn.status() == "cancelled"


def test_nothing_is_stopped_in_an_idle_session(runtime):
    runtime.use(script("one", "two", "three"))
    session = runtime.agent().session("s")
    for number, mode in enumerate(["interrupt", "rollback", "steer"]):
        assert kinds(turn := session.submit(str(number), if_busy=mode))[-1] == "turn_finished"
        assert turn.info().steered_into is None
    assert said(session) == ["0", "one", "1", "two", "2", "three"]


# Roll back.


def test_nothing_stays_of_a_turn_that_is_rolled_back_but_its_own_record(runtime):
    gate = Gate()
    lines = script(["half ", gate], "two", "three")
    runtime.use(lines)
    session = runtime.agent().session("s")
    first = session.submit("1")
    wait_until(lambda: any(event.type == "text_delta" for event in session_events(session, first)), 10)
    third = session.submit("3")
    second = session.submit("2", if_busy="rollback")
    assert (second.result(10).text, third.result(10).text) == ("two", "three")
    assert said(session) == ["2", "two", "3", "three"]
    assert [shown(request) for request in lines.requests[1:]] == [["2"], ["2", "two", "3"]]
    assert first.error == f"rolled back for turn {second.id}"
    assert [one.text for one in first.info().messages] == ["half "]
    assert page(session, failed=True)[:2] == [("1", "cancelled"), ("half ", "cancelled")]


def test_the_turn_that_runs_next_is_rolled_back_where_the_running_one_is_being_stopped(runtime):
    held = Held(stubborn=True)
    lines = script([tool_call("look")], "answer")
    runtime.use(lines)
    session = runtime.agent(tools=[held.tool]).session("s")
    session.submit("1")
    held.gate.wait()
    second = session.submit("2", if_busy="interrupt")
    third = session.submit("3", if_busy="rollback")
    held.gate.opened.set()
    assert third.result(10).text == "answer"
    assert said(session) == ["1", "assistant", "tool", "3", "answer"]
    assert second.status() == "cancelled"


# Steer.


def test_a_steered_message_joins_the_next_model_call(runtime):
    held = Held()
    lines = script([tool_call("look")], "Now in French.", "next")
    runtime.use(lines)
    session = runtime.agent(tools=[held.tool]).session("s")
    first = session.submit("1")
    held.gate.wait()
    waiting = session.submit("waits")
    second = session.submit("in French", if_busy="steer", key="k")
    assert second.status() == "waiting"
    held.gate.opened.set()
    assert first.result(10).text == "Now in French."
    assert second.result(10).text == "Now in French."
    assert second.result(10).turn_id == first.id
    waiting.result(10)
    assert said(session) == ["1", "assistant", "tool", "in French", "Now in French.", "waits", "next"]
    assert [one.id for one in session.messages[:5]] == [f"{first.id}.{n}" for n in range(1, 6)]
    assert session.messages[3].created == second.created
    assert shown(lines.requests[1]) == ["1", "assistant", "tool", "in French"]
    assert [(second.status(), second.info().steered_into)] == [("finished", first.id)]
    assert kinds(second) == ["turn_queued", "turn_finished"]
    assert [*second.stream()][-1].steered_into == first.id
    steered = next(event for event in first.stream() if event.type == "turn_steered")
    assert (steered.steered_id, steered.step, steered.input[0].text) == (second.id, 2, "in French")
    assert session.submit("in French", if_busy="steer", key="k").id == second.id
    assert second.cancel() == "finished"
    assert [one.role for one in first.result(10).messages] == ["assistant", "tool", "user", "assistant"]


def test_a_steered_message_whose_turn_ends_first_is_a_turn_of_its_own(runtime):
    gate = Gate()
    lines = script(["one", gate], "two")
    runtime.use(lines)
    session = runtime.agent().session("s")
    first = session.submit("1")
    gate.wait()
    second = session.submit("2", if_busy="steer")
    gate.opened.set()
    assert (first.result(10).text, second.result(10).text) == ("one", "two")
    assert said(session) == ["1", "one", "2", "two"]
    assert second.info().steered_into is None


def test_several_messages_steer_a_turn_in_their_order_and_a_cancelled_one_does_not(runtime):
    held = Held()
    lines = script([tool_call("look")], "done")
    runtime.use(lines)
    session = runtime.agent(tools=[held.tool]).session("s")
    first = session.submit("1")
    held.gate.wait()
    turns = [session.submit(text, if_busy="steer") for text in ("a", "b", "c" * 5000)]
    assert turns[1].cancel() == "cancelled"
    held.gate.opened.set()
    first.result(10)
    assert shown(lines.requests[1])[3:] == ["a", "c" * 5000]
    steered = [event for event in first.stream() if event.type == "turn_steered"]
    assert [event.input_omitted for event in steered] == [False, True]
    assert turns[1].status() == "cancelled"


def test_a_turn_that_is_being_stopped_takes_no_steered_message(runtime):
    held = Held()
    lines = script([tool_call("look")], "two")
    runtime.use(lines)
    session = runtime.agent(tools=[held.tool]).session("s")
    session.submit("1")
    held.gate.wait()
    second = session.submit("2", if_busy="steer")
    assert session.cancel() == "requested"
    assert second.result(10).text == "two"
    assert said(session) == ["1", "assistant", "tool", "2", "two"]


def test_what_a_failed_turn_was_steered_with_stays_with_it_and_runs_again_with_it(runtime):
    held = Held()
    lines = script([tool_call("look")], ProviderRejected("no"), "at last")
    runtime.use(lines)
    session = runtime.agent(tools=[held.tool]).session("s")
    first = session.submit("1")
    held.gate.wait()
    second = session.submit("2", if_busy="steer")
    held.gate.opened.set()
    with pytest.raises(AgentError):
        first.result(10)
    assert [one.text or one.role for one in first.info().messages] == ["assistant", "tool", "2"]
    assert session.messages == []
    first.requeue()
    assert first.result(10).text == "at last"
    assert said(session) == ["1", "2", "at last"]
    assert second.status() == "finished"


def test_a_steered_message_is_kept_with_what_was_said(runtime):
    held, gate = Held(), Gate()
    runtime.use(script([tool_call("look")], ["half ", gate]))
    session = runtime.agent(tools=[held.tool]).session("s")
    first = session.submit("1")
    held.gate.wait()
    session.submit("2", if_busy="steer")
    held.gate.opened.set()
    gate.wait()
    assert first.cancel(keep="partial") == "requested"
    with pytest.raises(TurnCancelled):
        first.result(10)
    assert said(session) == ["1", "assistant", "tool", "2", "half "]


# What does not go together.


def test_a_busy_session_names_the_turn_that_it_runs(runtime):
    gate = Gate()
    runtime.use(script(["one", gate]))
    session = runtime.agent().session("s")
    first = session.submit("1")
    gate.wait()
    with pytest.raises(SessionBusy) as caught:
        session.submit("2", if_busy="reject")
    assert caught.value.turn_id == first.id
    gate.opened.set()
    first.result(10)


@pytest.mark.parametrize("mode", ["interrupt", "rollback", "steer"])
def test_a_delayed_turn_stops_and_steers_nothing(runtime, mode):
    with pytest.raises(UsageError, match="delay= and if_busy="):
        runtime.agent().session("s").submit("1", if_busy=mode, delay=1)


def test_only_a_submitted_turn_without_a_schema_steers(runtime):
    session = runtime.agent().session("s")
    with pytest.raises(UsageError, match=r"is for submit\(\)"):
        session.run("1", if_busy="steer")
    with pytest.raises(UsageError, match=r"is for submit\(\)"):
        session.regenerate(if_busy="steer")
    with pytest.raises(UsageError, match="schema= and"):
        session.submit("1", if_busy="steer", schema=dict)


def test_a_caller_that_runs_a_turn_interrupts_too(runtime):
    gate = Gate()
    runtime.use(script(["half ", gate], "two"))
    session = runtime.agent().session("s")
    session.submit("1")
    gate.wait()
    assert session.run("2", if_busy="interrupt").text == "two"
    assert said(session)[0] == "1"


# Beside turns.


def test_metadata_do_not_wait_for_the_turn_that_runs(runtime):
    gate = Gate()
    runtime.use(script(["one", gate]))
    session = runtime.agent().session("s", metadata={"plan": "free"})
    turn = session.submit("1")
    gate.wait()
    session.set_metadata({"plan": "paid"})
    session.metadata["seen"] = True
    assert turn.status() == "running"
    gate.opened.set()
    assert turn.result(10).text == "one"
    assert session.metadata == {"plan": "paid", "seen": True}
    assert said(session) == ["1", "one"]


def test_a_tool_sets_the_metadata_of_its_own_session(runtime):
    @tool
    async def mark() -> str:
        """Mark."""
        await session.set_metadata_async({"marked": True})
        return "ok"

    runtime.use(script([tool_call("mark")], "done"))
    session = runtime.agent(tools=[mark]).session("s")
    assert session.run("1").text == "done"
    assert session.metadata == {"marked": True}
