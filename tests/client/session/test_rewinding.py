"""A history that is cut: ``rewind`` and ``fork(at=…)``, and the branches of a session."""

from __future__ import annotations

import threading

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import Agent, Client, Message, Session, tool
from antiphon.errors import InvalidMessage, MessageNotFound, SessionBusy, SessionExists, UsageError
from antiphon.model import Text, ToolCall, ToolResult
from antiphon.redis import edits, forks
from antiphon.session.runtime import Branch, local_runtime
from antiphon.stores import MemoryStore
from antiphon.testing import script, tool_call

HISTORY = [Message.user("1"), Message.assistant("a"), Message.user("2"), Message.assistant("b")]


def texts(session):
    return [message.text for message in session.messages]


def ids(session):
    return [message.id for message in session.messages]


def held_turn(runtime, session, text="held"):
    """A turn that runs until the returned function is called."""
    begun, go = threading.Event(), threading.Event()

    async def answer():
        begun.set()
        await wait_until_async(go.is_set, timeout=20, description="the test lets the turn end")

    runtime.use(script([answer, "held on"], *["later"] * 5))
    turn = runtime.agent().session(session.session_id).submit(text)
    wait_until(begun.is_set, description="the turn runs")
    return turn, go.set


def test_a_history_is_cut_behind_a_message(runtime):
    session = runtime.agent().session("s", messages=HISTORY, variables={"x": 1})
    found = session.messages
    session.rewind(to=found[1].id)
    assert session.messages == found[:2]
    session.rewind(to=found[1].id)
    assert session.messages == found[:2]
    assert session.variables == {"x": 1}
    assert session.run("3").text
    assert texts(session)[:3] == ["1", "a", "3"]


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


def turn_with_steps(runtime):
    """A session with a turn of three steps, the second of which has two tool calls, and a turn after it."""
    two = [tool_call("look", where="the box"), tool_call("look", where="the bag")]
    runtime.use(script(tool_call("look", where="here"), two, "It is gone.", "later", "other", repeat=True))
    session = runtime.agent(tools=[look]).session("s")
    turn = session.submit("Find it")
    assert turn.result(30).text == "It is gone."
    session.run("And then?")
    return session, turn


def test_a_fork_begins_after_any_step_of_a_turn(runtime):
    session, turn = turn_with_steps(runtime)
    whole = session.messages
    for step in (1, 2, 3):
        fork = session.fork(f"f{step}", at=turn.step_id(step))
        found = fork.messages
        assert found == whole[: len(found)]
        assert sum(one.role == "assistant" for one in found) == step
        assert (whole[len(found)].role, found[-1].role) == (
            ("assistant", "tool") if step < 3 else ("user", "assistant")
        )
    assert session.fork("f", at=turn.step_id(2)).run("Look again").text


def test_a_fork_continues_after_a_step_without_new_input(runtime):
    session, turn = turn_with_steps(runtime)
    whole = session.messages
    session.fork("f", at=turn.step_id(1))
    runtime.use(lines := script("It is here.", "later"))
    fork = runtime.agent(tools=[look]).session("f")
    assert fork.run([]).text == "It is here."
    assert [one.role for one in lines.requests[0].messages] == ["user", "assistant", "tool"]
    assert [one.role for one in fork.messages] == ["user", "assistant", "tool", "assistant"]
    assert fork.messages[:3] == whole[:3]
    assert fork.regenerate().result(30).text == "later"


def test_a_question_in_the_history_is_answered_without_new_input(runtime):
    runtime.use(script("Kyoto."))
    session = runtime.agent().session("s", messages=[Message.user("Where?")])
    assert session.run([]).text == "Kyoto."
    assert texts(session) == ["Where?", "Kyoto."]


def test_nothing_is_continued_where_the_history_ends_with_an_answer(runtime):
    runtime.use(lines := script("unused"))
    for session in (runtime.agent().session("s", messages=HISTORY), runtime.agent().session("new")):
        with pytest.raises(UsageError, match="does not end with a question"):
            session.run([])
    assert lines.requests == []
    with pytest.raises(UsageError, match="an empty input has none"):
        session.submit([], if_busy="steer")
    with pytest.raises(InvalidMessage):
        session.edit("any", [])


def test_a_history_is_rewound_to_a_step(runtime):
    session, turn = turn_with_steps(runtime)
    session.rewind(to=turn.step_id(1))
    assert [one.role for one in session.messages] == ["user", "assistant", "tool"]


def test_a_step_must_be_in_the_history(runtime):
    session, turn = turn_with_steps(runtime)
    for wrong in (turn.step_id(4), f"{'0' * 32}#1", f"{turn.id}#0"):
        with pytest.raises(MessageNotFound, match="no step"):
            session.fork(at=wrong)
    for wrong in (0, True, "1"):
        with pytest.raises(UsageError, match="number of a step"):
            turn.step_id(wrong)


def test_the_model_is_sent_what_is_left(runtime):
    runtime.use(lines := script("a", "b", "c"))
    session = runtime.agent(window=2).session("s")
    first = session.run("1").messages[-1].id
    session.run("2")
    session.rewind(to=first)
    session.run("3")
    assert [message.text for message in lines.requests[-1].messages] == ["1", "a", "3"]
    assert texts(session) == ["1", "a", "3", "c"]


@pytest.mark.parametrize("act", ["rewind", "fork"])
def test_a_message_that_is_not_there_is_an_error_that_says_what_to_do(runtime, act):
    session = runtime.agent().session("s", messages=HISTORY)
    gone = session.messages[-1].id
    session.rewind(to=session.messages[0].id)
    for unknown in (gone, "nobody", ""):
        with pytest.raises(MessageNotFound, match=r"use the id of one of session\.messages") as error:
            session.rewind(to=unknown) if act == "rewind" else session.fork(at=unknown)
        assert error.value.code == "message_not_found"
    with pytest.raises(MessageNotFound):
        runtime.agent().session("new").rewind(to="t.1")
    assert texts(session) == ["1"]


EXCHANGE = [
    Message.user("1"),
    Message.assistant([Text("Let me see."), ToolCall("c1", "look"), ToolCall("c2", "look")]),
    Message.tool([ToolResult("c1", "x"), ToolResult("c2", "y")]),
    Message.assistant("done"),
]


@pytest.mark.parametrize("act", ["rewind", "fork"])
def test_a_tool_call_keeps_its_result(runtime, act):
    session = runtime.agent().session("s", messages=EXCHANGE)
    before, inside, after, _ = ids(session)
    with pytest.raises(UsageError, match=f"use '{before}' or '{after}'"):
        session.rewind(to=inside) if act == "rewind" else session.fork(at=inside)
    assert len(session.messages) == 4
    if act == "rewind":
        session.rewind(to=after)
    else:
        session = session.fork(at=after)
    assert ids(session) == [before, inside, after]


def test_the_call_of_a_history_that_begins_with_one_can_be_kept_with_its_results(runtime):
    messages = [*EXCHANGE[1:3], Message.tool([ToolResult("c3", "late")]), Message.user("2")]
    session = runtime.agent().session("s", messages=messages)
    call, first, second, _ = ids(session)
    for inside in (call, first):
        with pytest.raises(UsageError, match=f"use '{second}'"):
            session.rewind(to=inside)


def test_a_rewind_waits_for_the_turn_that_runs(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    first = session.messages[0].id
    turn, go = held_turn(runtime, session)
    with pytest.raises(SessionBusy):
        session.rewind(to=first, if_busy="reject")
    rewound = threading.Thread(target=session.rewind, kwargs={"to": first})
    rewound.start()
    assert len(session.messages) == 4
    go()
    assert turn.result(60).text == "held on"
    rewound.join(20)
    assert texts(session) == ["1"]


def test_a_rewind_to_a_message_that_the_running_turn_brings_waits_for_it(runtime):
    session = runtime.agent().session("s")
    turn, go = held_turn(runtime, session)
    with pytest.raises(SessionBusy):
        session.rewind(to=f"{turn.id}.1", if_busy="reject")
    rewound = threading.Thread(target=session.rewind, kwargs={"to": f"{turn.id}.1"})
    rewound.start()
    go()
    rewound.join(20)
    assert texts(session) == ["held"]


def test_the_last_message_of_a_history_is_the_last_one_after_a_running_turn_too(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    last = session.messages[-1].id
    _, go = held_turn(runtime, session)
    rewound = threading.Thread(target=session.rewind, kwargs={"to": last})
    rewound.start()
    go()
    rewound.join(20)
    assert ids(session)[-1] == last


def test_a_closed_session_is_not_cut_but_can_be_forked(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    session.close()
    first = session.messages[0].id
    with pytest.raises(UsageError, match="closed"):
        session.rewind(to=first)
    assert texts(session.fork(at=first)) == ["1"]


def test_subscribers_are_told_of_a_cut(workers_runtime):
    session = workers_runtime.agent().session("s", messages=HISTORY)
    session.status()
    second = session.messages[1].id
    with Client(workers_runtime.url) as client:
        session.rewind(to=session.messages[3].id)
        session.rewind(to=second)
        events = client.subscribe("s", after=0)
        event = next(events)
        assert (event.type, event.message_id, event.kept, event.seq) == ("history_rewound", second, 2, 1)
        events.close()
        snapshot = client.snapshot("s")
    assert ([message.id for message in snapshot.messages][-1], snapshot.cursor) == (second, 1)


def test_a_fork_has_the_history_up_to_a_message(runtime):
    session = runtime.agent().session("s", messages=HISTORY, metadata={"m": 1})
    at = session.messages[1].id
    fork = session.fork("f", at=at)
    assert fork.messages == session.messages[:2]
    assert fork.metadata == {"m": 1}
    fork.add_message(Message.user("else"))
    assert texts(fork) == ["1", "a", "else"]
    assert texts(session) == ["1", "a", "2", "b"]
    with pytest.raises(SessionExists):
        session.fork("f", at=at)


def test_the_window_of_a_fork_begins_in_what_it_has(runtime):
    runtime.use(lines := script(*"abcde"))
    session = runtime.agent(window=2).session("s")
    first = session.run("1").messages[-1].id
    for text in "234":
        session.run(text)
    session.fork(at=first).run("5")
    assert [message.text for message in lines.requests[-1].messages] == ["1", "a", "5"]


def test_the_branches_of_a_session_are_listed(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    second, last = session.messages[1].id, session.messages[-1].id
    assert (session.branches(), session.branch) == ([], None)
    fork = session.fork("f", at=second)
    session.fork("whole")
    expected = [Branch("f", "s", second), Branch("whole", "s", last)]
    assert session.branches() == expected
    assert fork.branch == expected[0]
    of_fork = fork.fork("g")
    assert fork.branches() == [of_fork.branch] == [Branch("g", "f", second)]
    assert session.branches() == expected
    session.run("more")
    fork.run("more")
    assert runtime.agent().session("s").branches() == expected
    assert runtime.agent().session("f").branch == expected[0]
    empty = runtime.agent().session("nothing")
    assert empty.fork("h").branch == Branch("h", "nothing", None)


def test_a_saved_session_keeps_its_branches(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    fork = session.fork("f")
    data = [one.to_dict() for one in (session, fork)]
    branches, branch = session.branches(), fork.branch
    session.delete()
    fork.delete()
    restored = [Session.from_dict(one, runtime.agent()) for one in data]
    assert (restored[0].branches(), restored[1].branch) == (branches, branch)


def test_a_session_in_a_store_keeps_its_branches():
    agent = Agent("scripted", "any", store=MemoryStore())
    session = agent.session("s", messages=HISTORY)
    fork = session.fork("f", at=session.messages[0].id)
    expected = fork.branch
    local_runtime().forget()
    assert agent.session("s").branches() == [expected]
    assert agent.session("f").branch == expected


def test_a_fork_beside_a_running_turn_is_not_forgotten_at_its_end(runtime):
    session = runtime.agent().session("s", messages=HISTORY)
    session.status()
    turn, go = held_turn(runtime, session)
    fork = session.fork("f")
    assert texts(fork) == ["1", "a", "2", "b"]
    go()
    turn.result(60)
    assert [branch.session_id for branch in session.branches()] == ["f"]


def test_a_rewound_turn_with_tools_goes_on_from_there(runtime):
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    runtime.use(lines := script([tool_call("look")], "done", "again"))
    session = runtime.agent(tools=[look]).session("s")
    session.run("1")
    session.rewind(to=session.messages[2].id)
    session.run("go on")
    assert [message.role for message in lines.requests[-1].messages] == ["user", "assistant", "tool", "user"]


@pytest.fixture
def meanwhile(monkeypatch):
    """Let something happen between the reading and the first writing of a change."""

    def before(module, name, act):
        written, acts = getattr(module, name), [act]

        async def write(*args, **options):
            if acts:
                await acts.pop()()
            return await written(*args, **options)

        monkeypatch.setattr(module, name, write)

    return before


def test_a_rewind_takes_away_what_came_before_it_was_written(workers_runtime, meanwhile):
    session = workers_runtime.agent().session("s", messages=HISTORY)
    first = session.messages[0].id
    other = workers_runtime.agent().session("s")
    meanwhile(edits, "change_session", lambda: other.add_message_async(Message.user("late")))
    session.rewind(to=first)
    assert ids(session) == [first]


def test_a_rewind_cuts_no_history_that_only_is_as_long_as_the_one_that_was_read(workers_runtime, meanwhile):
    session = workers_runtime.agent().session("s", messages=HISTORY)
    third = session.messages[2].id
    other = workers_runtime.agent().session("s")

    async def replaced():
        await other.clear_async()
        await other.add_message_async(*(Message.user(text) for text in "wxyz"))

    meanwhile(edits, "change_session", replaced)
    with pytest.raises(MessageNotFound):
        session.rewind(to=third)
    assert texts(session) == ["w", "x", "y", "z"]


def test_a_fork_is_made_of_the_history_that_was_read_or_of_a_newer_one(workers_runtime, meanwhile):
    session = workers_runtime.agent().session("s", messages=HISTORY)
    second = session.messages[1].id
    other = workers_runtime.agent().session("s")

    async def replaced():
        await other.clear_async()
        await other.add_message_async(*(Message.user(text) for text in "wxyz"))

    meanwhile(forks, "fork_session", replaced)
    fork = session.fork()
    assert texts(fork) == ["w", "x", "y", "z"]
    assert fork.branch.at == ids(session)[-1]
    with pytest.raises(MessageNotFound):
        session.fork(at=second)


def test_the_number_of_a_step_may_have_any_length(runtime):
    session, turn = turn_with_steps(runtime)
    with pytest.raises(MessageNotFound):
        session.fork(at=f"{turn.id}#{'9' * 5000}")
