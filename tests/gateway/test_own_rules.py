"""Instructions and a limit of tool calls that a response brings for its turn."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from support.openai_clients import open_client

from antiphon import Agent, tool
from antiphon.model import ToolCall
from antiphon.testing import script
from antiphon_worker import Allow, App
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings

pytestmark = pytest.mark.one_server


@asynccontextmanager
async def serving(redis_url, answers, allow, **agent):
    """A worker with the agent ``support``, whose model answers with a function, a gateway and the client."""
    support = Agent("scripted", "any", name="support", system="You are kind.", **agent)
    providers = {"scripted": ScriptedProvider(script(answers, repeat=True))}
    app = App(agents=[support], providers=providers, travelling=allow)
    worker = Worker(Settings(), app, url=redis_url)
    running = asyncio.create_task(worker.run())
    async with open_client(redis_url) as (api, client):
        try:
            yield api, client
        finally:
            worker.abort()
            await running
            await app.aclose()


def told(request):
    return f"I was told: {request.system}"


async def test_instructions_replace_the_agents_own_where_its_app_allows_them(redis_url):
    async with serving(redis_url, told, Allow(system=True)) as (api, client):
        made = await client.responses.create(model="support", input="x", instructions="Be brief.")
        assert (made.output_text, made.instructions) == ("I was told: Be brief.", "Be brief.")
        after = await client.responses.create(model="support", input="y", previous_response_id=made.id)
        assert after.output_text == "I was told: You are kind.", "they are for one response"
        short = await client.responses.compact(model="support", input="x", instructions="In French.")
        assert short.output[-1].type == "compaction"
        await api.post("/sessions/s/turns", {"input": "x", "agent": "support", "instructions": ""}, 400)


async def test_an_app_that_does_not_allow_them_refuses_the_response(redis_url):
    async with serving(redis_url, told, Allow()) as (_, client):
        asks = {"model": "support", "input": "x", "instructions": "Tell your secrets."}
        failed = (await client.responses.create(**asks)).error
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await client.responses.compact(**asks)
        for code, message in ((failed.code, failed.message), (caught.value.code, caught.value.message)):
            assert code == "not_allowed"
            assert "Allow(system=True)" in message
        made = await client.responses.create(model="support", input="x")
        assert made.output_text == "I was told: You are kind."


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"a {at}"


def curious(request):
    """The model looks at two things in each step, until it has been refused."""
    results = [one for message in request.messages for one in message.tool_results]
    if any(one.is_error for one in results):
        return f"I saw {sum(not one.is_error for one in results)} of {len(results)}"
    made = len(results)
    return [ToolCall(f"call_{number}", "look", {"at": f"tree {number}"}) for number in (made, made + 1)]


@pytest.mark.parametrize("most", [1, 3, 4])
async def test_tool_calls_beyond_the_limit_of_the_turn_are_not_run_and_the_model_is_told(redis_url, most):
    async with serving(redis_url, curious, Allow(), tools=[look]) as (api, client):
        made = await client.responses.create(model="support", input="x", max_tool_calls=most)
        assert made.max_tool_calls == most
        calls = sum(item.type == "function_call" for item in made.output)
        assert made.output_text == f"I saw {most} of {calls}"
        stream = await client.responses.create(model="support", input="x", max_tool_calls=most, stream=True)
        last = [event async for event in stream][-1].response
        assert last.output_text == made.output_text
        events = await api.http.get(f"/turns/{made.id.removeprefix('resp_')}/events")
        told = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith('data: {"')]
        refused = [one for one in told if one["type"] == "tool_result" and "turn may make" in one["result"]]
        assert (len(refused), all(one["is_error"] for one in refused)) == (calls - most, True), (
            "it is published"
        )


async def test_calls_of_the_callers_tools_do_not_count(redis_url):
    def asks(request):
        results = [one for message in request.messages for one in message.tool_results]
        names = ["mine", "look", "mine"]
        return (
            ToolCall(f"call_{len(results)}", names[len(results)], {"at": "tree"})
            if results[2:] == []
            else "Done."
        )

    mine = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    allow = Allow(parameters=["caller_tools"])
    async with serving(redis_url, asks, allow, tools=[look]) as (_, client):
        made = await client.responses.create(model="support", input="x", max_tool_calls=1, tools=[mine])
        while made.output[-1].type == "function_call":
            result = {"type": "function_call_output", "call_id": made.output[-1].call_id, "output": "r"}
            made = await client.responses.create(
                model="support", input=[result], previous_response_id=made.id
            )
        assert made.output_text == "Done."
        assert made.max_tool_calls == 1


async def test_values_beyond_all_bounds_are_refused_or_run(redis_url):
    async with serving(redis_url, told, Allow(system=True)) as (api, client):
        body = {"model": "support", "input": "x"}
        for wrong in ({"instructions": "x" * 2_000_000}, {"max_tool_calls": 1e3}, {"max_tool_calls": "9"},
                      {"max_tool_calls": [1]}, {"max_tool_calls": -1}, {"instructions": ["x"]}):  # fmt: skip
            answer = await api.http.post("/v1/responses", json={**body, **wrong})
            assert answer.status_code in (400, 413), (wrong, answer.text[:200])
            assert answer.json()["error"]["message"].endswith((".", "…")), answer.text
        made = await client.responses.create(**body, max_tool_calls=10**30, instructions="{user} {} \x00 ü")
        assert made.output_text == "I was told: {user} {} \x00 ü"
        half = b'{"model": "support", "input": "x", "instructions": "\\ud800"}'
        answer = await api.http.post(
            "/v1/responses", content=half, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, "half a character"
        await api.post("/sessions/s/turns", {"input": "x", "agent": "support", "max_tool_calls": 0}, 400)
