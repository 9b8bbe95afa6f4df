"""The documents that users of sessions know, run word for word."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import types

import pytest
from pydantic import BaseModel
from support.documents import code_blocks

import antiphon
from antiphon import Agent, Message, Session
from antiphon.errors import AgentError
from antiphon.testing import script, tool_call


def remembers(request):
    """A model that says what it was told, asks for orders where it may, and summarises where it must."""
    said = [message.text for message in request.messages if message.role == "user"]
    if request.output is not None:
        return {
            name: said if name == "key_points" else "the end" for name in request.output.schema["properties"]
        }
    if "orders" in said[-1] and request.tools and request.messages[-1].role != "tool":
        return tool_call(request.tools[0].name, user_id="user-123")
    results = [result.text for message in request.messages for result in message.tool_results]
    return "I know: " + " / ".join(said + results)


class ConversationSummary(BaseModel):
    points: str


class Database:
    def __init__(self):
        self.saved = {}

    def save_session(self, session_id, data):
        self.saved[session_id] = data


class Reader:
    """Runs the blocks of a document one after another, as somebody who follows it would."""

    def __init__(self, path):
        self.blocks = code_blocks(path.read_text())
        self.names = types.ModuleType("document").__dict__
        self.names |= {
            "db": Database(), "user_input": "Hello?", "Session": Session, "ConversationSummary": ConversationSummary,
        }  # fmt: skip

    def run(self, block, capsys):
        code = block.code.replace("from agent", "from antiphon")
        outcome = eval(compile(code, block.heading, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), self.names)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
        return capsys.readouterr().out


def basic(names, out):
    assert "My name is Alice" in out
    assert "software engineer" in out


def answered(names, out):
    assert names["response"].text


def custom_id(names, out):
    assert out == "user-123-conv-456\n"


def prepopulated(names, out):
    assert names["response"].text == "I know: What's the capital of France? / What about Germany?"


def streamed(names, out):
    assert "Write a story" in out
    assert names["session"].messages[-2].text == "Write a story"


def streamed_async(names, out):
    assert "Write a poem" in out
    assert names["session"].messages[-2].text == "Write a poem"


def summarised(names, out):
    assert isinstance(names["response"].output, names["Summary"])
    assert "Write a poem" in out


def accessed(names, out):
    messages = names["session"].messages
    assert f"Message count: {len(messages)}\n" in out
    assert out.count("]: ") == len(messages)
    names["messages"].clear()
    assert names["session"].messages == messages != []


def cleared(names, out):
    assert out == "0\n"


def added(names, out):
    assert [message.text for message in names["session"].messages] == [
        "Custom user message", "Custom assistant response",
    ]  # fmt: skip


def forked(names, out):
    original = names["session"].run("Again: which?")
    assert "Tokyo and Kyoto" in original.text
    assert "Osaka" not in original.text
    assert "Osaka" in names["response"].text
    assert "Tokyo and Kyoto" in names["response"].text
    assert names["alt_session"].session_id == "alternative-plan"


def saved(names, out):
    data = names["db"].saved[names["session"].session_id]
    assert data == names["session"].to_dict()
    assert set(data) >= {
        "version", "session_id", "agent", "system", "messages", "variables", "metadata", "created", "updated",
    }  # fmt: skip
    assert json.loads(json.dumps(data)) == data


def restored(names, out):
    assert "Tokyo and Kyoto" in names["response"].text
    assert names["restored"].session_id == names["session"].session_id


def stored(names, out):
    assert names["data"]["session_id"] == names["session"].session_id
    assert names["data"] == names["session"].to_dict()


def with_tools(names, out):
    assert "Laptop" in names["response"].text
    call = next(call for message in names["session"].messages for call in message.tool_calls)
    assert (call.name, call.arguments) == ("get_user_orders", {"user_id": "user-123"})


def summary_not_needed(names, out):
    assert "new_session" not in names


def handled(names, out):
    assert names["response"].text == "I know: Hello?"


def named(names, out):
    session = names["create_support_session"]("alice")
    assert session.session_id.startswith("alice-")
    assert session.run("Hi").text == "I know: Hi"


CHECKS = {
    "Basic Usage": basic,
    "Custom Session ID": custom_id,
    "System Prompt": answered,
    "Pre-populated History": prepopulated,
    "run() - Synchronous": answered,
    "run_async() - Asynchronous": answered,
    "stream() - Streaming": streamed,
    "stream_async() - Async Streaming": streamed_async,
    "json() - Structured Output": summarised,
    "Access History": accessed,
    "Clear History": cleared,
    "Add Messages Manually": added,
    "Create a branch from the current conversation:": forked,
    "Save Session State": saved,
    "Restore Session State": restored,
    "SQLite Store": stored,
    "Tools work seamlessly with sessions:": with_tools,
    "2. Manage History Length": summary_not_needed,
    "3. Handle Errors Gracefully": handled,
    "4. Use Session IDs for Tracking": named,
}


@pytest.fixture
def model():
    """The model that answers for every provider of the document."""
    return script(remembers, repeat=True)


@pytest.fixture
def document_agents(monkeypatch, tmp_path, runtime, model):
    """``from antiphon import Agent`` gives agents whose model is ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(antiphon, "Agent", lambda provider, model, **more: runtime.agent(model=model, **more))
    runtime.use(model)
    return antiphon.Agent


def test_every_example_of_the_session_document_works(shared, document_agents, capsys):
    reader = Reader(shared / "seeds" / "sessions_api.txt")
    checked = set()
    for block in reader.blocks:
        out = reader.run(block, capsys)
        if check := CHECKS.get(block.heading):
            check(reader.names, out)
            checked.add(block.heading)
    assert checked == set(CHECKS)


def test_a_long_history_is_summarised_as_the_document_shows(shared, document_agents, capsys):
    reader = Reader(shared / "seeds" / "sessions_api.txt")
    block = next(block for block in reader.blocks if block.heading == "2. Manage History Length")
    agent = document_agents(provider="openai", model="gpt-4o")
    history = [Message.user("more") if n % 2 == 0 else Message.assistant("and more") for n in range(22)]
    reader.names |= {"agent": agent, "session": agent.session(messages=history)}
    reader.run(block, capsys)
    assert reader.names["new_session"].system == "Previous conversation summary: points='the end'"
    assert reader.names["new_session"].run("Hi").text == "I know: Hi"


def test_a_failed_interaction_is_not_in_the_history_as_the_document_says(shared, runtime, capsys):
    def fails(request):
        raise AgentError("the model is away")

    reader = Reader(shared / "seeds" / "sessions_api.txt")
    block = next(block for block in reader.blocks if block.heading == "3. Handle Errors Gracefully")
    runtime.use(script(fails, repeat=True))
    reader.names["session"] = runtime.agent().session()
    assert reader.run(block, capsys) == "Error: the model is away. Please try again.\n"
    assert reader.names["session"].messages == []


def test_the_toy_of_the_other_document_runs(shared, capsys):
    reader = Reader(shared / "seeds" / "session_management.txt")
    (block,) = reader.blocks
    assert reader.run(block, capsys).count("\n") == 3


def test_a_session_does_what_the_toy_does(shared, runtime, capsys):
    runtime.use(script(remembers, repeat=True))
    reader = Reader(shared / "seeds" / "session_management.txt")
    reader.run(reader.blocks[0], capsys)
    session = runtime.agent().session(variables={})
    for message in reader.names["get_context"](reader.names["sid"]):
        session.add_message(message)
    assert [message.role for message in session.messages] == ["user", "assistant", "user"]
    assert "Now add error handling" in session.run("What is next?").text


def test_the_document_has_been_read_whole(shared):
    blocks = code_blocks((shared / "seeds" / "sessions_api.txt").read_text())
    assert len(blocks) == 23
    assert set(CHECKS) <= {block.heading for block in blocks}


def test_the_agent_of_the_package_is_the_agent():
    assert antiphon.Agent is Agent
