"""Answers recorded from the real services cost half in a batch, and are otherwise the same (`service="batch"`)."""

import json
from typing import Any

import pytest
from support.batched import SOON, service
from support.here import running_worker
from support.services.batch_server import BatchServer

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price

pytestmark = pytest.mark.one_server

FORMER = Price(input=3.0, output=15.0)
"""For models that are no longer offered: the table has no price of theirs."""
ENDPOINTS = {"openai": "responses", "openai-chat": "chat.completions", "anthropic": "messages"}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)


def whole_answers(shared, endpoint):
    """The recorded answers without tools, each with its text, in the form that a batch has."""
    for path in sorted((shared / "recorded" / "expected").glob("*.json")):
        expected = json.loads(path.read_text())
        if not expected["ok"] or expected["endpoint"] != endpoint:
            continue
        said = (expected["result"].get("choices") or [expected["result"]])[0]
        recorded = json.loads((shared / "recorded" / path.name).read_text())
        tools = said["tool_calls"] or said.get("function_call") or said.get("server_items")
        if not tools and (whole := whole_of(recorded)):
            yield whole, said["text"] or ""


def whole_of(recorded):
    """A recorded answer in one piece; None for a stream of Chat Completions, which has none."""
    body = recorded["response_body"]
    if not recorded["streaming"]:
        return json.loads(body)
    data = [line.removeprefix("data:") for line in body.splitlines() if line.startswith("data:")]
    if recorded["endpoint"] == "responses":
        events = map(json.loads, data)
        return next((one["response"] for one in events if one["type"] == "response.completed"), None)
    return message_of(map(json.loads, data)) if recorded["endpoint"] == "messages" else None


def message_of(events):
    """The message of Anthropic that these events have told."""
    message: dict[str, Any] = {}
    for one in events:
        match one["type"]:
            case "message_start":
                message = one["message"]
            case "content_block_start":
                message["content"].append(one["content_block"])
            case "content_block_delta":
                block, delta = message["content"][one["index"]], one["delta"]
                for name in {"text", "thinking", "signature"} & delta.keys():
                    block[name] = block.get(name, "") + delta[name]
            case "message_delta":
                message |= one["delta"]
                message["usage"] |= one["usage"]
            case _:
                pass
    return message


@pytest.mark.parametrize("kind", ENDPOINTS)
async def test_a_recorded_answer_costs_exactly_half_in_a_batch(redis_url, shared, kind):
    found = list(whole_answers(shared, ENDPOINTS[kind]))
    current: list[Any] = []
    async with BatchServer(lambda _: current[-1]) as server:
        former = {one["model"]: FORMER for one, _ in found if one["model"].startswith("claude-3")}
        app = App([Agent(kind, "m", name="a")], providers={kind: service(kind, server.url)}, prices=former)
        async with running_worker(redis_url, app, **SOON), AsyncClient(redis_url) as client:
            for number, (answer, text) in enumerate(found):
                current.append(answer)
                batched = await client.submit(f"b{number}", "Hello", agent="a", service="batch")
                half = await batched.result(20)
                whole = await (await client.submit(f"u{number}", "Hello", agent="a")).result(20)
                assert half.text == whole.text == text
                assert half.usage.tokens == whole.usage.tokens > 0
                assert whole.usage.cost is not None, f"{answer['model']} has no price"
                assert half.usage.cost == whole.usage.cost / 2 > 0
    assert len(server.orders) == len(server.usual) == len(found) >= 3
