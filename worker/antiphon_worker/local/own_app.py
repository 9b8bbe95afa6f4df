"""Replaces an App for the engine, with one agent of this process: its functions never leave it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from antiphon.errors import UnknownAgent, UsageError
from antiphon.hooks import Hook
from antiphon.input.request import AgentSpec
from antiphon.mcp import MCP, check_installed
from antiphon.model import FallbackModel
from antiphon.model.budget import Budget
from antiphon.model.revisions import Revision
from antiphon.model.usage import NO_LIMITS, Usage
from antiphon.session.work import AgentLike
from antiphon.tools import Tool
from antiphon.tools.children import ChildTool
from antiphon.tools.threads import Threads
from antiphon_worker.loop.costs import Meter, Prices, prices_in, stop_functions
from antiphon_worker.loop.input import Rules
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.memory.memories import Memories
from antiphon_worker.providers.base import Provider


class OwnApp:
    """The App of one turn. ``agent`` is None if the turn names an agent that this process does not know.

    If the turn is handed over, the new agent takes its place. ``known`` finds agents by name.
    """

    timeouts = router = None
    keep_requests = False
    events_ttl = None
    memories = Memories(None)
    revisions: Mapping[str, Revision] = {}

    def __init__(
        self, agent: AgentLike | None, opened: Callable[[Any], Awaitable[Provider]], threads: Threads,
        known: Callable[[str], AgentLike | None], submitting: Callable[[Any], AbstractContextManager[None]],
    ) -> None:  # fmt: skip
        self._first = self._own = agent
        self._opened, self._threads, self._known = opened, threads, known
        self.submitting = submitting
        self.toolbox = ToolBox(agent.tools if agent else [], threads=threads)

    @property
    def children(self) -> bool:
        """Whether the agent in charge has agents as tools."""
        return self._own is not None and any(isinstance(tool, ChildTool) for tool in self._own.tools)

    def archive(self, url: str = "") -> None:
        """Do nothing: a store saves whole sessions, so there is nothing to archive."""

    def agent(
        self,
        asked: str | AgentSpec | None,
        parameters: Mapping[str, Any] | None = None,
        own_system: bool = False,
    ) -> AgentSpec:
        """Return the agent as plain data. Raises ``UnknownAgent``."""
        named = asked if asked is None or isinstance(asked, str) else asked.name
        own = self._found(named)
        if own is not self._own:
            self._own = own
            self.toolbox = ToolBox(own.tools if own else [], threads=self._threads)
        if own is None:
            raise UnknownAgent(
                f"No agent named {named!r} was used in this process yet: pass the Agent itself."
            )
        self._spec = own.described()
        return self._spec

    def _found(self, name: str | None) -> AgentLike | None:
        """Return the agent of the turn, or the agent of this name among its hand-offs and theirs."""
        if self._first is None or name is None or name == self._first.name:
            return self._first
        found = {self._first.name: self._first}
        waiting = [*self._first.handoffs]
        while waiting:
            one = waiting.pop()
            if not isinstance(one.agent, str) and one.name not in found:
                found[one.name] = cast("AgentLike", one.agent)
                waiting += one.agent.handoffs
        return found.get(name) or self._known(name)

    async def provider(self, name: str) -> Provider:
        return await self._opened(self._own)

    async def fallback(self, model: FallbackModel) -> Provider:
        """Return the provider of one of the agent's fallbacks, which may be an object of this process."""
        assert self._own is not None
        place = next(n for n, known in enumerate(self._spec.fallback) if known is model)
        return await self._opened(self._own.fallback[place])

    def tools(self, names: Sequence[str]) -> list[Tool[..., Any]]:
        assert self._own is not None
        return self._own.tools

    def rules(self, agent: AgentSpec) -> Rules:
        assert self._own is not None
        return Rules(self._own.approval)

    def hooks(self, agent: AgentSpec) -> list[Hook[Any]]:
        assert self._own is not None
        return self._own.hooks

    def budgets(self, agent: AgentSpec) -> list[Budget]:
        return self._own.budgets if self._own else []

    def servers(self, agent: AgentSpec) -> list[MCP]:
        """Return the MCP servers of the agent in charge. Raises ``UsageError`` for a server that is only a name."""
        if self._own is None or not self._own.mcp:
            return []
        check_installed()
        for one in self._own.mcp:
            if isinstance(one, str):
                raise UsageError(
                    f"The agent names the MCP server {one!r}, which only an App on workers knows: pass MCP.http(…) or "
                    "MCP.stdio(…) itself."
                )
        return cast("list[MCP]", self._own.mcp)

    def prices(self, file: str = "") -> Prices:
        return prices_in(os.environ.get("ANTIPHON_PRICES", ""))

    def meter(
        self, agent: AgentSpec, prices: Prices, *, before: Usage | None = None, spent: float = 0.0
    ) -> Meter:
        """Return the meter of a turn. Raises ``UnknownTool`` for a stop condition that is only a name."""
        limits = (self._own.limits if self._own else None) or NO_LIMITS
        return Meter(limits, prices, stop_functions(limits, {}), before=before, spent=spent)
