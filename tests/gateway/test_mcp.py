"""Agents as tools of an MCP server, used through the official client for Python."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import MCPError
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from support.eventually import wait_until_async
from support.gateway import keys, open_gateway, programs, stand
from support.gateway_process import Stand
from support.here import running_worker
from support.mcp_servers import without_watcher
from support.stage import FIRST_WORDS

from antiphon import Agent, tool
from antiphon.mcp import usable_name
from antiphon.testing import script, tool_call
from antiphon_gateway import Access, Limits
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["2026-07-28", "handshake"])
TURNS = ["get_turn", "answer_call", "cancel_turn"]


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@asynccontextmanager
async def opened(api, mode="auto", key=None, **options):
    """The official client, connected to the gateway of this program."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=30) as http,
        Client(
            streamable_http_client(f"{api.url}/mcp", http_client=http), mode=mode, cache=None, **options
        ) as client,
    ):
        yield client
    await without_watcher()


async def asked(client, name, **arguments):
    """The result of a tool: its text, and what it has of the turn."""
    result = await client.call_tool(name, arguments)
    assert result.content, result
    return result.content[0].text, result.structured_content, result.is_error


async def offered(client, *names):
    """Wait until workers offer these agents."""

    async def found():
        tools = [one.name for one in (await client.list_tools()).tools]
        return tools if {*names} <= {*tools} else None

    return await wait_until_async(found, 20, f"workers offer {names}")


def app_of(*answers, name="clerk", **options):
    return App(agents=[Agent(script(*answers), "any", name=name, **options)])


@MODES
async def test_an_agent_is_a_tool_that_answers_and_continues_its_conversation(redis_url, tmp_path, mode):
    async with stand(redis_url, tmp_path) as (_, api, _), opened(api, mode) as client:
        assert await offered(client, "ask_stage") == ["ask_stage", "ask_understudy", *TURNS]
        text, turn, failed = await asked(client, "ask_stage", message="Hello")
        assert text.startswith(FIRST_WORDS + "I was shown 1 messages")
        assert (turn["status"], failed) == ("finished", False)
        text, next_turn, _ = await asked(client, "ask_stage", message="More", session_id=turn["session_id"])
        assert "I was shown 3 messages" in text
        assert next_turn["session_id"] == turn["session_id"]


@MODES
async def test_progress_is_reported_while_an_agent_works(redis_url, mode):
    @tool
    def look() -> str:
        """Look."""
        return "a tree"

    seen = []

    async def progress(number, total, message):
        seen.append((number, message))

    app = app_of(tool_call("look"), "A tree.", tools=[look])
    async with (
        running_worker(redis_url, app),
        open_gateway(redis_url) as (api, _),
        opened(api, mode) as client,
    ):
        await offered(client, "ask_clerk")
        result = await client.call_tool("ask_clerk", {"message": "Go."}, progress_callback=progress)
    assert result.content[0].text == "A tree."
    assert [message for _, message in seen] == ["started", "calls look"]
    assert [number for number, _ in seen] == sorted({number for number, _ in seen})


@MODES
async def test_a_long_turn_continues_after_the_call_and_is_waited_for(redis_url, tmp_path, mode):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), opened(api, mode) as client:
        await offered(client, "ask_stage")
        text, turn, failed = await asked(client, "ask_stage", message="go gate:later", wait=0)
        assert "get_turn" in text
        assert (turn["status"] in ("queued", "running"), failed) == (True, False)
        await ensemble.waits("later")
        waiting = asyncio.create_task(asked(client, "get_turn", turn_id=turn["turn_id"]))
        ensemble.stage.open("later")
        text, ended, _ = await waiting
        assert text.startswith(FIRST_WORDS)
        assert (ended["status"], ended["turn_id"]) == ("finished", turn["turn_id"])


@MODES
async def test_a_call_that_waits_for_an_approval_is_answered(redis_url, mode):
    app = app_of(tool_call("pay", amount=3), "Done.", tool_call("pay", amount=4), "Not done.", tools=[pay])
    async with (
        running_worker(redis_url, app),
        open_gateway(redis_url) as (api, _),
        opened(api, mode) as client,
    ):
        await offered(client, "ask_clerk")
        text, turn, _ = await asked(client, "ask_clerk", message="Pay 3.", session_id="s")
        [call] = turn["calls"]
        assert (turn["status"], call["name"], call["arguments"]) == ("suspended", "pay", {"amount": 3})
        assert f'{call["call_id"]} (approval): pay {{"amount":3}}' in text
        where = {"turn_id": turn["turn_id"], "call_id": call["call_id"]}
        text, done, _ = await asked(client, "answer_call", **where, decision="approve")
        assert (text, done["status"]) == ("Done.", "finished")
        messages = (await api.get("/sessions/s/messages"))["messages"]
        assert messages[2]["parts"][0]["content"] == "paid 3"
        assert messages[2]["decisions"][0]["by"] == "this machine"
        again, _, failed = await asked(client, "answer_call", **where, decision="reject")
        assert again.startswith(("not_suspended", "already_decided"))
        assert failed
        _, turn, _ = await asked(client, "ask_clerk", message="Pay 4.", session_id="s")
        where = {"turn_id": turn["turn_id"], "call_id": turn["calls"][0]["call_id"]}
        text, _, _ = await asked(client, "answer_call", **where, decision="reject", reason="Too much.")
        assert text == "Not done."
        assert "Too much." in json.dumps((await api.get("/sessions/s/messages"))["messages"][6])


async def test_the_result_of_a_client_side_tool_is_given(redis_url):
    app = app_of(tool_call("look"), "A tree.", caller_tools=[{"name": "look"}])
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _), opened(api) as client:
        await offered(client, "ask_clerk")
        _, turn, _ = await asked(client, "ask_clerk", message="Go.")
        [call] = turn["calls"]
        answer = {"turn_id": turn["turn_id"], "call_id": call["call_id"], "decision": "result"}
        text, _, _ = await asked(client, "answer_call", **answer, result={"seen": "a tree"})
        assert text == "A tree."


async def test_a_turn_is_cancelled(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), opened(api) as client:
        await offered(client, "ask_stage")
        _, turn, _ = await asked(client, "ask_stage", message="go gate:never", wait=0)
        await ensemble.waits("never")
        await asked(client, "cancel_turn", turn_id=turn["turn_id"], reason="enough")
        text, ended, failed = await asked(client, "get_turn", turn_id=turn["turn_id"])
        assert (ended["status"], ended["error"], failed) == ("cancelled", "enough", True)
        assert "enough" in text


async def test_a_failed_turn_is_an_error_result(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, _), opened(api) as client:
        await offered(client, "ask_stage")
        text, turn, failed = await asked(client, "ask_stage", message="go fail:rejected")
        assert (turn["status"], turn["code"], failed) == ("failed", "provider_rejected", True)
        assert "The stage refuses: rejected." in text


@MODES
async def test_a_repeated_call_with_the_same_key_gets_the_same_turn(redis_url, tmp_path, mode):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), opened(api, mode) as client:
        await offered(client, "ask_stage")
        turns = [(await asked(client, "ask_stage", message="Hello", key="k"))[1] for _ in range(2)]
        assert turns[0] == turns[1]
        assert len(ensemble.stage.notes("asked")) == 1


async def test_wrong_arguments_and_unknown_tools_are_refused(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, _), opened(api) as client:
        await offered(client, "ask_stage")
        for name, arguments, sentence in (
            ("ask_stage", {}, "The field 'message' is missing"),
            ("ask_stage", {"message": ""}, "message must be text with a length of at least 1"),
            ("ask_stage", {"message": "Hi", "agent": "other"}, "The field 'agent' is unknown"),
            ("get_turn", {"turn_id": "t", "wait": 601}, "wait must be a number of at most 600"),
            ("get_turn", {"turn_id": "no turn"}, "A turn id must be"),
            ("get_turn", {"turn_id": ""}, "A turn id must"),
            ("get_turn", {"turn_id": "unknown"}, "turn_not_found"),
            (
                "answer_call",
                {"turn_id": "t", "call_id": "c", "decision": "maybe"},
                "decision must be one of approve",
            ),
        ):
            text, _, failed = await asked(client, name, **arguments)
            assert failed
            assert sentence in text
        with pytest.raises(MCPError, match="Unknown tool: ask_nobody"):
            await client.call_tool("ask_nobody", {"message": "Hi"})
        assert ensemble.stage.notes("asked") == []


async def test_an_agent_whose_name_no_tool_can_have_is_still_offered(redis_url):
    app = app_of("Hello.", name="über agent")
    name = "ask_" + usable_name("über agent", 60)
    async with running_worker(redis_url, app), open_gateway(redis_url) as (api, _), opened(api) as client:
        await offered(client, name)
        assert (await asked(client, name, message="Hi"))[0] == "Hello."


async def test_a_caller_sees_only_its_own_tools_sessions_and_turns(redis_url, tmp_path):
    found, secrets = keys(
        acme={"tenant": "acme", "user": "ada"}, other={"tenant": "other"},
        reader={"tenant": "acme", "rights": ["read"]}, orders={"tenant": "acme", "sessions": ["order-*"]},
    )  # fmt: skip
    async with (
        stand(redis_url, tmp_path, access=Access(found)) as (ensemble, api, _),
        opened(api, key=secrets["acme"]) as acme,
        opened(api, key=secrets["other"]) as other,
        opened(api, key=secrets["reader"]) as reader,
        opened(api, key=secrets["orders"]) as orders,
    ):
        await offered(acme, "ask_stage")
        _, turn, _ = await asked(acme, "ask_stage", message="Hello", session_id="s")
        info = await (await ensemble.client.turn(turn["turn_id"])).info()
        assert (info.tenant, info.user) == ("acme", "ada")
        for stranger in (other, orders):
            for name, more in (
                ("get_turn", {}), ("cancel_turn", {}), ("answer_call", {"call_id": "c", "decision": "approve"}),
            ):  # fmt: skip
                text, _, failed = await asked(stranger, name, turn_id=turn["turn_id"], **more)
                assert (text.partition(":")[0], failed) == ("turn_not_found", True)
        text, _, failed = await asked(other, "ask_stage", message="Hello", session_id="s")
        assert (text.partition(":")[0], failed) == ("wrong_tenant", True)
        text, _, failed = await asked(orders, "ask_stage", message="Hello", session_id="s")
        assert (text.partition(":")[0], failed) == ("forbidden", True)
        _, own, _ = await asked(orders, "ask_stage", message="Hello")
        assert own["session_id"].startswith("order-")
        assert [one.name for one in (await reader.list_tools()).tools] == ["get_turn"]
        assert (await asked(reader, "get_turn", turn_id=turn["turn_id"]))[1]["status"] == "finished"
        with pytest.raises(MCPError, match="Unknown tool"):
            await reader.call_tool("ask_stage", {"message": "Hi"})


async def test_requests_without_a_key_from_other_pages_and_other_hosts_are_refused(redis_url):
    found, secrets = keys(acme={"tenant": "acme"})
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"accept": "application/json, text/event-stream"}
    async with open_gateway(redis_url, access=Access(found)) as (api, _), programs(api, secrets) as by:
        refused = await api.http.post("/mcp", json=ping, headers=accept)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await by["acme"].http.post("/mcp", json=ping, headers=accept)).status_code == 200
        await by["acme"].get("/mcp", 405)
    await without_watcher()
    async with open_gateway(redis_url) as (api, _):
        for header in ({"host": "evil.example.com"}, {"origin": "https://evil.example.com"}):
            refused = await api.http.post("/mcp", json=ping, headers=accept | header)
            assert refused.status_code == 403


async def test_limits_of_a_caller_hold(redis_url, tmp_path):
    limits = Limits(body_bytes=20_000, streams=1)
    async with (
        stand(redis_url, tmp_path, limits=limits) as (ensemble, api, _), opened(api) as one, opened(api) as two
    ):  # fmt: skip
        await offered(one, "ask_stage")
        waiting = asyncio.create_task(asked(one, "ask_stage", message="go gate:later"))
        await ensemble.waits("later")
        text, _, failed = await asked(two, "ask_stage", message="Hello", session_id="other")
        assert (text.partition(":")[0], failed) == ("too_many_streams", True)
        ensemble.stage.open("later")
        assert (await waiting)[1]["status"] == "finished"
        answer = await api.http.post(
            "/mcp", content=b"x" * 20_001, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 413


async def test_a_call_that_may_not_wait_does_nothing(redis_url, tmp_path):
    async def never(*_):
        raise AssertionError

    app = app_of(tool_call("pay", amount=3), "Done.", tools=[pay])
    async with (
        stand(redis_url, tmp_path, limits=Limits(streams=1)) as (ensemble, api, _), running_worker(redis_url, app),
        opened(api) as one, opened(api, elicitation_callback=never) as two,
    ):  # fmt: skip
        await offered(one, "ask_stage", "ask_clerk")
        _, paying, _ = await asked(one, "ask_clerk", message="Pay 3.", session_id="s")
        [call] = paying["calls"]
        waiting = asyncio.create_task(asked(one, "ask_stage", message="go gate:later"))
        await ensemble.waits("later")
        answer = {"turn_id": paying["turn_id"], "call_id": call["call_id"], "decision": "approve"}
        approved = ElicitResult(action="accept", content={"approve": True})
        for refused in (
            await two.call_tool("ask_stage", {"message": "Hello", "session_id": "other"}),
            await two.call_tool("answer_call", answer),
            await two.call_tool(
                "get_turn", {"turn_id": paying["turn_id"]}, request_state=paying["turn_id"],
                input_responses={call["call_id"]: approved},
            ),
        ):  # fmt: skip
            assert refused.content[0].text.startswith("too_many_streams")
        await api.get("/sessions/other", 404)
        assert len((await api.get(f"/turns/{paying['turn_id']}"))["calls"]) == 1
        ensemble.stage.open("later")
        await waiting
        assert (await asked(two, "answer_call", **answer))[0] == "Done."


async def test_a_gateway_that_drains_answers_and_another_one_has_the_turn(redis_url, tmp_path):
    async with (
        stand(redis_url, tmp_path) as (ensemble, api, app), open_gateway(redis_url) as (second, _),
        opened(api) as client, opened(second) as other,
    ):  # fmt: skip
        await offered(client, "ask_stage")
        waiting = asyncio.create_task(asked(client, "ask_stage", message="go gate:later", key="k"))
        await ensemble.waits("later")
        app.drain()
        _, turn, failed = await waiting
        assert (turn["status"], failed) == ("running", False)
        ensemble.stage.open("later")
        text, ended, _ = await asked(other, "get_turn", turn_id=turn["turn_id"])
        assert (text[: len(FIRST_WORDS)], ended["status"]) == (FIRST_WORDS, "finished")


async def test_a_replica_is_killed_while_a_call_waits_and_another_one_has_its_turn(
    redis_url, processes, tmp_path
):
    place = Stand(redis_url, processes, tmp_path)
    place.worker()
    killed, url = place.gateway()
    _, other = place.gateway()

    async def ask(url):
        async with Client(f"{url}/mcp", cache=None) as client:
            await offered(client, "ask_stage")
            return await asked(client, "ask_stage", message="go gate:later", key="k")

    waiting = asyncio.create_task(ask(url))
    await place.waits("later")
    killed.kill()
    with pytest.raises(Exception):  # noqa: B017 - the client's own
        await waiting
    place.stage.open("later")
    text, turn, _ = await ask(other)
    assert (text[: len(FIRST_WORDS)], turn["status"]) == (FIRST_WORDS, "finished")
    assert len(place.stage.notes("asked")) == 1


async def test_the_command_serves_agents_to_a_program_that_starts_it(redis_url, tmp_path):
    from mcp.client.stdio import StdioServerParameters
    from support.processes import COMMAND

    async with stand(redis_url, tmp_path) as (ensemble, _, _):
        command = StdioServerParameters(
            command=str(COMMAND), args=["mcp", "--redis-url", redis_url, "--tenant", "acme", "--user", "ada"]
        )
        async with Client(command, cache=None) as client:
            await offered(client, "ask_stage")
            text, turn, _ = await asked(client, "ask_stage", message="Hello")
            assert text.startswith(FIRST_WORDS)
            info = await (await ensemble.client.turn(turn["turn_id"])).info()
            assert (info.tenant, info.user) == ("acme", "ada")
