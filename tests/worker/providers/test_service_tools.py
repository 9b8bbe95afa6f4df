"""Tools and summaries of the services themselves: whole in the answer, in the session, and in the next request.

The forms are those of the SDKs' types (``anthropic.types.beta``, ``openai.types.responses``).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.services.conversation import (
    body,
    hear,
    message_events,
    message_item,
    request,
    response_events,
    result,
    serve,
    text_block,
)  # fmt: skip
from support.services.wire_server import Reply, WireServer

from antiphon import Agent
from antiphon.model import Item, Message, Text

CODE = {"type": "code_execution_20250825", "name": "code_execution"}
MESSAGES = [
    ({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tea"}},
     {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1",
      "content": [{"type": "web_search_result", "url": "https://e.com", "title": "Tea", "encrypted_content": "Eo"}]}),
    ({"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {"command": "ls"}},
     {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2",
      "content": {"type": "bash_code_execution_result", "stdout": "a.csv", "stderr": "", "return_code": 0,
                  "content": [{"type": "bash_code_execution_output", "file_id": "file_1"}]}}),
    ({"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "echo", "server_name": "example", "input": {"p": 1}},
     {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False,
      "content": [{"type": "text", "text": "Hello"}]}),
    ({"type": "server_tool_use", "id": "srvtoolu_3", "name": "tool_search_tool_regex", "input": {"query": "w"}},
     {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_3",
      "content": {"type": "tool_search_tool_search_result", "tool_references": [{"tool_name": "weather"}]}}),
]  # fmt: skip
RESPONSES = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed",
     "action": {"type": "search", "query": "tea", "sources": [{"type": "url", "url": "https://e.com"}]}},
    {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "1+1", "container_id": "cntr_1",
     "outputs": [{"type": "logs", "logs": "2"}]},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "example",
     "tools": [{"name": "echo", "input_schema": {}}]},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "example", "name": "echo", "arguments": "{}",
     "output": "Hello"},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["tea"], "results": []},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="},
]  # fmt: skip


def answer(kind, *events):
    return Reply([body(kind, [*events])])


async def two_turns(kind, *answers, texts=("Look.", "And now?"), **params):
    """What a session sends in two turns: the bodies of all requests, and the session."""
    async with WireServer(*answers) as server:
        provider = serve(kind, server.url)
        session = Agent(provider=provider, model="a-model").session_async()
        for text in texts:
            await session.run(text, **params)
        messages = await session.messages()
        await provider.aclose()
    return [one.body for one in server.seen], messages


def said(kind):
    if kind == "anthropic":
        return answer(kind, *message_events(text_block("Fine.")))
    return answer(kind, *response_events(message_item("Fine.")))


@pytest.mark.parametrize("use", MESSAGES, ids=lambda one: one[0]["name"])
async def test_a_tool_of_the_messages_api_returns_whole_with_the_next_turn(use):
    events = message_events(*[(block, []) for block in use], text_block("Found."))
    bodies, _ = await two_turns("anthropic", answer("anthropic", *events), said("anthropic"))
    content = bodies[1]["messages"][1]["content"]
    assert [{k: v for k, v in one.items() if k != "cache_control"} for one in content] == [
        *use, {"type": "text", "text": "Found."},
    ]  # fmt: skip


@pytest.mark.parametrize("item", RESPONSES, ids=lambda one: one["type"])
async def test_a_tool_of_the_responses_api_returns_whole_with_the_next_turn(item):
    events = response_events((item, []), message_item("Found."))
    bodies, _ = await two_turns("openai", answer("openai", *events), said("openai"))
    assert bodies[1]["input"][1] == item


async def test_a_paused_tool_goes_on_in_its_container_and_so_does_the_next_turn():
    """The container is no block: it is a field of the next requests, while it exists and a tool may use it."""
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    container = {"id": "container_1", "expires_at": until, "skills": None}
    paused = message_events((MESSAGES[1][0], []), stop="pause_turn")
    paused[-2]["delta"]["container"] = container
    ended = message_events((MESSAGES[1][1], []), text_block("a.csv"))
    replies = answer("anthropic", *paused), answer("anthropic", *ended), said("anthropic")
    bodies, messages = await two_turns("anthropic", *replies, tools=[CODE])
    assert ["container" in one for one in bodies] == [False, True, True]
    assert bodies[2]["container"] == "container_1"
    assert "expires_at" not in str(bodies)
    assert Item("anthropic", {"type": "container", **container}) in messages[1].parts


@pytest.mark.parametrize("until", [None, "never", "2020-01-01T00:00:00Z"])
async def test_a_container_that_has_expired_is_not_sent(until):
    item = Item("anthropic", {"type": "container", "id": "container_1", "expires_at": until})
    history = [
        Message.user("1"),
        Message("assistant", [Text("2"), item], provider="anthropic"),
        Message.user("3"),
    ]
    async with WireServer(said("anthropic")) as server:
        provider = serve("anthropic", server.url)
        await hear(provider, request(*history, params={"tools": [CODE]}))
        await provider.aclose()
    assert "container" not in str(server.seen[0].body)


async def test_a_container_is_for_tools_of_the_service_alone():
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    item = Item("anthropic", {"type": "container", "id": "container_1", "expires_at": until})
    history = [
        Message.user("1"),
        Message("assistant", [Text("2"), item], provider="anthropic"),
        Message.user("3"),
    ]
    async with WireServer(said("anthropic")) as server:
        provider = serve("anthropic", server.url)
        await hear(provider, request(*history))
        await hear(provider, request(*history, params={"tools": [CODE], "container": "mine"}))
        await provider.aclose()
    assert [one.body.get("container") for one in server.seen] == [None, "mine"]


COMPACTION = {
    "anthropic": {"type": "compaction", "content": "They asked about tea."},
    "openai": {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
}
EDITS = {
    "anthropic": {
        "context_management": {"edits": [{"type": "compact_20260112"}, {"type": "clear_tool_uses_20250919"}]},
        "extra_headers": {"anthropic-beta": "compact-2026-01-12,context-management-2025-06-27"},
    },
    "openai": {"context_management": [{"type": "compaction", "compact_threshold": 200_000}]},
}


def compacted(kind):
    item = COMPACTION[kind]
    if kind == "anthropic":
        whole = item["content"]
        blocks = (
            ({**item, "content": None}, [{"type": "compaction_delta", "content": whole}]),
            text_block("Green."),
        )
        events = message_events(*blocks)
        events[-2]["context_management"] = {"applied_edits": [{"type": "clear_tool_uses_20250919"}]}
        return answer(kind, *events)
    return answer(kind, *response_events((item, []), message_item("Green.")))


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_session_that_the_service_compacts_sends_its_summary_in_place_of_what_it_replaces(kind):
    """Turn after turn, so that requests do not grow; the session keeps everything."""
    replies = said(kind), said(kind), compacted(kind), said(kind), said(kind), compacted(kind), said(kind)
    texts = [f"Question {number}" for number in range(7)]
    bodies, messages = await two_turns(kind, *replies, texts=texts, **EDITS[kind])
    field = "messages" if kind == "anthropic" else "input"
    assert len(messages) == 14
    assert all(one["context_management"] == EDITS[kind]["context_management"] for one in bodies)
    assert [len(one[field]) for one in bodies[:3]] == [1, 3, 5]
    for number, first in ((3, 2), (4, 2), (6, 5)):
        sent = str(bodies[number][field])
        assert COMPACTION[kind].get("content", "gAAAA") in sent
        assert f"Question {first}" not in sent
        assert f"Question {first + 1}" in sent
        assert "Green." in sent
    lengths = [len(one[field]) for one in bodies]
    assert max(lengths) <= 7


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_summary_of_another_service_and_one_that_failed_replace_nothing(kind):
    empty = (
        {"type": "compaction", "content": None} if kind == "anthropic" else {"type": "compaction", "id": "c"}
    )
    history = [
        Message.user("Question 0"),
        Message("assistant", [Item("other", COMPACTION[kind]), Text("A")], provider="other"),
        Message.user("Question 1"), Message("assistant", [Item(kind, empty), Text("B")], provider=kind),
        Message.user("Question 2"),
    ]  # fmt: skip
    async with WireServer(said(kind)) as server:
        provider = serve(kind, server.url)
        await hear(provider, request(*history))
        await provider.aclose()
    assert all(f"Question {number}" in str(server.seen[0].body) for number in range(3))


async def test_a_pause_after_a_summary_continues_the_turn_and_its_tokens_are_counted():
    block = ({"type": "compaction", "content": "Summary."}, [])
    usage = {
        "input_tokens": 100, "output_tokens": 10, "iterations": [
            {"type": "message", "input_tokens": 100, "output_tokens": 10},
            {"type": "compaction", "input_tokens": 5_000, "output_tokens": 300, "cache_read_input_tokens": 40},
        ],
    }  # fmt: skip
    events = message_events(block, stop="compaction", usage=usage)
    async with WireServer(answer("anthropic", *events)) as server:
        provider = serve("anthropic", server.url)
        found = result(await hear(provider))
        await provider.aclose()
    assert (found.stop_reason, found.raw_stop_reason) == ("tool_use", "compaction")
    assert (found.usage.input_tokens, found.usage.output_tokens, found.usage.cached_input_tokens) == (
        5_140,
        310,
        40,
    )
    bodies, messages = await two_turns(
        "anthropic", answer("anthropic", *events), said("anthropic"), texts=["Go."]
    )
    assert len(bodies) == 2
    assert messages[-1].text == "Fine."
