"""Prompts of servers as the input of turns."""

import pytest
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from support.mcp_servers import Desk, program

from antiphon import Agent
from antiphon.errors import ToolError
from antiphon.mcp import MCP
from antiphon.testing import script
from antiphon_worker.mcp.prompts import Prompt, get_prompt, list_prompts

pytestmark = pytest.mark.one_server

TOKEN = "token-Zx81-secret"


class Reviewer(Desk):
    """A server with prompts."""

    def __init__(self, **options):
        super().__init__(json=True, **options)

        @self.server.prompt(description="Review a change.")
        async def review(number: str, context: Context, tone: str = "kind") -> list:
            credentials = (context.headers or {}).get("authorization", "")
            return [
                UserMessage(f"Review {number}, {tone}. {credentials}"), AssistantMessage("Which part?"),
                UserMessage("All of it."),
            ]  # fmt: skip


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "handshake"])
async def test_a_prompt_is_the_input_of_a_turn(modern):
    asked = []

    def auth(requester):
        asked.append(requester)
        return TOKEN

    async with Reviewer(modern=modern).running() as reviewer:
        server = reviewer.declared(auth=auth)
        found = await list_prompts(server, tenant="acme", user="ada")
        assert found == [Prompt("review", "Review a change.", {"number": True, "tone": False})]
        messages = await get_prompt(server, "review", {"number": "12"}, tenant="acme", user="ada")
    assert {(one.tenant, one.user) for one in asked} == {("acme", "ada")}
    assert [(one.role, one.text) for one in messages] == [
        ("user", "Review 12, kind. [credentials]"), ("assistant", "Which part?"), ("user", "All of it."),
    ]  # fmt: skip
    model = script("Done.")
    await Agent(model, "any").session_async().run(messages)
    assert [one.text for one in model.requests[0].messages] == [one.text for one in messages]


async def test_a_prompt_of_a_program(tmp_path):
    server = program("""
    @server.prompt()
    def greet() -> str:
        return "Greet me."
    """)
    [message] = await get_prompt(server, "greet")
    assert (message.role, message.text) == ("user", "Greet me.")


async def test_a_prompt_that_cannot_be_used_is_an_error():
    async with Reviewer().running() as reviewer:
        with pytest.raises(ToolError, match="desk: "):
            await get_prompt(reviewer.declared(), "unknown")
        with pytest.raises(ToolError, match="desk: "):
            await get_prompt(reviewer.declared(), "review")
    with pytest.raises(ToolError, match="The MCP server desk is unavailable"):
        await get_prompt(MCP.http("http://127.0.0.1:1/mcp", name="desk", connect_timeout=5), "review")
