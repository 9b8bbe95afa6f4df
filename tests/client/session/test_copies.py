"""What a session is given and what it gives are copies: to change one changes no session."""

from __future__ import annotations

from antiphon import Message, Session
from antiphon.model import File
from antiphon.testing import script, tool_call
from antiphon.tools import Context


def texts(session):
    return [message.text for message in session.messages]


def test_the_messages_of_a_session_are_copies(runtime):
    session = runtime.agent().session("s")
    session.run("a")
    session.messages[0].parts[0].text = "X"
    session.history(-1)[0].parts[0].text = "X"
    assert texts(session) == ["a", "You said: a"]


def test_a_message_that_was_added_or_said_is_copied(runtime):
    session = runtime.agent().session("s")
    added, said = Message.user("a"), Message.user("b")
    session.add_message(added)
    session.run(said)
    added.parts[0].text = said.parts[0].text = "X"
    assert texts(session) == ["a", "b", "You said: b"]


def test_the_messages_that_a_session_begins_with_are_copied(runtime):
    first = Message.user("a")
    session = runtime.agent().session("s", messages=[first])
    first.parts[0].text = "X"
    assert texts(session) == ["a"]


def test_the_messages_of_a_response_are_copies(runtime):
    def look(where: dict) -> str:
        """Look there."""
        return "found"

    runtime.use(script(tool_call("look", where={"a": 1}), "Done."))
    session = runtime.agent(tools=[look]).session("s")
    response = session.run("a")
    response.messages[-1].parts[0].text = "X"
    response.tool_calls[0].arguments["where"]["a"] = 2
    call, _, answer = session.messages[1:]
    assert call.tool_calls[0].arguments == {"where": {"a": 1}}
    assert answer.text == "Done."


def test_the_arguments_in_a_dictionary_that_was_added_are_copied(runtime):
    arguments = {"where": {"a": 1}}
    session = runtime.agent().session("s")
    session.add_message(
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "look", "input": arguments}],
        },
    )
    arguments["where"]["a"] = 2
    assert session.messages[0].tool_calls[0].arguments == {"where": {"a": 1}}


def test_a_change_inside_a_variable_a_file_or_the_metadata_is_not_kept(runtime):
    agent = runtime.agent()
    session = agent.session("s", variables={"l": [1]}, metadata={"l": [1]})
    file = File(name="a", url="https://example.com/a")
    session.add_file(file)
    file.url = session.files["a"].url = "X"
    session.variables["l"].append(2)
    session.metadata["l"].append(2)
    next(iter(agent.sessions())).metadata["l"].append(2)
    assert session.variables == {"l": [1]}
    assert session.metadata == {"l": [1]}
    assert session.files["a"].url == "https://example.com/a"


def test_the_event_that_tells_of_variables_holds_a_copy(runtime):
    def remember(context: Context) -> str:
        """Keep it."""
        context.variables["l"] = [1]
        return "kept"

    runtime.use(script(tool_call("remember"), "Done."))
    session = runtime.agent(tools=[remember]).session("s")
    for event in session.stream("a"):
        if event.type == "variables_changed":
            event.variables["l"].append(2)
    assert session.variables == {"l": [1]}


def test_a_saved_session_shares_nothing_with_the_one_that_it_becomes(runtime):
    agent = runtime.agent()
    data = {"version": 1, "session_id": "s", "messages": [], "variables": {"l": [1]}, "metadata": {"l": [1]}}
    session = Session.from_dict(data, agent)
    data["variables"]["l"].append(2)
    assert session.variables == {"l": [1]}
    session.to_dict()["metadata"]["l"].append(2)
    data["metadata"]["l"].append(2)
    assert session.metadata == {"l": [1]}
