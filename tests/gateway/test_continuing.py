"""A turn without an input continues a history that ends with a question or with results of tools."""

import asyncio

import pytest
from support.gateway import open_gateway
from support.here import running_worker
from support.revisions import client_of

from antiphon import Agent
from antiphon.cli.main import main
from antiphon.errors import UsageError
from antiphon.model import Message, ToolCall, ToolResult
from antiphon.testing import script
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server

STEP = [
    Message.user("Where?"),
    Message("assistant", [ToolCall("c1", "look", {})]),
    Message.tool([ToolResult("c1", "in Kyoto", "look")]),
]


async def test_over_http_and_in_the_terminal(redis_url, capsys):
    app = App(agents=[Agent(script("It is here.", repeat=True), "any", name="parrot")])
    async with (
        open_gateway(redis_url) as (api, _),
        client_of(redis_url) as client,
        running_worker(redis_url, app),
    ):
        for name in ("a", "b"):
            await client.session(name, messages=STEP, agent="parrot").status()
        turn = (await api.post("/sessions/a/turns", {"input": [], "agent": "parrot"}))["turn_id"]
        assert (await api.result(turn))["status"] == "finished"
        argv = ["submit", "b", "--continue", "--agent", "parrot", "--wait", "--redis-url", redis_url]
        assert await asyncio.to_thread(main, argv) == 0
        for name in ("a", "b"):
            found = await client.session(name).messages()
            assert [one.role for one in found] == ["user", "assistant", "tool", "assistant"]
    for wrong in (["submit", "b"], ["submit", "b", "text", "--continue"]):
        assert main([*wrong, "--redis-url", redis_url]) == 2
        assert "--continue" in capsys.readouterr().err


async def test_a_worker_fails_a_turn_that_has_nothing_to_continue(redis_url):
    agent = Agent(lines := script("unused", repeat=True), "any", name="support")
    async with client_of(redis_url) as client, running_worker(redis_url, App(agents=[agent])):
        turn = await client.submit("s", [], agent="support")
        with pytest.raises(UsageError, match="does not end with a question"):
            await turn.result(30)
        assert (await turn.info()).code == "usage"
    assert lines.requests == []
