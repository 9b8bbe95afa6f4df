"""Prompts of servers, for programs that submit turns: a prompt becomes the input of a turn.

    from antiphon_worker.mcp.prompts import get_prompt

    messages = await get_prompt(github, "review", {"number": "12"}, user="ada")
    turn = await client.submit("s", messages, agent="support")

This process sends the request, with the credentials of the user, over a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp_types import (
    CallToolResult,
    GetPromptRequest,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsRequest,
    ListPromptsResult,
    PaginatedRequestParams,
)
from msgspec import Struct

from antiphon.input.limits import LIMITS
from antiphon.mcp import MCP, Requester
from antiphon.model import Message, Text
from antiphon_worker.mcp.connection import Connection
from antiphon_worker.mcp.servers import Server
from antiphon_worker.mcp.tools import content_of


class Prompt(Struct):
    """A prompt of a server. ``arguments`` are the names of its arguments, each with whether it is required."""

    name: str
    description: str
    arguments: dict[str, bool]


async def list_prompts(server: MCP, *, tenant: str | None = None, user: str | None = None) -> list[Prompt]:
    """Return the prompts that a server offers to a user, at most 256.

    Raises ``ToolError`` if the server cannot be used, and ``TimeoutError`` after ``connect_timeout``.
    """
    found: list[Prompt] = []
    async with _connected(server, tenant, user) as connection:
        clean, cursor = connection.credentials.out_of, None
        while len(found) < LIMITS.mcp_prompts:
            page = await connection.request(
                ListPromptsRequest(params=PaginatedRequestParams(cursor=cursor)), ListPromptsResult
            )
            for one in page.prompts:
                takes = {each.name: bool(each.required) for each in one.arguments or ()}
                found.append(Prompt(one.name, clean(one.description or one.title or ""), takes))
            cursor = page.next_cursor
            if cursor is None:
                break
    return found[: LIMITS.mcp_prompts]


async def get_prompt(
    server: MCP,
    name: str,
    arguments: Mapping[str, str] | None = None,
    *,
    tenant: str | None = None,
    user: str | None = None,
) -> list[Message]:
    """Return a prompt of a server as messages, to submit as the input of a turn.

    Raises ``ToolError`` if the server cannot be used or refuses, and ``TimeoutError`` after ``connect_timeout``.
    """
    params = GetPromptRequestParams(name=name, arguments=dict(arguments or {}))
    async with _connected(server, tenant, user) as connection:
        found = await connection.request(GetPromptRequest(params=params), GetPromptResult)
        return [_message(one, connection) for one in found.messages]


def _message(one: Any, connection: Connection) -> Message:
    content = content_of(CallToolResult(content=[one.content]), connection.credentials)
    return Message(one.role, [Text(content)] if isinstance(content, str) else [*content])


@asynccontextmanager
async def _connected(declared: MCP, tenant: str | None, user: str | None) -> AsyncGenerator[Connection]:
    """Connect to a server as a user, and leave it at the end."""
    server = Server(declared)
    try:
        async with (
            server.use(Requester(tenant, user, declared.name)) as connection,
            asyncio.timeout(declared.connect_timeout),
        ):
            yield connection
    finally:
        await server.aclose()
