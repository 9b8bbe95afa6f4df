"""Clients in Python that speak OpenAI's interfaces, each with a tool of its own, on the gateway and a real worker."""

from contextlib import asynccontextmanager

import openai
import pytest
from support.openai_clients import calling

from antiphon.model import ToolCall

pytestmark = pytest.mark.one_server

MODEL = "scripted/any"


def answers(request):
    """The model looks twice, and then answers with what it saw."""
    results = [one.text for message in request.messages for one in message.tool_results]
    if len(results) < 2:
        return ToolCall(f"call_{len(results) + 1}", "look", {"at": f"tree {len(results) + 1}"})
    return f"I saw {' and '.join(results)}"


SEEN = "I saw a tree 1 and a tree 2"


@asynccontextmanager
async def gateway(redis_url, turns):
    """The URL of a gateway; afterwards there must have been so many turns, none of which waits."""
    async with calling(redis_url, answers) as (api, _):
        yield f"{api.url}/v1"
        sessions = (await api.get("/sessions"))["sessions"]
        found = [(await api.get(f"/sessions/{one['session_id']}/turns"))["turns"] for one in sessions]
        statuses = [turn["status"] for some in found for turn in some]
        assert (len(statuses), "suspended" in statuses) == (turns, False)


@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_the_official_agents_sdk_of_openai_runs_its_tools(redis_url, kind):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    async with (
        gateway(redis_url, turns=1 if kind == "responses" else 3) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        made = agents.OpenAIResponsesModel if kind == "responses" else agents.OpenAIChatCompletionsModel
        look = agents.function_tool(lambda at: f"a {at}", name_override="look", strict_mode=False)
        agent = agents.Agent("support", model=made(model=MODEL, openai_client=client), tools=[look])
        assert (await agents.Runner.run(agent, "Look")).final_output == SEEN


@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_the_official_pydantic_ai_runs_its_tools(redis_url, kind):
    ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with (
        gateway(redis_url, turns=1 if kind == "responses" else 3) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        made = OpenAIResponsesModel if kind == "responses" else OpenAIChatModel
        agent = ai.Agent(made(MODEL, provider=OpenAIProvider(openai_client=client)))

        @agent.tool_plain
        def look(at: str) -> str:
            return f"a {at}"

        assert (await agent.run("Look")).output == SEEN


@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_the_official_langchain_client_binds_tools_and_streams(redis_url, kind):
    chat, messages = pytest.importorskip("langchain_openai"), pytest.importorskip("langchain_core.messages")
    tool = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
    async with gateway(redis_url, turns=1 if kind == "responses" else 3) as url:
        client = chat.ChatOpenAI(
            model=MODEL, base_url=url, api_key="none", max_retries=0, use_responses_api=kind == "responses"
        )
        model, said = client.bind_tools([tool]), [messages.HumanMessage("Look")]
        for _ in range(2):
            said.append(await model.ainvoke(said))
            call = said[-1].tool_calls[0]
            said.append(messages.ToolMessage(f"a {call['args']['at']}", tool_call_id=call["id"]))
        assert "".join([piece.text async for piece in model.astream(said)]) == SEEN
        await client.root_async_client.close()
        client.root_client.close()
