"""A chat message history of LangChain over a session, and messages in both directions."""

import asyncio
from base64 import b64encode

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from antiphon import Agent, Client, Message
from antiphon.errors import WrongTenant
from antiphon.ext.langchain import AntiphonMessageHistory, langchain_messages, messages_of
from antiphon.model import File, Image, Text, ToolCall, ToolResult

SAID = [
    SystemMessage("Be brief."),
    HumanMessage(
        [{"type": "text", "text": "See"}, {"type": "image", "url": "https://example.com/a.png"}], id="h1"
    ),
    AIMessage(
        "Let me look.",
        tool_calls=[{"name": "look", "args": {"n": n}, "id": f"c{n}", "type": "tool_call"} for n in (1, 2)],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    ToolMessage("one", tool_call_id="c1", artifact={"x": 1}),
    ToolMessage("two", tool_call_id="c2", status="error"),
    AIMessage("Done.", response_metadata={"model_name": "m-1"}, name="worker"),
]


def test_messages_come_back_whole_from_any_process(redis_url):
    history = AntiphonMessageHistory("s", redis=redis_url)
    history.add_messages(SAID)
    assert AntiphonMessageHistory("s", redis=redis_url).messages == SAID
    with Client(redis_url) as client:
        ours = client.session("s").messages
    assert [message.role for message in ours] == ["system", "user", "assistant", "tool", "assistant"]
    assert [(one.text, one.is_error) for one in ours[3].tool_results] == [("one", False), ("two", True)]
    history.clear()
    assert history.messages == []


async def test_a_large_picture_comes_back_although_the_session_stores_it_apart(redis_url):
    history = AntiphonMessageHistory("s", redis=redis_url)
    picture = {"type": "image", "base64": b64encode(bytes(30_000)).decode(), "mime_type": "image/png"}
    await history.aadd_messages([HumanMessage([{"type": "text", "text": "See"}, picture])])
    [message] = await history.aget_messages()
    assert message.content[1]["base64"] == picture["base64"]
    assert history.messages == [message]


async def test_the_asynchronous_methods_and_calls_side_by_side(redis_url):
    history = AntiphonMessageHistory("s", redis=redis_url, tenant="acme")
    pairs = [[HumanMessage(f"q{n}"), AIMessage(f"a{n}")] for n in range(8)]
    await asyncio.gather(*(history.aadd_messages(pair) for pair in pairs))
    found = [message.content for message in await history.aget_messages()]
    together = list(zip(found[::2], found[1::2], strict=True))
    assert sorted(together) == [(f"q{n}", f"a{n}") for n in range(8)]
    with pytest.raises(WrongTenant):
        await AntiphonMessageHistory("s", redis=redis_url, tenant="other").aget_messages()
    await history.aclear()
    assert await history.aget_messages() == []


def test_turns_of_ours_and_langchain_read_each_other():
    session = Agent(provider="scripted", model="any").session("shared-with-langchain")
    history = AntiphonMessageHistory("shared-with-langchain")
    history.add_user_message("My name is Alice")
    history.add_ai_message("Hello, Alice")
    answer = session.run("Who am I?").text
    assert [(one.type, one.text) for one in history.messages][-2:] == [("human", "Who am I?"), ("ai", answer)]
    assert [message.text for message in session.messages[:2]] == ["My name is Alice", "Hello, Alice"]
    session.clear()
    assert history.messages == []


def test_messages_of_ours_in_both_directions():
    ours = [
        Message.user(
            [Text("See"), Image(url="https://example.com/a.png"), File(data="QQ==", media_type="text/plain")]
        ),
        Message.assistant([Text("Let me look."), ToolCall("c1", "look", {"n": 1})]),
        Message.tool([ToolResult("c1", "seen", "look", is_error=True)]),
        Message.assistant("Done."),
    ]
    back = messages_of(langchain_messages(ours))
    assert [message.parts[:-1] for message in back] == [message.parts for message in ours]
    chunks = AIMessageChunk("Hel") + AIMessageChunk("lo")
    assert langchain_messages(messages_of([chunks])) == [AIMessage("Hello")]


def test_a_call_that_got_another_id_is_told_with_it():
    (message,) = messages_of([SAID[2]])
    message.parts[1] = ToolCall("c1_2", "look", {"n": 1})
    (told,) = langchain_messages([message])
    assert [call["id"] for call in told.tool_calls] == ["c1_2", "c2"]
