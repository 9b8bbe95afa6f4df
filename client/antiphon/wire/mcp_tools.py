"""Remembers the tools of MCP servers by their hashes, so that workers notice when a tool's description has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

LASTS_S = 31 * 86_400
MOST = 10_000
"""So many hashes of one server are remembered: it may describe its tools differently to each user."""


async def changed_tools(cell: Cell, server: str, tools: Mapping[str, str]) -> list[str]:
    """Remember the hashes of a server's tools. Return the tools that were known, and never with this hash.

    Raises ``StoreError``.
    """
    key = cell.keys.mcp_tools(server)
    pipe = cell.redis.pipeline(transaction=False)
    pipe.hkeys(key)
    pipe.expire(key, LASTS_S)
    found: list[Any] = await asked(pipe.execute())
    known = {text_of(one) for one in found[0]}
    new = {f"{digest} {name}": name for name, digest in tools.items() if f"{digest} {name}" not in known}
    if new and len(known) < MOST:
        pipe = cell.redis.pipeline(transaction=True)
        pipe.hset(key, mapping=dict.fromkeys(new, ""))
        pipe.expire(key, LASTS_S)
        await asked(pipe.execute())
    names = {one.partition(" ")[2] for one in known}
    return sorted(name for name in new.values() if name in names)
