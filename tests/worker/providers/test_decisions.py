"""What a service is sent after decisions: each tool call with its result, in the order of the calls."""

import json
from typing import Any

import pytest
from support.services.conversation import KINDS, serve

from antiphon import Agent, tool
from antiphon.tools import CallerTool
from antiphon_demo.modelserver import Behaviour, ModelServer

OPEN_PAGE = CallerTool(
    "open_page", "Open a page.", {"type": "object", "properties": {"url": {"type": "string"}}}
)
QUESTION = 'call:pay {"amount": 5} call:look {} call:pay {"amount": 9} call:open_page {"url": "x"} length:3'


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def of_chat(body: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    said, *results = body["messages"][1:]
    calls = [(one["id"], one["function"]["name"], json.loads(one["function"]["arguments"]))
             for one in said["tool_calls"]]  # fmt: skip
    assert {one["role"] for one in results} == {"tool"}
    return calls, [(one["tool_call_id"], one["content"]) for one in results]


def of_messages(body: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    _, said, told = body["messages"]
    assert (said["role"], told["role"]) == ("assistant", "user")
    calls = [(one["id"], one["name"], one["input"]) for one in said["content"] if one["type"] == "tool_use"]
    assert {one["type"] for one in told["content"]} == {"tool_result"}
    return calls, [(one["tool_use_id"], text_of(one["content"])) for one in told["content"]]


def of_responses(body: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    items = body["input"]
    calls = [(one["call_id"], one["name"], json.loads(one["arguments"]))
             for one in items if one.get("type") == "function_call"]  # fmt: skip
    results = [one for one in items if one.get("type") == "function_call_output"]
    assert items[-len(results) :] == results
    return calls, [(one["call_id"], one["output"]) for one in results]


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


READ = {"openai-chat": of_chat, "anthropic": of_messages, "openai": of_responses}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_is_sent_each_call_with_its_result(kind):
    async with ModelServer(Behaviour(record=5)) as server:
        provider = serve(kind, server.base_url)
        agent = Agent(provider, "a-model", tools=[pay, look], caller_tools=[OPEN_PAGE])
        response = await agent.session().run_async(
            QUESTION,
            on_approval=lambda call: "Too much." if call.arguments["amount"] > 5 else {"amount": 3},
            on_tool=lambda call: {"title": "A page"},
        )
        await provider.aclose()
        first, second = (request.body for request in server.requests)
    assert response.text
    assert "open_page" in json.dumps(first["tools"])
    calls, results = READ[kind](second)
    assert [call[1:] for call in calls] == [
        ("pay", {"amount": 5}), ("look", {}), ("pay", {"amount": 9}), ("open_page", {"url": "x"}),
    ]  # fmt: skip
    assert [call[0] for call in calls] == [result[0] for result in results]
    assert [result[1] for result in results] == [
        '[the caller changed the arguments to {"amount":3}]\npaid 3',
        "seen",
        "This tool was not run: the caller rejected the call: Too much.",
        '{"title":"A page"}',
    ]
