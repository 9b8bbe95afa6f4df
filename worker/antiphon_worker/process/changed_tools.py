"""Reports when an MCP server changes the description of a tool, possibly to manipulate models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.errors import StoreError
from antiphon.mcp import MCP
from antiphon.redis.cells import Cells
from antiphon.wire.mcp_tools import MOST, known_tools, remember_tools
from antiphon_worker.observing.observer import Observer

if TYPE_CHECKING:
    from antiphon_worker.mcp.tools import RemoteTool

log = logging.getLogger("antiphon.mcp")


class ChangedTools:
    """Compares the tools of servers with those that workers of the deployment have seen."""

    def __init__(self, cells: Cells, observer: Observer | None) -> None:
        self._cells, self._observer = cells, observer

    async def note(self, server: MCP, tools: Sequence[RemoteTool]) -> bool:
        """Report the changed tools, then remember them. Returns False if Redis does not answer.

        If the worker dies in between, the next one reports them.
        """
        cell = self._cells.of_session(server.place)
        if cell.redis is None:  # pyright: ignore[reportUnnecessaryComparison] - turns of this process alone
            return True
        tools_by_hash = {f"{one.digest} {one.remote}": one.remote for one in tools}
        try:
            known = await known_tools(cell, server.place)
            new = tools_by_hash.keys() - known
            names = {one.partition(" ")[2] for one in known}
            for name in sorted({tools_by_hash[one] for one in new} & names):
                self._report(server, name[:100])
            if new and len(known) < MOST:
                await remember_tools(cell, server.place, new)
        except StoreError:
            return False
        return True

    def _report(self, server: MCP, tool: str) -> None:
        log.warning(
            "the MCP server %s has changed the description or schema of its tool %s", server.name, tool,
            extra={"action": "mcp_tool_changed", "server": server.name, "tool": tool},
        )  # fmt: skip
        if self._observer is not None:
            self._observer.tool_changed(server.name)
