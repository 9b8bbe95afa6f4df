"""JSON as a page reads it, without our types: what it shows is there, also where it is empty or the default."""

import json

import pytest
from support.openai_clients import calling

from antiphon import Agent, tool
from antiphon.events import ToolCallDelta, ToolResultEvent, decode_event
from antiphon.model import Message, Reasoning, ToolCall, ToolOutcome, decode_message, encode

pytestmark = pytest.mark.one_server


@tool
def look() -> str:
    """Look around, and see nothing."""
    return ""


def answers(request):
    results = [one for message in request.messages for one in message.tool_results]
    return "Nothing." if results else [Reasoning(""), ToolCall("call_1", "look", {})]


def values(found, name):
    """All values with this name in a JSON value, however deep."""
    if isinstance(found, list):
        return [value for one in found for value in values(one, name)]
    if not isinstance(found, dict):
        return []
    own = [found] if found.get("type") == name or name == "any" else []
    return own + [value for one in found.values() for value in values(one, name)]


async def test_empty_arguments_and_results_are_in_messages_results_and_events(redis_url):
    agent = Agent("scripted", "any", name="support", tools=[look])
    async with calling(redis_url, answers, agents=[agent]) as (api, _):
        submitted = await api.post("/sessions/s/turns", {"input": "Look", "agent": "support"})
        result = await api.result(submitted["turn_id"])
        history = await api.get("/sessions/s/messages")
        answer = await api.http.get(f"/turns/{submitted['turn_id']}/events")
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith('data: {"')]
        for found in (result, history, events):
            calls = values(found, "tool_call")
            assert [one["arguments"] for one in calls] == [{}] * len(calls)
            assert calls
        assert [one["arguments"] for one in result["response"]["tool_calls"]] == [{}]
        (told,) = values(events, "tool_result")[:1]
        assert told["result"] == ""
        assert all("arguments" in one for one in events if one["type"] == "tool_call_delta")
        assert all("text" in one for one in values([result, history, events], "reasoning"))


def test_what_older_releases_have_stored_is_read_with_the_defaults():
    stored = b'{"role":"assistant","parts":[{"type":"tool_call","call_id":"c","name":"look"},{"type":"reasoning"}]}'
    message = decode_message(stored)
    assert message == Message.assistant([ToolCall("c", "look"), Reasoning()])
    assert b'"arguments":{}' in encode(message)
    old = decode_event(b'{"type":"tool_call_delta","seq":1,"session_id":"s","call_id":"c","name":"look"}')
    assert isinstance(old, ToolCallDelta)
    assert old.arguments == ""


def test_defaults_that_pages_show_are_written():
    for value, written in (
        (ToolCall("c", "look"), b'"arguments":{}'), (ToolOutcome("c", "look"), b'"arguments":{}'),
        (Reasoning(), b'"text":""'), (ToolCallDelta(call_id="c"), b'"arguments":""'),
        (ToolResultEvent(call_id="c"), b'"result":""'),
    ):  # fmt: skip
        assert written in encode(value)
