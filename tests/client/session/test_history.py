"""What a session keeps: history, variables, metadata, files, families; and when it ends."""

from __future__ import annotations

import pytest

from antiphon import Agent, Message, Session, tool
from antiphon.errors import (
    CorruptRecord,
    InvalidId,
    InvalidMessage,
    ProviderRejected,
    SessionExists,
    UsageError,
)
from antiphon.model import File, Image
from antiphon.testing import script, tool_call
from antiphon.tools import Context

HISTORY = [Message.user("What's the capital of France?"), Message.assistant("Paris.")]


def texts(session):
    return [message.text for message in session.messages]


def test_making_a_session_does_nothing_until_it_is_used(runtime):
    first = runtime.agent().session("s", messages=HISTORY)
    assert runtime.agent().session("s").messages == []
    assert texts(first) == ["What's the capital of France?", "Paris."]
    assert texts(runtime.agent().session("s")) == ["What's the capital of France?", "Paris."]


def test_a_session_without_an_id_gets_one_of_its_own(runtime):
    agent = runtime.agent()
    assert agent.session().session_id != agent.session().session_id


@pytest.mark.parametrize("given", ["", "a\nb", "x" * 201, 7])
def test_an_id_that_cannot_be_one_is_refused(runtime, given):
    with pytest.raises(InvalidId):
        runtime.agent().session(given)


def test_the_messages_are_a_copy(runtime):
    session = runtime.agent().session(messages=HISTORY)
    session.messages.clear()
    assert len(session.messages) == 2


def test_messages_for_a_session_with_a_history_are_refused(runtime):
    runtime.agent().session("s", messages=HISTORY).status()
    session = runtime.agent().session("s", messages=HISTORY)
    with pytest.raises(SessionExists):
        session.run("Hi")
    with pytest.raises(SessionExists):
        _ = session.messages
    assert len(runtime.agent().session("s").messages) == 2


def test_dictionaries_of_other_services_begin_a_history(runtime):
    runtime.use(lines := script("Fine."))
    session = runtime.agent().session(
        messages=[
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        ]
    )
    session.run("How are you?")
    assert lines.requests[0].system == "Be kind."
    assert texts(session) == ["Hi", "Hello", "How are you?", "Fine."]


def test_the_system_prompt_is_not_in_the_messages_and_survives_clear(runtime):
    runtime.use(lines := script("a", "b"))
    session = runtime.agent(system="of the agent").session(system="of the session")
    session.run("1")
    session.clear()
    assert session.messages == []
    session.run("2")
    assert [request.system for request in lines.requests] == ["of the session"] * 2
    assert session.system == "of the session"


def test_messages_are_added_by_hand_in_all_three_forms(runtime):
    session = runtime.agent().session()
    session.add_message(Message.user("1"))
    session.add_message({"role": "assistant", "content": "2"}, {"role": "user", "content": "3"})
    assert texts(session) == ["1", "2", "3"]
    with pytest.raises(InvalidMessage):
        session.add_message("4")


def test_history_comes_in_pages(runtime):
    session = runtime.agent().session(messages=[Message.user(f"{n}") for n in range(10)])
    assert [message.text for message in session.history(2, 4)] == ["2", "3"]
    assert [message.text for message in session.history(-2)] == ["8", "9"]
    assert [message.text for message in session.history(0, -8)] == ["0", "1"]
    assert session.history(20) == []
    assert session.history(3, 3) == []


def test_a_fork_goes_its_own_way(runtime):
    runtime.use(script("a", "b", "c"))
    session = runtime.agent().session(system="S", variables={"x": 1}, metadata={"m": 1})
    session.run("1")
    fork = session.fork()
    fork.run("2")
    session.run("3")
    fork.set_variables({"x": 2})
    assert texts(session) == ["1", "a", "3", "c"]
    assert texts(fork) == ["1", "a", "2", "b"]
    assert (session.variables["x"], fork.variables["x"]) == (1, 2)
    assert (fork.system, fork.metadata) == ("S", {"m": 1})
    assert fork.session_id != session.session_id


def test_a_fork_to_a_taken_id_is_refused(runtime):
    agent = runtime.agent()
    agent.session("taken", messages=HISTORY).status()
    session = agent.session(messages=HISTORY)
    with pytest.raises(SessionExists):
        session.fork("taken")
    with pytest.raises(SessionExists):
        session.fork(session.session_id)
    fork = session.fork("free")
    assert len(fork.messages) == 2
    with pytest.raises(SessionExists):
        session.fork("free")


def test_an_empty_session_can_be_forked(runtime):
    assert runtime.agent().session().fork("new").messages == []


def test_variables_are_read_and_written(runtime):
    session = runtime.agent().session(variables={"user": "Alice", "list": [1]})
    session.variables["age"] = 30
    session.variables.update(list=[1, 2], more={"a": None})
    del session.variables["user"]
    assert dict(session.variables) == {"age": 30, "list": [1, 2], "more": {"a": None}}
    session.set_variables({"x": 1}, remove=["age", "unknown"])
    assert dict(session.variables) == {"list": [1, 2], "more": {"a": None}, "x": 1}
    with pytest.raises(KeyError):
        del session.variables["age"]
    with pytest.raises(UsageError, match="variables="):
        session.variables["bad"] = object()


def test_variables_are_only_set_where_there_are_none(runtime):
    runtime.agent().session("s", variables={"a": 1, "b": 1}).status()
    again = runtime.agent().session("s", variables={"b": 2, "c": 2})
    assert dict(again.variables) == {"a": 1, "b": 1, "c": 2}


def test_existing_variables_are_filled_into_the_system_prompt(runtime):
    runtime.use(lines := script("a", "b"))
    prompt = 'Help {user}, {age}. Not {unknown}, {}, {0}, {user!r}, {{user}}, {"user": 1} or {a b}.'
    session = runtime.agent(system=prompt).session(variables={"user": "Alice", "age": 30})
    session.run("1")
    assert lines.requests[0].system == (
        'Help Alice, 30. Not {unknown}, {}, {0}, {user!r}, {Alice}, {"user": 1} or {a b}.'
    )
    session.variables["user"] = "Bob {age}"
    session.run("2")
    assert lines.requests[1].system.startswith("Help Bob {age}, 30.")


@tool
def count(context: Context) -> int:
    """Count one on."""
    context.variables["n"] = context.variables.get("n", 0) + 1
    return context.variables["n"]


def test_a_tool_changes_variables_with_its_turn(runtime):
    runtime.use(script(tool_call("count"), tool_call("count"), "Two.", tool_call("count"), "Three."))
    session = runtime.agent(tools=[count]).session()
    events = list(session.stream("Count twice"))
    assert [event.type for event in events][-2:] == ["variables_changed", "turn_finished"]
    assert events[-2].variables == {"n": 2}
    assert session.variables["n"] == 2
    session.run("Once more")
    assert session.variables["n"] == 3


def test_a_failed_turn_changes_no_variables(runtime):
    runtime.use(script(tool_call("count")))
    session = runtime.agent(tools=[count]).session(variables={"n": 5})
    with pytest.raises(ProviderRejected, match="no answer to model call 2"):
        session.run("Count")
    assert dict(session.variables) == {"n": 5}


def test_metadata_are_merged(runtime):
    session = runtime.agent().session("s", metadata={"user": "1", "plan": "free"})
    session.set_metadata({"plan": "paid"})
    assert runtime.agent().session("s", metadata={"x": 1}).metadata == {"user": "1", "plan": "paid", "x": 1}


def test_files_are_kept_by_reference_and_can_be_said(runtime):
    runtime.use(lines := script("a"))
    session = runtime.agent().session()
    session.add_file(File(url="https://example.com/a.pdf", name="a.pdf", media_type="application/pdf"))
    session.run(["Read: ", session.files["a.pdf"]])
    assert lines.requests[0].messages[0].parts[1] == session.files["a.pdf"]
    with pytest.raises(UsageError, match="name"):
        session.add_file(File(url="https://example.com/a.pdf"))
    with pytest.raises(UsageError, match="no content"):
        session.add_file(File(media_type="application/pdf", name="a.pdf"))


def test_children_have_their_own_history_and_are_found(runtime):
    runtime.use(script("a", "b"))
    parent = runtime.agent().session()
    parent.run("1")
    child = parent.child(runtime.agent(name="researcher"), system="Search.")
    child.run("2")
    assert texts(parent) == ["1", "a"]
    assert texts(child) == ["2", "b"]
    assert child.parent == parent.session_id
    assert parent.children() == [child.session_id]
    assert parent.parent is None
    assert child.agent.name == "researcher"


def test_a_parent_that_was_not_used_yet_begins_with_its_own_messages(runtime):
    parent = runtime.agent().session(messages=HISTORY)
    child = parent.child()
    child.add_message(Message.user("1"), Message.assistant("found"))
    child.report()
    assert texts(parent) == [*(message.text for message in HISTORY), "found"]
    with pytest.raises(UsageError, match="session_id="):
        parent.child("a-name")


def test_a_child_reports_to_its_parent(runtime):
    runtime.use(lines := script("a", "found it", "thanks"))
    parent = runtime.agent().session()
    parent.run("1")
    child = parent.child(runtime.agent(name="researcher"))
    with pytest.raises(UsageError, match="no answer"):
        child.report()
    child.run("Search")
    child.report()
    assert texts(parent) == ["1", "a", "found it"]
    assert parent.messages[-1].agent == "researcher"
    parent.run("2")
    assert [message.text for message in lines.requests[-1].messages] == ["1", "a", "found it", "2"]
    with pytest.raises(UsageError, match="no parent"):
        parent.report()


def test_the_graph_of_a_family_can_be_read(runtime):
    agent = runtime.agent()
    root = agent.session("root")
    first, second = root.child(session_id="first"), root.child(session_id="second")
    grandchild = first.child(session_id="grandchild")
    for session in (first, second, grandchild):
        session.status()
    assert root.children() == ["first", "second"]
    assert agent.session("first").children() == ["grandchild"]
    assert agent.session("grandchild").parent == "first"
    assert agent.session("second").children() == []


def test_sessions_are_listed_by_their_metadata(runtime):
    runtime.use(script("a", repeat=True))
    agent = runtime.agent()
    for number in range(3):
        agent.session(f"s{number}", metadata={"user": "1" if number else "2", "tags": ["x"]}).run("Hi")
    agent.session("only looked at").status()
    listed = {info.session_id: info for info in agent.sessions()}
    assert set(listed) == {"s0", "s1", "s2"}
    assert listed["s1"].messages == 2
    assert listed["s1"].metadata == {"user": "1", "tags": ["x"]}
    assert listed["s1"].updated >= listed["s1"].created > 0
    assert {info.session_id for info in agent.sessions(metadata={"user": "1"})} == {"s1", "s2"}
    assert [info.session_id for info in agent.sessions(metadata={"user": "2", "tags": ["x"]})] == ["s0"]
    agent.session("s1").delete()
    agent.session("s2").close()
    assert {info.session_id: info.closed for info in agent.sessions()} == {"s0": False, "s2": True}


def test_a_closed_session_is_read_but_takes_no_turns(runtime):
    session = runtime.agent().session(messages=HISTORY)
    session.close()
    assert session.status().state == "closed"
    assert len(session.messages) == 2
    assert len(session.to_dict()["messages"]) == 2
    assert len(session.fork().messages) == 2
    for act in (
        lambda: session.run("Hi"),
        lambda: session.submit("Hi"),
        lambda: session.add_message(Message.user("Hi")),
        session.clear,
    ):
        with pytest.raises(UsageError, match="closed"):
            act()


def test_a_deleted_session_is_forgotten(runtime):
    runtime.use(script("a"))
    session = runtime.agent().session("s", messages=HISTORY, system="S")
    session.status()
    assert session.delete() is True
    assert session.delete() is False
    assert session.messages == []
    assert session.system is None
    session.run("Hi")
    assert texts(session) == ["Hi", "a"]


def test_a_window_sends_the_end_of_a_long_history(runtime):
    runtime.use(lines := script("a"))
    history = [Message.user(f"{n}") if n % 2 == 0 else Message.assistant(f"{n}") for n in range(20)]
    session = runtime.agent(window=2).session(messages=history)
    session.run("Hi")
    assert [message.text for message in lines.requests[0].messages] == ["16", "17", "18", "19", "Hi"]
    assert len(session.messages) == 22


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": ""}, "model="),
        ({"max_steps": 0}, "max_steps="),
        ({"window": 0}, "window"),
        ({"stop": object()}, "params="),
    ],
)
def test_a_wrong_agent_names_the_argument(options, says):
    with pytest.raises(UsageError, match=says):
        Agent("scripted", **{"model": "any", **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variables": [1]}, "variables="),
        ({"variables": {"a": object()}}, "variables="),
        ({"metadata": {"a": object()}}, "metadata="),
        ({"system": 7}, "system="),
        ({"ttl": 0}, "ttl="),
        ({"messages": "Hi"}, "must be a list"),
    ],
)
def test_a_wrong_session_names_the_argument(runtime, options, says):
    with pytest.raises(UsageError, match=says):
        runtime.agent().session(**options)


# Saving.


def rich_session(runtime):
    session = runtime.agent(name="support", tools=[count]).session(
        "rich", system="Be {mood}.", variables={"mood": "kind", "list": []}, metadata={"user": "1"}
    )
    session.run(["Look: ", Image(url="https://example.com/a.png")])
    session.add_file(File(file_id="file-1", name="a.pdf"))
    return session


def test_a_saved_session_is_plain_data_and_comes_back_whole(runtime):
    runtime.use(lines := script(tool_call("count"), "One.", "Two."))
    session = rich_session(runtime)
    data = session.to_dict()
    assert data["version"] == 1
    assert data["session_id"] == "rich"
    assert data["agent"]["name"] == "support"
    assert data["variables"] == {"mood": "kind", "list": [], "n": 1}
    assert data["updated"] >= data["created"] > 0
    session.delete()
    restored = Session.from_dict(data, runtime.agent(tools=[count]))
    assert restored.to_dict() == {**data, "updated": restored.to_dict()["updated"]}
    restored.run("And now?")
    assert lines.requests[-1].system == "Be kind."
    assert len(lines.requests[-1].messages) == 5
    assert len(restored.messages) == 6


def test_a_session_restored_over_the_same_history_changes_nothing(runtime):
    runtime.use(script("a"))
    session = runtime.agent().session(messages=HISTORY)
    session.run("Hi")
    assert Session.from_dict(session.to_dict(), runtime.agent()).messages == session.messages


def test_a_session_that_went_on_is_not_overwritten_unless_asked(runtime):
    runtime.use(script("a"))
    session = runtime.agent().session(messages=HISTORY)
    data = session.to_dict()
    session.run("Hi")
    with pytest.raises(SessionExists, match="replace=True"):
        _ = Session.from_dict(data, runtime.agent()).messages
    assert len(session.messages) == 4
    assert len(Session.from_dict(data, runtime.agent(), replace=True).messages) == 2
    assert len(session.messages) == 2


def test_dictionaries_of_other_services_can_be_restored(runtime):
    data = {"version": 1, "session_id": "s", "messages": [{"role": "user", "content": "Hi"}]}
    assert texts(Session.from_dict(data, runtime.agent())) == ["Hi"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "format version 2"),
        ({"version": 0}, "format version 0"),
        ({"version": "1"}, "version"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": 7}, "session_id"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "robot"}]}, "'robot'"),
        ({"messages": [{"role": "user", "parts": [{"type": "text"}]}]}, "Message 0"),
        ({"variables": [1]}, "variables"),
        ({"metadata": "x"}, "metadata"),
        ({"system": 7}, "system"),
        ({"created": "now"}, "created"),
    ],
)
def test_damaged_and_newer_data_are_refused(runtime, change, says):
    data = {"version": 1, "session_id": "s", "messages": []}
    with pytest.raises(CorruptRecord, match=says):
        Session.from_dict({**data, **change}, runtime.agent())


@pytest.mark.parametrize("missing", ["version", "session_id", "messages"])
def test_data_that_lack_something_are_refused(runtime, missing):
    data = {"version": 1, "session_id": "s", "messages": []}
    del data[missing]
    with pytest.raises(CorruptRecord, match=missing):
        Session.from_dict(data, runtime.agent())


def test_what_is_no_dictionary_is_refused(runtime):
    with pytest.raises(CorruptRecord, match="list"):
        Session.from_dict([1], runtime.agent())


def test_unknown_keys_and_parts_of_a_newer_release_are_borne(runtime):
    newer = {"type": "hologram", "depth": 3}
    message = {"role": "assistant", "parts": [newer], "mood": "good"}
    data = {"version": 1, "session_id": "s", "messages": [message], "colour": "red"}
    (read,) = Session.from_dict(data, runtime.agent()).messages
    assert read.parts[0].item == newer


@pytest.mark.parametrize("failed", [False, True])
def test_a_slice_may_reach_far_beyond_the_history(runtime, failed):
    session, far = runtime.agent().session("s", messages=HISTORY), 10**30
    for start, stop in (
        (far, None),
        (far, 2 * far),
        (0, -far),
        (-far, -far),
        (-far, None),
        (0, far),
        (-1, far),
    ):
        found = session.history(start, stop, failed=failed)
        assert [one.text for one in found] == [one.text for one in HISTORY[start:stop]]
