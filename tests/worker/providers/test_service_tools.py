"""Tools and summaries of the services themselves: whole in the answer, in the session, and in the next request.

The forms are those of the SDKs' types (``anthropic.types.beta``, ``openai.types.responses``).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter
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
from antiphon.model import Image, Item, Message, Text
from antiphon.tools import Tool

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


SHOT = Image(data="aGk=", media_type="image/png")
CLICK = {"type": "click", "button": "left", "x": 1, "y": 2}
CHECKS = [{"id": "sc_1", "code": "malicious_instructions", "message": "Look."}]
PATCH = {"type": "update_file", "path": "a.txt", "diff": "@@ -1 +1 @@"}
WRITTEN = [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
LATE = [*WRITTEN, {"stdout": "", "stderr": "late", "outcome": {"type": "timeout"}}]
COMPUTER = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "c1",
    "status": "completed",
    "pending_safety_checks": [],
}
SHELL = {"type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed", "environment": {"type": "local"},
         "action": {"commands": ["ls"], "timeout_ms": 1000, "max_output_length": 9}}  # fmt: skip
PATCHED = {
    "type": "apply_patch_call",
    "id": "ap_1",
    "call_id": "c1",
    "status": "completed",
    "operation": PATCH,
}
# What the agent's tool is called with and returns, and what the service gets: the item, and the rest of its output.
LOCAL = {
    "computer": (
        {"type": "computer"}, {**COMPUTER, "actions": [CLICK]}, {"actions": [CLICK]}, SHOT,
        {"output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,aGk="}},
    ),
    "computer with a check": (
        {"type": "computer_use_preview", "display_width": 8, "display_height": 6, "environment": "linux"},
        {**COMPUTER, "action": CLICK, "pending_safety_checks": CHECKS},
        {"actions": [CLICK], "pending_safety_checks": CHECKS}, SHOT,
        {"output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,aGk="},
         "acknowledged_safety_checks": CHECKS},
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}}, SHELL, SHELL["action"], "a.txt",
        {"output": WRITTEN, "max_output_length": 9},
    ),
    "shell of several commands": (
        {"type": "shell"}, {**SHELL, "caller": {"type": "program", "caller_id": "p1"}}, SHELL["action"], LATE,
        {"output": LATE, "max_output_length": 9, "caller": {"type": "program", "caller_id": "p1"}},
    ),
    "shell that fails": (
        {"type": "shell"}, {**SHELL, "action": {"commands": ["ls"]}}, {"commands": ["ls"]}, ValueError("no ls"),
        {"output": [{"stdout": "", "stderr": "ValueError: no ls", "outcome": {"type": "exit", "exit_code": 1}}]},
    ),
    "apply_patch": ({"type": "apply_patch"}, PATCHED, PATCH, "Done.", {"status": "completed", "output": "Done."}),
    "apply_patch that fails": (
        {"type": "apply_patch"}, PATCHED, PATCH, ValueError("no a.txt"),
        {"status": "failed", "output": "ValueError: no a.txt"},
    ),
}  # fmt: skip


def runner(name, returns, calls):
    """The agent's tool of this name. It notes with what it is called."""

    def run(**given):
        calls.append(given)
        if isinstance(returns, Exception):
            raise returns
        return returns

    schema = {"type": "object", "additionalProperties": True}
    return Tool(run, name=name, description="Run it.", parameters=schema)


async def called_here(item, run_by, **params):
    """A turn in which the service asks for this call, and a second turn: all requests, events and messages."""
    replies = answer("openai", *response_events((item, []))), said("openai"), said("openai")
    async with WireServer(*replies) as server:
        provider = serve("openai", server.url)
        session = Agent(provider=provider, model="a-model", tools=run_by).session_async()
        events = [event async for event in session.stream("Go.", **params)]
        await session.run("And now?", **params)
        messages = await session.messages()
        await provider.aclose()
    return [one.body for one in server.seen], events, messages


@pytest.mark.parametrize("case", LOCAL)
async def test_a_tool_of_the_agent_runs_the_calls_of_a_tool_that_the_service_declares(case):
    declared, item, given, returns, output = LOCAL[case]
    name, calls = case.partition(" ")[0], []
    bodies, events, messages = await called_here(item, [runner(name, returns, calls)], tools=[declared])
    assert calls == [given]
    assert [body["tools"] for body in bodies] == [[declared]] * len(bodies), "it is declared once"
    expected = {"type": f"{item['type']}_output", "call_id": "c1", **output}
    assert bodies[1]["input"][1:] == bodies[2]["input"][1:3] == [item, expected]
    TypeAdapter(ResponseInputItemParam).validate_python(expected)
    said = "".join(one.arguments for one in events if one.type == "tool_call_delta")
    assert msgspec.json.decode(said) == given
    assert [part for part in messages[1].parts if isinstance(part, Item)] == []


@pytest.mark.parametrize(
    ("item", "tools"),
    [
        (SHELL, []),
        ({**SHELL, "environment": {"type": "container_reference", "container_id": "cntr_1"}}, ["shell"]),
    ],
    ids=["without a tool", "in a container of the service"],
)
async def test_a_call_that_no_tool_of_the_agent_runs_stays_an_item(item, tools):
    calls = []
    tools = [runner(name, "", calls) for name in tools]
    events = response_events((item, []), message_item("Found."))
    async with WireServer(answer("openai", *events), said("openai")) as server:
        provider = serve("openai", server.url)
        session = Agent(provider=provider, model="a-model", tools=tools).session_async()
        for text in ("Go.", "And now?"):
            await session.run(text, tools=[{"type": "shell"}])
        await provider.aclose()
    assert server.seen[1].body["input"][1] == item
    assert calls == []


async def test_a_computer_call_without_a_screenshot_is_passed_on_as_that_of_a_function():
    """The service takes nothing but a screenshot, and the session must go on."""
    item = {**COMPUTER, "actions": [CLICK]}
    bodies, _, _ = await called_here(
        item, [runner("computer", ValueError("no screen"), [])], tools=[{"type": "computer"}]
    )
    call, output = bodies[1]["input"][1:]
    assert (call["type"], call["name"], msgspec.json.decode(call["arguments"])) == (
        "function_call", "computer", {"actions": [CLICK]},
    )  # fmt: skip
    assert (output["type"], output["output"]) == ("function_call_output", "ValueError: no screen")


async def test_a_tool_that_the_service_declares_is_chosen_by_its_name():
    bodies, _, _ = await called_here(
        SHELL, [runner("shell", "a.txt", [])], tools=[{"type": "shell"}], tool_choice="shell"
    )
    assert bodies[0]["tool_choice"] == {"type": "shell"}


async def test_a_tool_that_anthropic_declares_is_run_by_the_tool_of_its_name():
    bash = {"type": "bash_20250124", "name": "bash"}
    use = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}
    part = {"type": "input_json_delta", "partial_json": '{"command": "ls"}'}
    calls, asked = [], answer("anthropic", *message_events((use, [part]), stop="tool_use"))
    async with WireServer(asked, said("anthropic")) as server:
        provider = serve("anthropic", server.url)
        agent = Agent(provider=provider, model="a-model", tools=[runner("bash", "a.txt", calls)])
        await agent.session_async().run("Go.", tools=[bash])
        await provider.aclose()
    assert calls == [{"command": "ls"}]
    for one in server.seen:
        assert [{**tool, "cache_control": None} for tool in one.body["tools"]] == [
            {**bash, "cache_control": None}
        ]
    assert "a.txt" in str(server.seen[1].body["messages"][-1])


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
