"""What was said can be read back, whatever became of its turn; stopping keeps it; failing leaves it for another try."""

from __future__ import annotations

import threading

import pytest
from support.eventually import wait_until
from support.gates import Gate

from antiphon import tool
from antiphon.errors import AgentError, KeyReused, ProviderRejected, TurnCancelled, UsageError
from antiphon.testing import script, tool_call
from antiphon.tools import Context


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def remember(context: Context) -> str:
    """Remember."""
    context.variables["cat"] = "grey"
    return "yes"


def ended(turn, code=None):
    """Wait for a turn that does not finish."""
    with pytest.raises(AgentError) as caught:
        turn.result(60)
    assert code is None or caught.value.code == code
    return caught.value


def page(session, **options):
    return [(one.text or one.role, one.status) for one in session.history(**options)]


def told(request):
    """What the model is told beside the conversation."""
    return [one.text for one in request.messages if one.role == "system"]


# Reading.


def test_a_turn_tells_all_that_it_was_submitted_with_and_what_became_of_it(runtime):
    runtime.use(script("Fine."))
    session = runtime.agent(name="doctor").session("s")
    turn = session.submit("How are you?", key="k1", metadata={"channel": "web"})
    turn.result(60)
    assert [one.text for one in turn.input] == ["How are you?"]
    assert (turn.agent, turn.key, turn.metadata) == ("doctor", "k1", {"channel": "web"})
    assert turn.created <= turn.started <= turn.ended
    assert (turn.attempt, turn.error, turn.due) == (1, None, None)
    assert turn.usage.output_tokens > 0
    info = turn.info()
    assert (info.turn_id, info.session_id, info.status) == (turn.id, "s", "finished")
    assert [one.text for one in info.messages] == ["Fine."]
    assert [(run.run, run.status) for run in turn.runs()] == [(1, "finished")]


def test_a_delayed_turn_says_when_it_is_due(runtime):
    session = runtime.agent().session("s")
    turn = session.submit("Later", delay=3600)
    assert turn.created + 3_599_000 < turn.due <= turn.created + 3_601_000
    assert (turn.status(), turn.started, turn.ended) == ("queued", None, None)
    assert turn.cancel() == "cancelled"


def test_accepted_turns_are_shown_behind_the_history_in_order_with_their_status(runtime):
    gate = Gate()
    runtime.use(script("one", ["two", gate], "three", "four"))
    session = runtime.agent().session("s")
    session.run("1")
    delayed = session.submit("later", delay=3600)
    turns = [session.submit(text) for text in ("2", "3", "4")]
    gate.wait()
    shown = [
        ("1", None),
        ("one", None),
        ("2", "running"),
        ("3", "waiting"),
        ("4", "waiting"),
        ("later", "queued"),
    ]
    assert page(session, pending=True) == shown
    assert page(session, start=1, pending=True) == shown[1:]
    assert page(session, start=0, stop=1, pending=True) == shown[:1]
    assert [one.turn_id for one in session.history(2, pending=True)] == [*(t.id for t in turns), delayed.id]
    assert [one.text for one in session.messages] == ["1", "one"], "the history is what it was"
    gate.opened.set()
    for turn in turns:
        turn.result(60)
    delayed.cancel()
    assert page(session, pending=True) == [(one.text, None) for one in session.messages]


def test_a_failed_turn_stands_in_its_place_with_its_question_its_error_and_what_it_said(runtime):
    runtime.use(script("one", ["half an ", ProviderRejected("the model broke")], "three"))
    session = runtime.agent().session("s")
    session.run("1")
    failed = session.submit("2")
    ended(failed)
    session.run("3")
    assert page(session, failed=True) == [
        ("1", None), ("one", None), ("2", "failed"), ("half an ", "failed"), ("3", None), ("three", None),
    ]  # fmt: skip
    question, said = session.history(failed=True)[2:4]
    assert (question.error, said.error, said.turn_id) == ("the model broke",) * 2 + (failed.id,)
    assert [one.text for one in session.messages] == ["1", "one", "3", "three"]
    assert (failed.error, failed.info().messages[0].text.strip()) == ("the model broke", "half an")
    assert failed.ended >= failed.started >= failed.created


def test_no_model_is_sent_what_failed(runtime):
    runtime.use(lines := script(["half an ", ProviderRejected("no")], "two"))
    session = runtime.agent().session("s")
    ended(session.submit("1"))
    session.run("2")
    assert [one.text for one in lines.requests[1].messages] == ["2"]


def test_what_was_run_and_failed_stands_there_too(runtime):
    runtime.use(script(ProviderRejected("no"), "two"))
    session = runtime.agent().session("s")
    with pytest.raises(ProviderRejected):
        session.run("1")
    session.run("2")
    assert page(session, failed=True) == [("1", "failed"), ("2", None), ("two", None)]


def test_each_page_of_the_history_shows_what_failed_there(runtime):
    runtime.use(script(ProviderRejected("no"), "two", ProviderRejected("no"), "four", ProviderRejected("no")))
    session = runtime.agent().session("s")
    for text in "12345":
        turn = session.submit(text)
        wait_until(lambda turn=turn: turn.ended is not None, description="the turn has ended")
    pages = [page(session, start=start, stop=start + 2, failed=True) for start in (0, 2)]
    assert pages[0] == [("1", "failed"), ("2", None), ("two", None)]
    assert pages[1] == [("3", "failed"), ("4", None), ("four", None), ("5", "failed")]
    assert page(session, start=-2, failed=True) == pages[1]
    assert page(session, failed=True) == pages[0] + pages[1]


def test_what_was_cancelled_while_it_waited_stands_behind_what_was_said_before(runtime):
    gate = Gate()
    runtime.use(script(["one", gate], "three"))
    session = runtime.agent().session("s")
    first, second, third = (session.submit(text) for text in "123")
    gate.wait()
    assert second.cancel("never mind") == "cancelled"
    gate.opened.set()
    first.result(60)
    third.result(60)
    assert page(session, failed=True) == [
        ("1", None), ("one", None), ("2", "cancelled"), ("3", None), ("three", None),
    ]  # fmt: skip
    assert (second.error, second.started) == ("never mind", None)


def test_what_failed_behind_a_cut_of_the_history_is_shown_there_no_more(runtime):
    runtime.use(script("one", ProviderRejected("no"), "three"))
    session = runtime.agent().session("s")
    session.run("1")
    failed = session.submit("2")
    ended(failed)
    session.clear()
    session.run("3")
    assert page(session, failed=True) == [("3", None), ("three", None)]
    assert failed.info().input[0].text == "2", "the turn itself can still be read"


def test_the_event_of_an_accepted_turn_carries_its_input_unless_it_is_long(runtime):
    runtime.use(script("one", "two"))
    session = runtime.agent().session("s")
    short, long = session.submit("Hello"), session.submit("x" * 5000)
    events = [next(iter(turn.stream())) for turn in (short, long)]
    assert [event.type for event in events] == ["turn_queued"] * 2
    assert ([one.text for one in events[0].input], events[0].input_omitted) == (["Hello"], False)
    assert (events[1].input, events[1].input_omitted) == ([], True)
    assert len(long.input[0].text) == 5000
    for turn in (short, long):
        turn.result(60)


# Stopping.


def stopped(runtime, keep, *steps, how="turn"):
    """A session whose turn was stopped at the gate in its script, the turn, and the requests to the model."""
    gate = Gate()
    lines = script(*[[gate if part is None else part for part in step] for step in steps], "next")
    runtime.use(lines)
    session = runtime.agent(tools=[pay]).session("s")
    turn = session.submit("Pay 3.")
    gate.wait()
    answer = session.cancel("enough", keep=keep) if how == "session" else turn.cancel("enough", keep=keep)
    assert answer == "requested"
    assert ended(turn, "turn_cancelled").message == "enough"
    return session, turn, lines


@pytest.mark.parametrize("how", ["turn", "session"])
def test_a_stop_that_keeps_leaves_the_question_and_the_beginning_of_the_answer(runtime, how):
    session, turn, lines = stopped(runtime, "partial", ["I will ", "pay ", None, "now"], how=how)
    assert [(one.role, one.text, one.interrupted) for one in session.messages] == [
        ("user", "Pay 3.", False), ("assistant", "I will pay ", True),
    ]  # fmt: skip
    last = list(turn.stream())[-1]
    assert (last.type, last.kept, last.keep) == ("turn_cancelled", 2, "partial")
    assert page(session, failed=True) == page(session), "it stands in the history, and only there"
    session.run("Why?")
    assert [one.text for one in lines.requests[-1].messages] == ["Pay 3.", "I will pay ", "Why?"]


def test_a_stop_before_the_first_word_leaves_the_question(runtime):
    session, _, _ = stopped(runtime, "partial", [None, "now"])
    assert [(one.text, one.interrupted) for one in session.messages] == [("Pay 3.", True)]


def test_a_stop_that_keeps_leaves_the_steps_that_were_finished_and_the_answer_after_them(runtime):
    session, turn, _ = stopped(runtime, "partial", [tool_call("pay", amount=3)], ["Done, ", None])
    assert [(one.role, one.interrupted) for one in session.messages] == [
        ("user", False), ("assistant", False), ("tool", False), ("assistant", True),
    ]  # fmt: skip
    assert [result.text for result in outcomes(turn)] == ["paid 3"]


def outcomes(turn):
    return [result for one in turn.info().messages for result in one.tool_results]


@pytest.mark.parametrize("keep", ["partial", "steps", "nothing"])
def test_a_call_that_had_not_returned_is_closed_and_what_ran_beside_it_is_never_forgotten(runtime, keep):
    gate = Gate()

    @tool
    async def wait_for_it() -> str:
        """Wait."""
        await gate()
        return "came"

    lines = script([tool_call("pay", amount=3), tool_call("wait_for_it")], "next", "and then")
    runtime.use(lines)
    session = runtime.agent(tools=[pay, wait_for_it]).session("s")
    turn = session.submit("Pay 3.")
    gate.wait()
    next(event for event in turn.stream() if event.type == "tool_result")  # it has paid
    turn.cancel("enough", keep=keep)
    ended(turn, "turn_cancelled")
    paid, waited = outcomes(turn)
    assert (paid.text, paid.is_error) == ("paid 3", False)
    assert "unknown what it has done" in waited.text
    assert waited.is_error
    assert [one.role for one in session.messages] == (
        ["user", "assistant", "tool"] if keep == "partial" else []
    )
    session.run("And?")
    notes = told(lines.requests[-1])
    if keep == "partial":
        assert session.messages[2].interrupted
        assert notes == [], "the history tells it"
    else:
        assert len(notes) == 1
        assert 'pay({"amount":3}) returned: paid 3' in notes[0]
        assert "wait_for_it({}) failed" in notes[0]
    session.run("And again?")
    assert told(lines.requests[-1]) == [], "it was told once"
    assert all(one.role != "system" for one in session.messages)


def test_a_stop_that_keeps_nothing_leaves_nothing_and_the_turn_has_it(runtime):
    session, turn, lines = stopped(runtime, "nothing", [tool_call("pay", amount=3)], ["Done, ", None])
    assert session.messages == []
    info = turn.info()
    assert [one.role for one in info.messages] == ["assistant", "tool", "assistant"]
    assert info.usage.output_tokens > 0
    assert page(session, failed=True)[0] == ("Pay 3.", "cancelled")
    session.run("And?")
    assert len(told(lines.requests[-1])) == 1


def test_the_steps_are_what_a_cancelled_turn_leaves_by_itself(runtime):
    gate = Gate()
    runtime.use(script([tool_call("pay", amount=3)], ["Done, ", gate]))
    session = runtime.agent(tools=[pay]).session("s")
    turn = session.submit("Pay 3.")
    gate.wait()
    turn.cancel()
    ended(turn, "turn_cancelled")
    assert [one.role for one in session.messages] == ["user", "assistant", "tool"]
    assert [one.interrupted for one in session.messages] == [False] * 3
    assert turn.info().messages[-1].text == "Done, "


def test_a_stop_keeps_the_variables_that_the_tools_have_set_with_what_they_did(runtime):
    gate = Gate()
    runtime.use(script([tool_call("remember")], ["Done, ", gate]))
    session = runtime.agent(tools=[remember]).session("s")
    turn = session.submit("My cat is grey.")
    gate.wait()
    turn.cancel(keep="partial")
    ended(turn, "turn_cancelled")
    assert session.variables == {"cat": "grey"}
    *_, changed, cancelled = turn.stream()
    assert (changed.type, cancelled.type) == ("variables_changed", "turn_cancelled")
    assert changed.variables == {"cat": "grey"}


def test_a_stop_keeps_each_text_once_in_the_step_that_said_it(runtime):
    gate = Gate()
    runtime.use(script(["Let me see. ", tool_call("pay", amount=3)], ["Done, ", gate]))
    session = runtime.agent(tools=[pay]).session("s")
    turn = session.submit("Pay 3.")
    gate.wait()
    turn.cancel(keep="partial")
    ended(turn, "turn_cancelled")
    assert [one.text for one in session.messages] == ["Pay 3.", "Let me see. ", "", "Done, "]


def test_a_stop_button_stops_what_runs_and_nothing_behind_it(runtime):
    gate = Gate()
    runtime.use(script(["one ", gate], "two"))
    session = runtime.agent().session("s")
    assert session.cancel() is None
    first, second = session.submit("1"), session.submit("2")
    gate.wait()
    assert session.cancel() == "requested"
    ended(first, "turn_cancelled")
    assert second.result(60).text == "two"
    assert [one.text for one in session.messages] == ["1", "one ", "2", "two"]


def test_a_stop_button_stops_what_another_caller_runs(runtime):
    gate = Gate()
    runtime.use(script(["one ", gate], "two"))
    session = runtime.agent().session("s")
    failures = []

    def run():
        try:
            session.run("1")
        except AgentError as exc:
            failures.append(exc)

    running = threading.Thread(target=run)
    running.start()
    gate.wait()
    assert runtime.agent().session("s").cancel("stop") == "requested"
    running.join(10)
    assert [type(one) for one in failures] == [TurnCancelled]
    assert [one.text for one in session.messages] == ["1", "one "]
    assert session.run("2").text == "two"


@pytest.mark.parametrize("keep", ["partial", "steps", "nothing"])
def test_a_turn_that_has_not_begun_leaves_nothing_whatever_is_to_stay(runtime, keep):
    gate = Gate()
    runtime.use(script(["one", gate]))
    session = runtime.agent().session("s")
    first, second = session.submit("1"), session.submit("2")
    gate.wait()
    assert second.cancel(keep=keep) == "cancelled"
    gate.opened.set()
    first.result(60)
    ended(second, "turn_cancelled")
    assert [one.text for one in session.messages] == ["1", "one"]


def test_what_stays_must_be_one_of_three(runtime):
    session = runtime.agent().session("s")
    turn = session.submit("1")
    for cancel in (turn.cancel, session.cancel):
        with pytest.raises(UsageError, match="'partial', 'steps' or 'nothing', not 'all'"):
            cancel(keep="all")
    turn.result(60)


def test_what_a_caller_leaves_is_rolled_back_and_what_its_tools_did_is_told(runtime):
    gate = Gate()
    lines = script([tool_call("pay", amount=3)], ["Done, ", gate], "next")
    runtime.use(lines)
    session = runtime.agent(tools=[pay]).session("s")
    for event in session.stream("Pay 3."):
        if event.type == "text_delta":
            break
    session.run("And?")
    assert [one.text for one in session.messages] == ["And?", "next"]
    assert len(told(lines.requests[-1])) == 1
    assert page(session, failed=True)[0] == ("Pay 3.", "cancelled")


# Trying again.


def test_a_failed_turn_tells_the_next_one_what_its_tools_did(runtime):
    lines = script(
        [tool_call("pay", amount=3)], ProviderRejected("no"), ProviderRejected("no"), "three", "four"
    )
    runtime.use(lines)
    session = runtime.agent(tools=[pay]).session("s")
    ended(session.submit("1"))
    ended(session.submit("2"))
    session.run("3")
    assert [len(told(request)) for request in lines.requests] == [0, 0, 1, 1]
    session.run("4")
    assert told(lines.requests[-1]) == []


def test_a_failed_turn_runs_again_and_its_runs_are_listed(runtime):
    runtime.use(script(["half ", ProviderRejected("no")], "yes"))
    session = runtime.agent().session("s")
    turn = session.submit("1")
    ended(turn)
    turn.requeue()
    assert turn.result(60).text == "yes"
    assert next(turn.stream()).type == "turn_queued"
    assert {event.run for event in turn.stream()} == {2}
    first, second = turn.runs()
    assert (first.run, first.status, first.code, first.error) == (1, "failed", "provider_rejected", "no")
    assert [one.text for one in first.messages] == ["half "]
    assert first.started <= first.ended <= second.started <= second.ended
    assert (second.run, second.status, second.error) == (2, "finished", None)
    assert (turn.error, turn.attempt) == (None, 1)
    assert page(session, failed=True) == [("1", None), ("yes", None)]


def test_a_turn_that_runs_again_stands_behind_the_others_and_is_told_what_it_did_before(runtime):
    gate = Gate()
    lines = script([tool_call("pay", amount=3)], ProviderRejected("no"), ["two", gate], "three")
    runtime.use(lines)
    session = runtime.agent(tools=[pay]).session("s")
    first = session.submit("1")
    ended(first)
    second = session.submit("2")
    gate.wait()
    first.requeue()
    assert page(session, pending=True) == [("2", "running"), ("1", "waiting")]
    gate.opened.set()
    second.result(60)
    first.result(60)
    assert [one.text for one in session.messages] == ["2", "two", "1", "three"]
    assert [len(told(request)) for request in lines.requests] == [0, 0, 1, 1]


def test_only_a_failed_turn_runs_again(runtime):
    runtime.use(script("one"))
    session = runtime.agent().session("s")
    turn = session.submit("1")
    turn.result(60)
    with pytest.raises(UsageError, match="is finished: only failed turns can be requeued"):
        turn.requeue()


def test_a_closed_session_runs_nothing_again(runtime):
    runtime.use(script(ProviderRejected("no")))
    session = runtime.agent().session("s")
    turn = session.submit("1", key="k")
    ended(turn)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        turn.requeue()
    with pytest.raises(UsageError, match="closed"):
        session.submit("1", key="k", retry_failed=True)


def test_a_key_whose_turn_failed_runs_again_on_purpose(runtime):
    runtime.use(script(ProviderRejected("no"), "yes"))
    session = runtime.agent().session("s")
    turn = session.submit("1", key="k")
    ended(turn)
    assert session.submit("1", key="k").status() == "failed"
    with pytest.raises(KeyReused):
        session.submit("2", key="k", retry_failed=True)
    again = session.submit("1", key="k", retry_failed=True)
    assert again.id == turn.id
    assert again.result(60).text == "yes"
    assert session.submit("1", key="k", retry_failed=True).status() == "finished"
    assert [run.status for run in turn.runs()] == ["failed", "finished"]


def test_a_second_try_needs_a_key(runtime):
    session = runtime.agent().session("s")
    with pytest.raises(UsageError, match="retry_failed= needs key="):
        session.submit("1", retry_failed=True)
    with pytest.raises(UsageError, match="retry_failed= must be True or False"):
        session.submit("1", key="k", retry_failed="yes")
