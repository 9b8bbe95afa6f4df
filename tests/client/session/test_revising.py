"""Turns that take the place of a part of the history: ``regenerate`` and ``edit``."""

from __future__ import annotations

import pytest
from redis import Redis
from support.gates import Gate

from antiphon import Client, Message, tool
from antiphon.encryption.records import sealer_of
from antiphon.errors import MessageNotFound, ProviderRejected, SessionBusy, TurnCancelled, UsageError
from antiphon.testing import script, tool_call
from antiphon.window import Summary

HISTORY = [Message.user("1"), Message.assistant("a"), Message.user("2"), Message.assistant("b")]


def texts(session):
    return [message.text for message in session.messages]


def ids(session):
    return [message.id for message in session.messages]


def asked(lines, number=-1):
    return [message.text for message in lines.requests[number].messages]


@tool
def look() -> str:
    """Look."""
    return "seen"


def test_an_edit_that_is_interrupted_before_it_began_leaves_its_question(runtime):
    """Whether the edit has just begun or still waits when it is interrupted depends on the moment."""
    first, second = Gate(), Gate()
    runtime.use(script("a", [first, "b"], [second, "c"], "d"))
    session = runtime.agent().session("s")
    session.run("1")
    running = session.submit("2")
    first.wait()
    edit = session.edit(ids(session)[0], "one")
    running.cancel()
    last = session.submit("3", if_busy="interrupt")
    with pytest.raises(TurnCancelled):
        edit.result(20)
    second.opened.set()
    last.result(20)
    assert [(one.text, one.interrupted) for one in session.messages][:2] == [("one", True), ("3", False)]
    assert len(session.messages) == 3


def test_the_last_answer_is_given_anew_and_the_question_stays(runtime):
    runtime.use(lines := script("a", "b", "c"))
    session = runtime.agent().session("s")
    session.run("1")
    session.run("2")
    before = session.messages
    turn = session.regenerate(temperature=0.5)
    assert turn.result(60).text == "c"
    assert session.messages[:3] == before[:3]
    assert ids(session)[3] == f"{turn.id}.1"
    assert texts(session) == ["1", "a", "2", "c"]
    assert asked(lines) == ["1", "a", "2"]
    assert lines.requests[-1].params["temperature"] == 0.5


def test_all_that_led_to_the_last_answer_goes_with_it(runtime):
    runtime.use(lines := script([tool_call("look")], "a", [tool_call("look")], "b"))
    session = runtime.agent(tools=[look]).session("s")
    session.run("1")
    turn = session.regenerate()
    assert turn.result(60).text == "b"
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert ids(session)[1:] == [f"{turn.id}.{n}" for n in (1, 2, 3)]
    assert asked(lines, 2) == ["1"]


def test_a_question_without_an_answer_is_answered(runtime):
    runtime.use(lines := script("a"))
    question = [Message.user("2"), Message.system("Be brief."), Message.user("3")]
    session = runtime.agent().session("s", messages=[*HISTORY[:2], *question])
    assert session.regenerate().result(60).text == "a"
    assert texts(session) == ["1", "a", "2", "Be brief.", "3", "a"]
    assert asked(lines) == ["1", "a", "2", "Be brief.", "3"]
    assert session.regenerate(key="k").id == session.regenerate(key="k").id


def test_a_message_is_replaced_with_all_behind_it(runtime):
    runtime.use(lines := script("c"))
    session = runtime.agent().session("s", messages=HISTORY)
    before = session.messages
    turn = session.edit(before[2].id, "else")
    assert turn.result(60).text == "c"
    assert session.messages[:2] == before[:2]
    assert texts(session) == ["1", "a", "else", "c"]
    assert ids(session)[2:] == [f"{turn.id}.1", f"{turn.id}.2"]
    assert asked(lines) == ["1", "a", "else"]


def test_the_first_message_is_replaced(runtime):
    runtime.use(lines := script("c"))
    session = runtime.agent().session("s", messages=HISTORY)
    session.edit(session.messages[0].id, [Message.user("else"), Message.user("and more")]).result(60)
    assert texts(session) == ["else", "and more", "c"]
    assert asked(lines) == ["else", "and more"]


@pytest.mark.parametrize("act", ["regenerate", "edit"])
def test_a_turn_that_fails_leaves_the_history_as_it_was(runtime, act):
    runtime.use(script(ProviderRejected("no"), "c"))
    session = runtime.agent().session("s", messages=HISTORY)
    before = session.messages
    again = session.regenerate if act == "regenerate" else (lambda: session.edit(before[2].id, "2"))
    with pytest.raises(ProviderRejected):
        again().result(60)
    assert session.messages == before
    assert again().result(60).text == "c"
    assert texts(session) == ["1", "a", "2", "c"]


def test_nobody_sees_the_cut_before_the_answer(runtime):
    gate = Gate()
    runtime.use(script([gate, "c"]))
    session = runtime.agent().session("s", messages=HISTORY)
    before = session.messages
    turn = session.edit(before[0].id, "else")
    gate.wait()
    assert session.messages == before
    gate.opened.set()
    types = [event.type for event in turn.stream()]
    assert types[-2:] == ["history_rewound", "turn_finished"]
    assert texts(session) == ["else", "c"]


def test_the_event_of_the_cut_says_what_stays(runtime):
    runtime.use(script("c", "d", "e"))
    session = runtime.agent().session("s", messages=HISTORY)
    second = ids(session)[1]
    turns = [session.edit(ids(session)[2], "else"), session.edit(ids(session)[0], "else")]
    cuts = [next(event for event in turn.stream() if event.type == "history_rewound") for turn in turns]
    assert [(cut.message_id, cut.kept, cut.turn_id) for cut in cuts] == [
        (second, 2, turns[0].id),
        ("", 0, turns[1].id),
    ]
    session.rewind(to=ids(session)[0])
    assert "history_rewound" not in [event.type for event in session.regenerate().stream()], "nothing was cut"


def test_a_turn_runs_after_those_that_were_there_before(runtime):
    gate = Gate()
    runtime.use(lines := script([gate, "x"], "y", "z", "w"))
    session = runtime.agent().session("s", messages=HISTORY)
    running = session.submit("3")
    gate.wait()
    with pytest.raises(SessionBusy):
        session.regenerate(if_busy="reject")
    with pytest.raises(SessionBusy):
        session.edit(ids(session)[0], "else", if_busy="reject")
    again, edited = session.regenerate(), session.edit(f"{running.id}.1", "4")
    gate.opened.set()
    assert [turn.result(60).text for turn in (running, again, edited)] == ["x", "y", "z"]
    assert asked(lines, 1) == ["1", "a", "2", "b", "3"], "the last answer is that of the turn before"
    assert asked(lines, 2) == ["1", "a", "2", "b", "4"]
    assert texts(session) == ["1", "a", "2", "b", "4", "z"]


def test_a_message_that_has_gone_meanwhile_fails_the_turn_alone(runtime):
    gate = Gate()
    runtime.use(script([gate, "x"], "y"))
    session = runtime.agent().session("s", messages=HISTORY)
    first, third = ids(session)[0], ids(session)[2]
    edits = [session.edit(third, "else"), session.edit(first, "else")]
    gate.wait()
    late = session.edit(third, "more")
    gate.opened.set()
    assert [turn.result(60).text for turn in edits] == ["x", "y"]
    with pytest.raises(MessageNotFound, match="use the id of one of"):
        late.result(60)
    assert late.status() == "failed"
    assert texts(session) == ["else", "y"]


def test_what_cannot_be_revised_is_refused(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    first, answer = ids(session)[:2]
    for unknown in ("", "nobody", 3):
        with pytest.raises(MessageNotFound):
            session.edit(unknown, "else")
    with pytest.raises(UsageError, match=f"only a user's can be edited: the one before it is '{first}'"):
        session.edit(answer, "else")
    with pytest.raises(UsageError, match="empty"):
        session.edit(first, " ")
    empty = runtime.agent().session("empty")
    with pytest.raises(MessageNotFound, match="run a turn first"):
        empty.regenerate()
    answers = runtime.agent().session("answers", messages=[Message.assistant("a")])
    with pytest.raises(UsageError, match=r"only a user's can be edited\.$"):
        answers.edit(ids(answers)[0], "else")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.regenerate().result(60)
    assert texts(session) == ["1", "a", "2", "b"]


def test_a_key_submits_an_edit_once(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    third = ids(session)[2]
    turn = session.edit(third, "else", key="k")
    turn.result(60)
    assert session.edit(third, "else", key="k").id == turn.id
    assert len(session.messages) == 4


def test_a_cancelled_turn_keeps_its_steps_in_the_place_of_what_it_revised(runtime):
    gate = Gate()
    runtime.use(script([tool_call("look")], [gate, "never"]))
    session = runtime.agent(tools=[look]).session("s", messages=HISTORY)
    turn = session.edit(ids(session)[2], "else")
    gate.wait()
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result(60)
    assert [(one.role, one.text) for one in session.messages[2:]] == [
        ("user", "else"),
        ("assistant", ""),
        ("tool", ""),
    ]
    assert [event.type for event in turn.stream()][-2:] == ["history_rewound", "turn_cancelled"]


def test_a_turn_that_is_cancelled_before_it_has_achieved_anything_changes_nothing(runtime):
    gate = Gate()
    runtime.use(script([gate, "never"]))
    session = runtime.agent().session("s", messages=HISTORY)
    turn = session.edit(ids(session)[2], "else")
    gate.wait()
    turn.cancel()
    with pytest.raises(TurnCancelled):
        turn.result(60)
    assert texts(session) == ["1", "a", "2", "b"]
    assert "history_rewound" not in [event.type for event in turn.stream()]


def test_a_message_in_front_of_the_window_can_be_edited(runtime):
    runtime.use(lines := script(*"abcdef"))
    session = runtime.agent(window=2).session("s")
    for text in "1234":
        session.run(text)
    session.edit(ids(session)[2], "else").result(60)
    assert texts(session) == ["1", "a", "else", "e"]
    assert asked(lines) == ["1", "a", "else"]
    session.run("5")
    assert asked(lines) == ["1", "a", "else", "e", "5"]


def test_the_summary_of_what_is_replaced_is_not_sent(runtime):
    runtime.use(lines := script("a", "b", "c", "They met.", "d", "e", "f"))
    session = runtime.agent(window=Summary(tokens=60)).session("s")
    for text in ("1 " * 40, "2 " * 40, "3 " * 40):
        session.run(text)
    wait = [request for request in lines.requests if "summary" in request.messages[-1].text]
    assert wait, "a summary was written"
    assert session.to_dict().get("summary")
    session.edit(ids(session)[0], "else").result(60)
    assert asked(lines) == ["else"]
    assert session.to_dict().get("summary") is None
    assert texts(session)[0] == "else"
    assert len(session.messages) == 2


def test_a_question_is_asked_again_in_the_window_in_which_it_was_asked(runtime):
    runtime.use(lines := script(*"abcdefgh"))
    session = runtime.agent(window=2).session("s")
    for text in "12345":
        session.run(text)
        first = asked(lines)
        session.regenerate().result(60) if text in "45" else None
        assert asked(lines) == first
    assert len(first) < 9
    assert len(session.messages) == 10


def test_tabs_that_follow_see_the_cut_with_the_answer(workers_runtime):
    session = workers_runtime.agent().session("s", messages=HISTORY)
    session.status()
    with Client(workers_runtime.url) as client:
        turn = session.regenerate()
        turn.result(60)
        events = client.subscribe("s", after=0)
        seen = []
        while not seen or not seen[-1].terminal:
            seen.append(next(events))
        events.close()
    assert [event.type for event in seen][-2:] == ["history_rewound", "turn_finished"]
    assert seen[-2].kept == 3


def test_a_worker_of_an_older_release_refuses_the_turn(workers_runtime):
    """It reads a number as the version, and would add the answer at the end."""
    workers_runtime.agent().session("s", messages=HISTORY).regenerate(delay=3600)
    with Redis.from_url(workers_runtime.url) as redis:
        turn = redis.lrange("ant:turns:s", 0, -1)[0].decode()
        request = redis.hget(f"ant:turn:{turn}", "request")
        assert b'"version":"2"' in sealer_of().open("s", "request", request)
    workers_runtime.agent().session("s").delete()
