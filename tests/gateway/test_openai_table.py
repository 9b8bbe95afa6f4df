"""The table of OpenAI's endpoints and fields is current, and each of its claims is true of a running gateway."""

import importlib.util

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
WRONG = {"modalities": ["audio"], "n": 2, "store": True}
NEEDED = {
    "/responses": {"model": "scripted/any", "input": "x"},
    "/responses/compact": {"model": "scripted/any", "input": "x"},
    "/responses/input_tokens": {"model": "scripted/any", "input": "x"},
    "/chat/completions": {"model": "scripted/any", "messages": HELLO},
    "/conversations": {},
}


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


@pytest.mark.parametrize("path", table.REQUESTS)
async def test_each_field_is_served_or_refused_with_its_sentence(redis_url, path):
    async with calling(redis_url, lambda _: "Hi") as (api, client):
        before = await client.responses.create(model="scripted/any", input="x")
        for name, why in table.fields(path).items():
            value = before.id if name == "previous_response_id" else VALUES.get(name, {"x": 1})
            value = [CHAT_TOOL] if name == "tools" and path == "/chat/completions" else value
            value = WRONG.get(name, value) if why else value
            body = {**NEEDED[path], name: value}
            if name == "stream_options":
                body["stream"] = True
            answer = await api.http.post(f"/v1{path}", json=body)
            if why:
                error = answer.json()["error"]
                assert (answer.status_code, error["message"], error["param"]) == (400, why, name)
            else:
                assert answer.status_code == 200, (name, answer.text)
        if path == "/responses":
            await api.result(before.id.removeprefix("resp_"))
