"""Long turns as tasks of MCP, and questions to the user of a client: through the official client for Python."""

import json
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import MCPError
from mcp.client import Client, advertise
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from support.eventually import wait_until_async
from support.gateway import keys, open_gateway, stand
from support.here import running_worker
from support.mcp_servers import without_watcher
from support.mcp_tasks import EXTENSION, NewTask, Tasks, about_task
from support.stage import FIRST_WORDS

from antiphon import Agent, tool
from antiphon.testing import script, tool_call
from antiphon_gateway import Access
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def clerk(*said, **options):
    return App(agents=[Agent(script(*said), "any", name="clerk", **options)])


@asynccontextmanager
async def opened(api, *agents, key=None, **options):
    """The official client of the gateway of this program, once workers offer these agents."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=30) as http,
        Client(streamable_http_client(f"{api.url}/mcp", http_client=http), cache=None, **options) as client,
    ):

        async def there():
            return {f"ask_{name}" for name in agents} <= {
                one.name for one in (await client.list_tools()).tools
            }

        await wait_until_async(there, 20, "workers offer the agents")
        yield client
    await without_watcher()


async def new_task(client, **arguments):
    found = await client.session.call_tool("ask_stage", arguments, allow_claimed=True)
    assert isinstance(found, NewTask)
    return found.task_id


async def test_a_question_to_an_agent_is_a_task_that_any_gateway_answers(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), open_gateway(redis_url) as (second, _):
        async with opened(api, "stage", extensions=[Tasks()]) as client:
            assert EXTENSION in (client.session.discover_result.capabilities.extensions or {})
            task = await new_task(client, message="go gate:later")
            await ensemble.waits("later")
            state = await about_task(client.session, "tasks/get", task)
            assert (state["status"], state["taskId"], state["ttlMs"]) == ("working", task, None)
            assert state["resultType"] == "complete"
            assert state["createdAt"].endswith("Z")
            ensemble.stage.open("later")
            await (await ensemble.client.turn(task)).result()
        async with opened(second, "stage", extensions=[Tasks()]) as client:
            state = await about_task(client.session, "tasks/get", task)
        assert state["status"] == "completed"
        assert state["result"]["content"][0]["text"].startswith(FIRST_WORDS)
        assert state["result"]["structuredContent"]["turn_id"] == task


async def test_a_task_fails_and_is_cancelled_as_its_turn(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, _),
        opened(api, "stage", extensions=[Tasks()]) as client,
    ):
        result = await client.call_tool("ask_stage", {"message": "go fail:rejected"})
        assert (result.is_error, result.structured_content["code"]) == (True, "provider_rejected")
        task = await new_task(client, message="go gate:never")
        await ensemble.waits("never")
        assert (await about_task(client.session, "tasks/cancel", task))["resultType"] == "complete"

        async def cancelled():
            return (await about_task(client.session, "tasks/get", task))["status"] == "cancelled"

        await wait_until_async(cancelled, 20)


async def test_a_task_asks_for_an_approval(redis_url):
    async def never(*_):
        raise AssertionError

    app = clerk(tool_call("pay", amount=3), "Paid.", tools=[pay])
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _):
        tasks = Tasks()
        async with opened(api, "clerk", extensions=[tasks], elicitation_callback=never) as client:
            result = await client.call_tool("ask_clerk", {"message": "Pay 3.", "session_id": "s"})
        assert result.content[0].text == "Paid."
        asked = [one for one in tasks.seen if one["status"] == "input_required"]
        [question] = asked[0]["inputRequests"].values()
        assert question["method"] == "elicitation/create"
        assert question["params"]["message"] == 'May the tool pay run with {"amount":3}?'
        assert "approve" in question["params"]["requestedSchema"]["properties"]
        messages = (await api.get("/sessions/s/messages"))["messages"]
        assert messages[2]["decisions"][0]["by"] == "this machine"


async def test_a_client_without_forms_is_told_what_the_task_waits_for(redis_url):
    app = clerk(tool_call("pay", amount=3), "Paid.", tools=[pay])
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _):
        async with opened(api, "clerk", extensions=[Tasks()]) as client:
            found = await client.session.call_tool("ask_clerk", {"message": "Pay 3."}, allow_claimed=True)

            async def told():
                state = await about_task(client.session, "tasks/get", found.task_id)
                return state if "statusMessage" in state else None

            state = await wait_until_async(told, 20)
        assert (state["status"], "answer_call" in state["statusMessage"]) == ("working", True)
        await api.post(f"/turns/{found.task_id}/cancel", {})


@pytest.mark.parametrize(
    ("answer", "said", "result"),
    [
        (ElicitResult(action="accept", content={"approve": True}), "Done.", "paid 3"),
        (
            ElicitResult(action="accept", content={"approve": False, "reason": "Too much."}),
            "Done.",
            "Too much.",
        ),
        (ElicitResult(action="accept", content={"approve": "yes"}), "Done.", "rejected"),
        (ElicitResult(action="decline"), "Done.", "declined"),
        (ElicitResult(action="cancel"), "The turn waits for an answer", None),
    ],
    ids=["approved", "rejected", "not a boolean", "declined", "dismissed"],
)
async def test_the_user_of_a_client_is_asked_for_an_approval(redis_url, answer, said, result):
    asked = []

    async def callback(context, params):
        asked.append(params.message)
        return answer

    app = clerk(tool_call("pay", amount=3), "Done.", tools=[pay])
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _):
        async with opened(api, "clerk", elicitation_callback=callback) as client:
            found = await client.call_tool("ask_clerk", {"message": "Pay 3.", "session_id": "s"})
        assert asked == ['May the tool pay run with {"amount":3}?']
        assert found.content[0].text.startswith(said)
        messages = (await api.get("/sessions/s/messages"))["messages"]
        assert (result or "") in json.dumps(messages)
        assert ("paid 3" in json.dumps(messages)) is (result == "paid 3")
        await api.post("/sessions/s/cancel", {})


async def test_the_user_of_a_client_gives_the_result_of_a_client_side_tool(redis_url):
    async def callback(context, params):
        return ElicitResult(action="accept", content={"result": "a tree"})

    app = clerk(tool_call("look"), "A tree.", caller_tools=[{"name": "look"}])
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _):
        async with opened(api, "clerk", elicitation_callback=callback) as client:
            await client.call_tool("ask_clerk", {"message": "Go.", "session_id": "s"})
        assert (await api.get("/sessions/s/messages"))["messages"][2]["parts"][0]["content"] == "a tree"


async def test_tasks_and_states_of_others_are_not_found(redis_url, tmp_path):
    found, secrets = keys(
        acme={"tenant": "acme"}, other={"tenant": "other"}, reader={"tenant": "acme", "rights": ["read"]}
    )

    async def yes(context, params):
        return ElicitResult(action="accept", content={"approve": True})

    async with stand(redis_url, tmp_path, access=Access(found)) as (ensemble, api, _):
        async with opened(api, "stage", key=secrets["acme"], extensions=[Tasks()]) as client:
            task = await new_task(client, message="go gate:never")
            await ensemble.waits("never")
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError) as refused:
                    await about_task(client.session, method, "unknown", inputResponses={})
                assert refused.value.code == -32602
        async with opened(
            api, key=secrets["other"], extensions=[Tasks()], elicitation_callback=yes
        ) as client:
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError) as refused:
                    await about_task(client.session, method, task, inputResponses={})
                assert refused.value.code == -32602
            result = await client.call_tool(
                "get_turn", {"turn_id": task}, request_state=task, input_responses={}
            )
            assert result.content[0].text.startswith("turn_not_found")
        async with opened(api, key=secrets["reader"], extensions=[Tasks()]) as client:
            assert (await about_task(client.session, "tasks/get", task))["status"] == "working"
            for method in ("tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError, match="does not have the right to write"):
                    await about_task(client.session, method, task, inputResponses={})
        assert await (await ensemble.client.turn(task)).status() == "running"
        await (await ensemble.client.turn(task)).cancel()


async def test_clients_that_declare_no_tasks_get_none(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _):
        async with opened(api, "stage", extensions=[advertise("com.example/other")]) as client:
            assert (
                (await client.call_tool("ask_stage", {"message": "Hello"}))
                .content[0]
                .text.startswith(FIRST_WORDS)
            )
            with pytest.raises(MCPError) as refused:
                await about_task(client.session, "tasks/get", "any")
            assert (refused.value.code, EXTENSION in json.dumps(refused.value.data)) == (-32021, True)
        async with opened(api, "stage", extensions=[Tasks()], mode="legacy") as client:
            assert (
                (await client.call_tool("ask_stage", {"message": "Hello"}))
                .content[0]
                .text.startswith(FIRST_WORDS)
            )
            with pytest.raises(MCPError, match="Method not found"):
                await about_task(client.session, "tasks/get", "any")
