"""Remembers the tools of MCP servers by their hashes, so that workers notice when a tool's description has changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

LASTS_S = 31 * 86_400
MOST = 10_000
"""The most hashes remembered of one server, which may describe its tools differently to each user."""


async def known_tools(cell: Cell, server: str) -> set[str]:
    """Return the remembered hashes of a server's tools, each followed by the tool's name. Raises ``StoreError``."""
    key = cell.keys.mcp_tools(server)
    pipe = cell.redis.pipeline(transaction=False)
    pipe.hkeys(key)
    pipe.expire(key, LASTS_S)
    found: list[Any] = await asked(pipe.execute())
    return {text_of(one) for one in found[0]}


async def remember_tools(cell: Cell, server: str, tools: Collection[str]) -> None:
    """Remember hashes of a server's tools, as ``known_tools`` returns them. Raises ``StoreError``."""
    key = cell.keys.mcp_tools(server)
    pipe = cell.redis.pipeline(transaction=True)
    pipe.hset(key, mapping=dict.fromkeys(tools, ""))
    pipe.expire(key, LASTS_S)
    await asked(pipe.execute())
