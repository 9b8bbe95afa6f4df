"""Reports tools of MCP servers that are described otherwise than before: a server may try to persuade models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.errors import StoreError
from antiphon.mcp import MCP
from antiphon.redis.cells import Cells
from antiphon.wire.mcp_tools import changed_tools
from antiphon_worker.observing.observer import Observer

if TYPE_CHECKING:
    from antiphon_worker.mcp.tools import RemoteTool

log = logging.getLogger("antiphon.mcp")


class ChangedTools:
    """Compares the tools of servers with those that any worker of the deployment has seen."""

    def __init__(self, cells: Cells, observer: Observer | None) -> None:
        self._cells, self._observer = cells, observer

    async def note(self, server: MCP, tools: Sequence[RemoteTool]) -> bool:
        """Report the tools that have changed, and remember them. Returns False if Redis does not answer."""
        cell = self._cells.of_session(server.place)
        if cell.redis is None:  # pyright: ignore[reportUnnecessaryComparison] - turns of this process alone
            return True
        try:
            changed = await changed_tools(cell, server.place, {one.remote: one.digest for one in tools})
        except StoreError:
            return False
        for name in changed:
            log.warning(
                "the MCP server %s describes its tool %s otherwise than before", server.name, name[:100],
                extra={"action": "mcp_tool_changed", "server": server.name, "tool": name[:100]},
            )  # fmt: skip
            if self._observer is not None:
                self._observer.tool_changed(server.name)
        return True
