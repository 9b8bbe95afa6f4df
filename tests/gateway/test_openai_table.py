"""The table of OpenAI's endpoints and fields is current, and each of its claims is true of a running gateway."""

import importlib.util
import json

import pytest
from support.gateway import open_gateway
from support.openai_clients import calling
from support.source_tree import ROOT

from antiphon_gateway.http.operations import Routes
from antiphon_gateway.settings import Limits

pytestmark = pytest.mark.one_server

spec = importlib.util.spec_from_file_location("openai_table", ROOT / "tools" / "openai_table.py")
assert spec is not None
table = importlib.util.module_from_spec(spec)
assert spec.loader is not None
spec.loader.exec_module(table)

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
HELLO = [{"role": "user", "content": "x"}]
VALUES = {
    "background": True, "conversation": "mine", "frequency_penalty": 0.5, "include": ["reasoning.encrypted_content"],
    "input": HELLO, "instructions": "Be brief.", "items": HELLO, "logit_bias": {"1": 2}, "logprobs": True,
    "max_completion_tokens": 20, "max_output_tokens": 20, "max_tokens": 20, "max_tool_calls": 2, "messages": HELLO,
    "metadata": {"a": "b"}, "model": "scripted/any", "parallel_tool_calls": False, "presence_penalty": 0.5,
    "prompt_cache_key": "k", "reasoning": {"effort": "low"}, "reasoning_effort": "low",
    "response_format": {"type": "text"}, "safety_identifier": "s", "seed": 7, "service_tier": "flex", "stop": ["x"],
    "store": False, "stream": True, "stream_options": {"include_obfuscation": False}, "temperature": 0.5,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [TOOL], "top_logprobs": 2, "top_p": 0.5,
    "truncation": "auto", "user": "u", "verbosity": "low",
}  # fmt: skip
VALUES |= {"include_obfuscation": True, "after": None, "limit": 5, "order": "asc", "starting_after": 0}
WRONG = {"modalities": ["audio"], "n": 2, "store": True, "web_search_options": {}}
ASKS = {"model": "scripted/any", "input": "x"}
NEEDED = {
    "POST /responses": ASKS, "POST /responses/compact": ASKS, "POST /responses/input_tokens": ASKS,
    "POST /chat/completions": {"model": "scripted/any", "messages": HELLO},
    "POST /conversations/{conversation_id}": {"metadata": {}},
    "POST /conversations/{conversation_id}/items": {"items": HELLO},
}  # fmt: skip


def test_the_table_is_current():
    page = table.PAGE.read_text()
    assert table.page_with(page, table.table()) == page, "Run: python tools/openai_table.py"


async def test_each_endpoint_is_served_or_not_as_the_table_has_it(redis_url):
    routes = Routes(table.operations())
    async with open_gateway(redis_url, limits=Limits(rate=1e6)) as (api, _):
        for one in table.endpoints():
            answer = await api.http.request(one.method, one.route, json={})
            code = answer.json()["error"]["code"] if answer.status_code >= 400 else ""
            missing = code in (
                "route_not_found",
                "method_not_allowed",
                "invalid_query",
                "unsupported_item_id",
            )
            assert missing is not table.is_served(routes, one), (one, answer.text)


@pytest.mark.parametrize("request_line", table.REQUESTS)
async def test_each_field_is_served_or_refused_with_its_sentence(redis_url, request_line):
    method, path = request_line.split()
    async with calling(redis_url, lambda _: "Hi") as (api, client):
        before = await client.responses.create(model="scripted/any", input="x", conversation="mine")
        (item, _) = (await client.conversations.items.list("mine")).data
        (asked,) = (await client.responses.input_items.list(before.id)).data
        first = asked.id if path.endswith("input_items") else item.id
        known = {"response_id": before.id, "conversation_id": "mine", "item_id": item.id}
        for name, why in table.fields(request_line).items():
            value = {"previous_response_id": before.id, "after": first}.get(name) or VALUES.get(
                name, {"x": 1}
            )
            value = [CHAT_TOOL] if name == "tools" and path == "/chat/completions" else value
            value = WRONG.get(name, value) if why else value
            body, query = {**NEEDED.get(request_line, {}), name: value}, {}
            if method == "GET" or (name == "include" and "conversations" in path):
                value = value if isinstance(value, str | list) else json.dumps(value)
                query = {f"{name}[]" if isinstance(value, list) else name: value}
                body = None if method == "GET" else NEEDED[request_line]
            if name == "stream_options":
                body["stream"] = True
            answer = await api.http.request(method, f"/v1{path.format(**known)}", json=body, params=query)
            if why:
                error = answer.json()["error"]
                assert (answer.status_code, error["message"], error["param"]) == (400, why, name)
            else:
                assert answer.status_code == 200, (name, answer.text)
        await api.result(before.id.removeprefix("resp_"))


@pytest.mark.parametrize("kind", table.kinds(), ids=lambda kind: kind.of)
async def test_each_kind_is_served_or_refused_with_its_sentence(redis_url, kind):
    method, path = kind.request.split()
    async with open_gateway(redis_url, limits=Limits(rate=1e6)) as (api, _):
        refused = {name: why for name in kind.names if (why := table.refusal(kind, name))}
        assert kind.names != list(refused), "some are served"
        for name, why in refused.items():
            answer = await api.http.request(method, f"/v1{path}", json=kind.body(name))
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].replace(repr(name), "…").endswith(why)
