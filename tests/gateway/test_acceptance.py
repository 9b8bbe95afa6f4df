"""The 17 cases of the acceptance suite of Open Responses, by their names there, checked against the specification.

The suite itself needs Bun and a checkout of its repository. ``response-output-phase-schema`` sends no request there.
"""

import json
from contextlib import asynccontextmanager

import pytest
from support.openai_clients import answered, calling, contract_at, socket

from antiphon.model import ToolCall

pytestmark = pytest.mark.one_server

MODEL = "scripted/any"
HEART = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
WEATHER = {
    "type": "function", "name": "get_weather", "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}  # fmt: skip
MISSING = [{"type": "function_call_output", "call_id": "call_missing", "output": "No such call."}]


def said(role, content, **more):
    return {"type": "message", "role": role, "content": content, **more}


def user(text):
    return [said("user", text)]


SINGLE = {
    "basic-response": {"input": user("Say hello in exactly 3 words.")},
    "system-prompt": {"input": [said("system", "You are a pirate."), *user("Say hello.")]},
    "assistant-phase": {
        "input": [
            said("assistant", "I should answer with the number.", phase="commentary"),
            said("assistant", "The number is four.", phase="final_answer"),
            *user("Repeat only the number."),
        ]
    },
    "tool-calling": {"input": user("What's the weather like in San Francisco?"), "tools": [WEATHER]},
    "image-input": {
        "input": [
            said(
                "user", [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": HEART}]
            )
        ]
    },
    "multi-turn": {
        "input": [*user("I am Alice."), said("assistant", "Hello Alice!"), *user("What is my name?")]
    },
}


def answers(request):
    if request.tools:
        return ToolCall("call_1", "get_weather", {"location": "San Francisco"})
    return f"I was shown {len(request.messages)} messages"


@asynccontextmanager
async def serving(redis_url):
    async with calling(redis_url, answers) as (api, _):
        yield api
        for one in (await api.get("/sessions"))["sessions"]:
            await api.call("DELETE", f"/sessions/{one['session_id']}", 204)


@pytest.fixture
def contract(request):
    return contract_at(request.config.rootpath)


async def over_socket(peer, contract, **fields):
    """Ask for a response, check its events, and return the last response or the code of the error."""
    events = await answered(peer, model=MODEL, **fields)
    for event in events:
        contract(event, "WebSocketErrorEvent" if event["type"] == "error" else "")
    last = events[-1]
    return last["error"]["code"] if last["type"] == "error" else last["response"]


@pytest.mark.parametrize("case", SINGLE)
async def test_single_requests(redis_url, contract, case):
    async with serving(redis_url) as api:
        made = await api.post("/v1/responses", {"model": MODEL, **SINGLE[case]}, 200)
        contract(made)
        assert made["status"] == "completed"
        assert made["output"][-1]["type"] == ("function_call" if case == "tool-calling" else "message")


async def test_response_output_phase_schema(redis_url, contract):
    async with serving(redis_url) as api:
        made = await api.post("/v1/responses", {"model": MODEL, "input": "x"}, 200)
        contract(
            {
                **made,
                "output": [{**made["output"][0], "phase": phase} for phase in ("commentary", "final_answer")],
            }
        )


async def test_streaming_response(redis_url, contract):
    async with serving(redis_url) as api:
        answer = await api.http.post(
            "/v1/responses", json={"model": MODEL, "input": user("Count."), "stream": True}
        )
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        for event in events:
            contract(event)
        assert events[-1]["response"]["status"] == "completed"


async def test_compact_response_and_compact_missing_model(redis_url, contract):
    async with serving(redis_url) as api:
        items = [*user("We launch on Tuesday."), said("assistant", "Understood.")]
        body = {"model": MODEL, "prompt_cache_key": "key", "input": items}
        made = await api.post("/v1/responses/compact", body, 200)
        contract(made)
        assert (made["object"], made["output"][-1]["type"]) == ("response.compaction", "compaction")
        await api.post("/v1/responses/compact", {"input": items}, 400)


async def test_websocket_response_and_websocket_sequential_responses(redis_url, contract):
    async with serving(redis_url) as api, socket(api) as peer:
        for fields in ({}, {"store": False}, {"store": False}):
            assert (await over_socket(peer, contract, input=user("Count."), **fields))[
                "status"
            ] == "completed"


async def test_websocket_continuation_and_websocket_failed_continuation_evicts_cache(redis_url, contract):
    async with serving(redis_url) as api, socket(api) as peer:
        first = await over_socket(peer, contract, input="Remember: cobalt.", store=False)
        after = {"store": False, "previous_response_id": first["id"]}
        second = await over_socket(peer, contract, input="What is the word?", **after)
        assert "shown 3 messages" in second["output"][0]["content"][0]["text"]
        assert await over_socket(peer, contract, input=MISSING, **after) == "unsupported_input"
        assert await over_socket(peer, contract, input="x", **after) == "previous_response_not_found"


async def test_websocket_reconnect_store_false_recovery_and_websocket_previous_response_not_found(
    redis_url, contract
):
    async with serving(redis_url) as api:
        async with socket(api) as peer:
            first = await over_socket(peer, contract, input="Remember: copper.", store=False)
        async with socket(api) as peer:
            for name in (first["id"], "resp_openresponses_missing_1"):
                code = await over_socket(peer, contract, input="x", store=False, previous_response_id=name)
                assert code == "previous_response_not_found"
            assert (await over_socket(peer, contract, input=user("Begin."), store=False))[
                "status"
            ] == "completed"


async def test_websocket_compact_new_chain(redis_url, contract):
    async with serving(redis_url) as api:
        items = [
            *user("Remember: slate."),
            said("assistant", [{"type": "output_text", "text": "OK."}]),
            *user("Compress."),
        ]
        output = (await api.post("/v1/responses/compact", {"model": MODEL, "input": items}, 200))["output"]
        async with socket(api) as peer:
            made = await over_socket(peer, contract, input=[*output, *user("Go on.")], tools=[], store=False)
        assert made["status"] == "completed"
