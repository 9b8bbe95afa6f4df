"""``App``: the agents, tools and providers of a worker."""

from __future__ import annotations

import asyncio
import copy
import importlib
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from antiphon.a2a import RemoteAgent
from antiphon.errors import AgentError, SettingsError, UnknownTool, UsageError
from antiphon.ext.turns import TurnFunction
from antiphon.handoffs import Handoff, tool_of
from antiphon.hooks import Hook, hooks_of
from antiphon.input.request import AgentSpec, Travelling
from antiphon.input.values import EVENTS_TTL_SECONDS, events_lifetime, is_a
from antiphon.mcp import MCP, check_installed, check_no_shadow, server_of
from antiphon.model import FallbackModel, Timeouts
from antiphon.model.budget import Budget
from antiphon.model.resilience import checked_timeouts
from antiphon.model.revisions import Revision, Rollout, Takes, checked_rollout
from antiphon.model.usage import NO_LIMITS, Limits, Usage, checked_limits, stop_name, stricter
from antiphon.redis.search import SEARCH_CURSOR
from antiphon.redis.titles import TITLES_CURSOR
from antiphon.revisions import digest_of, revision_of
from antiphon.routing import Router
from antiphon.stores.base import SessionStore
from antiphon.stores.urls import store_at
from antiphon.tools import Tool
from antiphon.tools.approval import ApprovalRule
from antiphon.tools.children import ChildTool
from antiphon_worker.archive import Archive
from antiphon_worker.inline_agents import Allow, Door
from antiphon_worker.loop.costs import Meter, Price, Prices, prices_of, stop_functions
from antiphon_worker.loop.input import Rules
from antiphon_worker.loop.toolbox import ToolBox, ToolErrors
from antiphon_worker.memory.memories import Memories
from antiphon_worker.memory.titles import TitleFunction, TitleModel, checked_titles
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.registry import (
    BUILT_IN,
    check_provider,
    checked_providers,
    close_providers,
    provider_for,
)

if TYPE_CHECKING:
    from antiphon.agent import Agent
    from antiphon.memory.declaration import Memory
    from antiphon.testing import Script


log = logging.getLogger("antiphon.app")

NONE = ApprovalRule()
NO_RULES = Rules()
KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openai-chat": "OPENAI_API_KEY"}


class App:
    """The agents, tools and providers of a deployment.

    Turns name ``agents`` by their names. ``tools`` are additional tools, which inline agents may use; the tools of
    ``agents`` are included automatically. ``providers`` are model services by name. ``store`` archives sessions
    before they expire in Redis and restores them when they are used again; it may block.

    An App with agents, tools or providers runs only its own agents; ``travelling`` allows more (see ``Allow``). An
    empty App runs every inline agent, with the model services whose API keys the worker has. ``tool_errors``
    determines what models and clients see of an exception in a tool: ``"message"`` (its type and message),
    ``"type"``, or a function that takes the exception and returns a sentence. ``timeouts`` apply to model calls of
    agents without their own.

    ``limits`` (``antiphon.model.Limits``) apply to all turns; an agent can only be stricter. ``prices`` add to the
    package's prices of models, or override them: ``Price`` by model, or the name of a JSON file. ``memory`` (an
    ``antiphon.memory.Memory``) applies to agents without their own. With ``search``, workers index finished turns in
    the archive's database, for ``Client.search``. ``titles`` names sessions after their first finished turn: a
    ``TitleModel``, or a function that takes the messages of that turn and returns a title or None. ``hooks`` (see
    ``antiphon.hooks``) run in all turns, before those of the agent. ``rollout`` (``"auto_upgrade"``, ``"pinned"`` or
    an ``antiphon.model.Rollout``) applies to agents without their own. ``mcp`` are the servers (``antiphon.mcp.MCP``)
    that agents may name; those that agents bring are included. With ``keep_requests``, the requests that models
    receive in turns are kept for 7 days, for ``turn.requests()`` and the dashboard. ``router`` chooses the agent,
    model or queue of each turn: a function (see ``antiphon.routing``), or an agent with hand-offs that starts the
    turns that name no agent. ``events_ttl`` (seconds or a timedelta; None: as long as the session) is how long the
    events of a session are kept after its last turn, if a worker of this App has ended it.

    The agents of ``Agent(handoffs=…)`` are included, like its tools; it may also name agents of other workers.

    An agent may bring its provider, or an ``antiphon.testing.script``: each worker process then has its own.

    Raises ``SettingsError`` if two agents or two tools have the same name, and ``UnknownProvider`` if an agent's
    provider is neither built in nor given.

    >>> from antiphon import Agent, tool
    >>> @tool
    ... def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> support = Agent(provider="scripted", model="any", name="support", tools=[add])
    >>> app = App(agents=[support])
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        providers: Mapping[str, Provider | Script] | None = None,
        store: SessionStore | None = None,
        travelling: Allow | None = None,
        tool_errors: ToolErrors = "message",
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        prices: Mapping[str, Price] | str | None = None,
        memory: Memory | None = None,
        search: bool = False,
        titles: TitleModel | TitleFunction | None = None,
        hooks: Iterable[Hook[Any] | Callable[..., Any]] = (),
        rollout: Takes | Rollout | None = None,
        mcp: Iterable[MCP] = (),
        keep_requests: bool = False,
        events_ttl: float | timedelta | None = EVENTS_TTL_SECONDS,
        router: Router | Agent | None = None,
    ) -> None:
        _check(travelling, store)
        self.timeouts = checked_timeouts(timeouts, SettingsError)
        self._store, self._memory, self.events_ttl = store, memory, events_lifetime(events_ttl)
        self._archive: Archive | None = None
        self._agents: dict[str, AgentSpec] = {}
        self._approval: dict[str, ApprovalRule] = {}  # of these agents
        self._hooks = hooks_of(hooks)
        self._hooks_of: dict[str, list[Hook[Any]]] = {}  # those of the App and of these agents
        self._budgets: dict[str, list[Budget]] = {}  # of these agents
        self._tools: dict[str, Tool[..., Any]] = {}
        self._providers = checked_providers(providers or {})
        self._stops: dict[str, Callable[..., Any]] = {}
        self._limits = self._known_stops(checked_limits(limits))
        self._prices: Prices | None = None
        self._opening: dict[str, asyncio.Future[Provider]] = {}
        self._own_prices, self.memories = prices, Memories(memory)
        self.search, self.titles, self.keep_requests = search, checked_titles(titles), keep_requests
        self._note_turns()
        self._begin_revisions(rollout)
        self._begin_servers(mcp)
        for tool in _listed(tools, "tools"):
            self._add_tool(cast("Tool[..., Any]", tool) if isinstance(tool, Tool) else Tool(tool))
        for_travellers = frozenset(self._tools)
        self._add_agents([*_listed(agents, "agents")])
        self.router = self._add_router(router)
        check_no_shadow(self._servers, self._tools, SettingsError)
        self.toolbox = ToolBox(list(self._tools.values()), tool_errors=tool_errors)
        allow = travelling or (Allow() if self._agents or self._tools or self._providers else None)
        self._door = Door(self._agents, for_travellers, allow, self.only)

    def _begin_servers(self, servers: Iterable[MCP]) -> None:
        self._servers: dict[str, MCP] = {}
        self._servers_of: dict[str, list[MCP]] = {}  # of these agents
        for server in _listed(servers, "mcp"):
            self._add_server(server)

    def _begin_revisions(self, rollout: Takes | Rollout | None) -> None:
        """Set up the revisions of the App's agents, which are added next."""
        self._rollout = checked_rollout(rollout, SettingsError) or Rollout()
        self._rollouts: dict[str, Rollout] = {}
        self.revisions: dict[str, Revision] = {}
        self.lacking: dict[str, list[str]] = {}
        self._added: dict[str, Agent] = {}
        self.children = False  # whether an agent is a tool of another one
        self.pins = False  # whether sessions of one of its agents keep the revision that they began with

    def _note_turns(self) -> None:
        """Check the options, and have finished turns noted for the search index and for titles."""
        for name, value in (("search", self.search), ("keep_requests", self.keep_requests)):
            if not is_a(value, bool):
                raise SettingsError(f"{name}= must be True or False, not {value!r}.")
        if isinstance(self.titles, TitleModel):
            check_provider(self.titles.provider, self._providers)
        self.memories.noted = f" {SEARCH_CURSOR}" if self.search else ""
        self.memories.first_noted = f" {TITLES_CURSOR}" if self.titles is not None else ""

    def _add_agents(self, agents: Sequence[Any]) -> None:
        """Add agents, and the agents that they bring. Sets ``only`` if a single agent was given and brings others."""
        for agent in agents:
            self._add_agent(agent)
        self.only = agents[0].name if len(agents) == 1 < len(self._agents) else ""

    def _add_router(self, router: object) -> Router | None:
        """Add the router. If it is an agent, turns that name no agent begin with it."""
        if router is None or callable(router):
            return cast("Router | None", router)
        if not is_a(router, Travelling):
            raise SettingsError(f"router= must be a function or an Agent, not {router!r}.")
        self._add_agent(cast("Agent", router))
        self.only = cast("str", cast("Agent", router).name)
        return None

    def _add_agent(self, agent: Agent) -> None:
        if not is_a(agent, Travelling):
            raise SettingsError(f"agents= must be a list of Agents, not of {type(agent).__name__}.")
        approval: ApprovalRule = getattr(agent, "approval", ApprovalRule())
        provider = getattr(agent, "provider", "")
        own_provider, handoffs = not isinstance(provider, str), getattr(agent, "handoffs", [])
        hooks: list[Hook[Any]] = getattr(agent, "hooks", [])
        budgets: list[Budget] = getattr(agent, "budgets", [])
        servers: list[MCP | str] = getattr(agent, "mcp", [])
        stays = own_provider or callable(approval.rule) or hooks or budgets or handoffs or servers
        stays = stays or getattr(agent, "memory", None) is not None
        spec = agent.described() if stays else agent.spec()
        if not (known_as := spec.name):
            raise SettingsError("An agent of an App needs a name: use Agent(name=…).")
        if self._added.get(known_as) is agent:
            return  # another agent hands over to it
        if known_as in self._agents:
            raise SettingsError(
                f"Two agents of the App have the name {spec.name!r}: give each agent a different name."
            )
        if own_provider:
            spec = msgspec.structs.replace(spec, provider=f"{spec.provider}-{known_as}")
            self._providers |= checked_providers({spec.provider: provider})
        for name in _providers_of(spec):
            check_provider(name, self._providers)
        self._added[known_as] = agent
        self._agents[known_as], self._approval[known_as] = spec, NONE if approval == NONE else approval
        self._hooks_of[known_as] = [*self._hooks, *hooks]
        self._budgets[known_as] = budgets
        self._known_stops(agent.limits)
        if servers:
            self._servers_of[known_as] = [self._add_server(one) for one in servers]
        self.memories.add(agent, spec)
        self.revisions[known_as] = self._revision(agent, spec)
        rollout = self._rollouts[known_as] = getattr(agent, "rollout", None) or self._rollout
        self.pins = self.pins or rollout.sessions == "pinned"
        for tool in agent.tools:
            self._add_tool(tool)
        for handoff in handoffs:
            self._add_target(known_as, handoff)

    def _add_target(self, source: str, handoff: Handoff) -> None:
        """Add the target agent of a hand-off, unless it is only a name."""
        if not isinstance(handoff.agent, str):
            self._add_agent(cast("Agent", handoff.agent))
        for name in (source, handoff.name):
            provider = self._agents[name].provider if name in self._agents else ""
            if isinstance(self._providers.get(provider), TurnFunction):
                raise SettingsError(
                    f"The agent {name!r} runs a function of its own, which can neither hand a turn over nor take one: "
                    f"leave {handoff.name!r} out of the handoffs= of {source!r}."
                )

    def _revision(self, agent: Agent, spec: AgentSpec) -> Revision:
        """Return the revision of an agent, including what the App adds to it."""
        if not hasattr(agent, "label"):  # not an Agent, but an object that can be sent with a turn
            return Revision(digest_of(msgspec.to_builtins(spec)))
        return Revision(
            revision_of(
                agent, memory=self._memory, limits=self._limits, hooks=self._hooks,
                servers=self._servers_of.get(agent.name or "", ()),
            ),
            agent.label,
        )  # fmt: skip

    def _add_server(self, server: MCP | str) -> MCP:
        """Add an MCP server, or find the one with this name."""
        if isinstance(server, str):
            if server not in self._servers:
                raise SettingsError(f"The App has no MCP server {server!r}: add it to App(mcp=[…]).")
            return self._servers[server]
        if not is_a(server, MCP):
            raise SettingsError(f"mcp= must be a list of MCP.http(…) and MCP.stdio(…), not of {server!r}.")
        if self._servers.setdefault(server.name, server) is not server:
            raise SettingsError(
                f"Two MCP servers of the App have the name {server.name!r}: give each server a different name."
            )
        check_installed()
        return server

    def _known_stops(self, limits: Limits | None) -> Limits | None:
        """Keep the functions of the stop conditions, and return the limits with their names."""
        for stop in limits.stop if limits is not None else ():
            name = stop_name(stop)
            if not isinstance(stop, str) and self._stops.setdefault(name, stop) is not stop:
                raise SettingsError(
                    f"Two stop conditions of the App have the name {name!r}: give each a different name."
                )
        return None if limits is None else limits.named()

    def _add_tool(self, tool: Tool[..., Any]) -> None:
        if isinstance(tool, ChildTool):
            self.children = True
            self._add_agent(tool.agent)
        known = self._tools.setdefault(tool.name, tool)
        if known is not tool and _what(known) != _what(tool):
            raise SettingsError(
                f"Two tools of the App have the name {tool.name!r}: give each tool a different name."
            )

    @property
    def agents(self) -> list[str]:
        """The names of the App's agents.

        >>> app.agents
        ['support']
        """
        return list(self._agents)

    def agent(
        self,
        asked: str | AgentSpec | None,
        parameters: Mapping[str, Any] | None = None,
        own_system: bool = False,
    ) -> AgentSpec:
        """Return the agent for a turn: the App's agent with this name, its only agent, or the one sent with the turn.

        ``parameters`` are those of the turn; its client-side tools count as ``caller_tools``. ``own_system`` is true
        if the session has its own system prompt. Raises ``UnknownAgent``, and ``NotAllowed``, ``UnknownProvider`` or
        ``UnknownTool`` if the App does not allow it.

        >>> app.agent("support").tools, app.agent(None).name
        (['add'], 'support')
        """
        return self._door.agent(asked, parameters or {}, own_system)

    def has(self, agent: AgentSpec) -> bool:
        """Return whether this is an agent of the App, and not an inline agent.

        >>> app.has(app.agent("support"))
        True
        """
        return self._agents.get(agent.name or "") is agent

    def rollout(self, agent: AgentSpec) -> Rollout:
        """Return which revision the turns of an agent's sessions take.

        >>> app.rollout(app.agent("support")).sessions
        'auto_upgrade'
        """
        return self._rollouts.get(agent.name or "", self._rollout)

    def parts(self) -> dict[str, list[str]]:
        """Return the names that turns may ask for: agents, stop conditions, and what inline agents may use.

        ``calls`` are the other tools of the agents.

        >>> app.parts()
        {'agents': ['support'], 'tools': [], 'providers': [], 'stops': [], 'calls': ['add']}
        """
        allowed = self._door.tools()
        tools = [name for name in self._tools if "*" in allowed or name in allowed]
        calls = {tool.name for agent in self._agents.values() for tool in agent.caller_tools}
        calls.update(name for agent in self._agents.values() for name in agent.tools)
        calls.update(self.memories.tools)
        calls.update(tool_of(one.name) for agent in self._agents.values() for one in agent.handoffs)
        parts = {"agents": list(self._agents), "tools": tools, "providers": list(self._door.providers())}
        parts |= {} if (models := self._door.models()) is None else {"models": list(models)}
        return parts | {"stops": list(self._stops), "calls": sorted(calls.difference(tools))}

    def rules(self, agent: AgentSpec) -> Rules:
        """Return which calls of an agent wait for an approval. An inline agent adds to the App's rule.

        >>> app.rules(app.agent("support")).own.rule
        False
        """
        own = self._approval.get(agent.name or "", NONE)
        if own is NONE and agent.approval is False and agent.approval_timeout is None:
            return NO_RULES
        if agent is self._agents.get(agent.name or ""):
            return Rules(own)
        named = agent.approval if isinstance(agent.approval, bool) else tuple(agent.approval)
        return Rules(own, ApprovalRule(named, agent.approval_timeout, agent.approval_at_limit))

    def hooks(self, agent: AgentSpec) -> list[Hook[Any]]:
        """Return the hooks of an agent's turns: those of the App, then its own.

        >>> app.hooks(app.agent("support"))
        []
        """
        return self._hooks_of.get(agent.name or "", self._hooks)

    def servers(self, agent: AgentSpec) -> Sequence[MCP]:
        """Return the MCP servers of an agent of the App; none for an inline agent.

        >>> app.servers(app.agent("support"))
        ()
        """
        return self._servers_of.get(agent.name or "", ()) if self._servers_of and self.has(agent) else ()

    def other_system(self, tool: str) -> RemoteAgent | MCP | None:
        """Return the remote agent or the MCP server that runs a tool; None for a tool of the App itself.

        >>> app.other_system("add")
        """
        known = self._tools.get(tool)
        return known if isinstance(known, RemoteAgent) else self._servers.get(server_of(tool) or "")

    def tools(self, names: Sequence[str]) -> list[Tool[..., Any]]:
        """Return tools by name. Raises ``UnknownTool``.

        >>> app.tools(["add"])[0](1, 2)
        3
        """
        for name in names:
            if name not in self._tools:
                raise UnknownTool(f"This worker's App has no tool {name!r}.")
        return [self._tools[name] for name in names]

    @property
    def provider_names(self) -> list[str]:
        """The names of the providers that ``provider`` returns.

        >>> "anthropic" in app.provider_names
        True
        """
        return sorted({*BUILT_IN, *self._providers})

    async def provider(self, name: str) -> Provider:
        """Return the provider with this name, opened on first use. Raises ``UnknownProvider`` and ``MissingPackage``.

        Opening a provider can load its SDK, which takes about a second. This happens in a thread, so that other turns
        keep running.

        >>> (await app.provider("scripted")).name
        'scripted'
        """
        if name not in self._opening:
            self._opening[name] = asyncio.ensure_future(
                asyncio.to_thread(provider_for, name, self._providers)
            )
        try:
            return await asyncio.shield(self._opening[name])
        except Exception:
            self._opening.pop(name, None)
            raise

    async def fallback(self, model: FallbackModel) -> Provider:
        """Return the provider of a fallback of an agent, as ``provider`` does.

        >>> (await app.fallback(FallbackModel("scripted", "any"))).name
        'scripted'
        """
        return await self.provider(model.provider)

    def prices(self, file: str = "") -> Prices:
        """Return the prices of models: the App's, or those in a file (``ANTIPHON_PRICES``), and the package's.

        Raises ``SettingsError`` if both are given or the file cannot be read.

        >>> app.prices().price("gpt-4o-mini-2024-07-18").output
        0.6
        """
        if file and self._own_prices is not None:
            raise SettingsError(
                "ANTIPHON_PRICES (--prices) names a file, and the App also has prices=…: use only one of them."
            )
        if self._prices is None:
            self._prices = prices_of(file or self._own_prices)
        return self._prices

    def meter(
        self, agent: AgentSpec, prices: Prices, *, before: Usage | None = None, spent: float = 0.0
    ) -> Meter:
        """Return the meter of a turn, with the stricter of each limit of its agent and of the App.

        ``before`` is the usage of its session, ``spent`` the seconds since its first start. Raises ``UnknownTool``
        for a stop condition that the App does not have.

        >>> app.meter(app.agent("support"), app.prices()).limits.tokens is None
        True
        """
        if agent.limits is None and self._limits is None:
            return Meter(NO_LIMITS, prices, before=before, spent=spent)
        limits = stricter(agent.limits, self._limits)
        return Meter(limits, prices, stop_functions(limits, self._stops), before=before, spent=spent)

    def budgets(self, agent: AgentSpec) -> list[Budget] | None:
        """Return the budgets that the App declares for an agent; None for an inline agent.

        >>> app.budgets(app.agent("support"))
        []
        """
        return self._budgets[agent.name or ""] if agent is self._agents.get(agent.name or "") else None

    def archive(self, url: str = "") -> Archive | None:
        """Return the archive for sessions: the App's store, or the store at ``url`` (``ANTIPHON_ARCHIVE``), or None.

        Raises ``SettingsError`` if both are given or the URL is not valid.

        >>> from antiphon.stores import MemoryStore
        >>> App(agents=[support], store=MemoryStore()).archive() is not None, app.archive()
        (True, None)
        """
        if url and self._store is not None:
            both = "ANTIPHON_ARCHIVE (--archive) names a store, and the App also has store=…"
            raise SettingsError(f"{both}: use only one of them.")
        if self._archive is None and (url or self._store):
            self._archive = Archive(self._store or store_at(url))
        return self._archive

    async def replayable(self, name: str) -> list[Agent]:
        """Return copies of all agents, this one first, for a run outside the worker's turns.

        They have opened providers, but no MCP servers.

        >>> [agent.name for agent in await app.replayable("support")]
        ['support']
        """
        found: list[Agent] = []
        for known in sorted(self._added, key=lambda one: one != name):
            own = copy.copy(self._added[known])
            own.provider = await self.provider(self._agents[known].provider)
            found.append(own)
        return found

    def submitting(self, agent: Agent) -> AbstractContextManager[None]:
        """Let a turn submitted inside this context find its agent. Raises ``UsageError`` if the App does not have it.

        >>> with app.submitting(support):
        ...     pass
        """
        if agent.name not in self._agents:
            raise UsageError(f"The agent {agent.name!r} is not one of the App: add it to App(agents=[…]).")
        return nullcontext()

    async def preload(self) -> None:
        """Open providers before the first turn: those of the App's agents or, without agents, those with an API key.

        Sets ``lacking`` to the result of ``lacks``.

        >>> await app.preload()
        """
        self.lacking = await self.lacks()
        with_key = {name for name, variable in KEYS.items() if os.environ.get(variable)}
        for name in sorted(set() if self._agents else with_key):
            try:
                await self.provider(name)
            except AgentError as exc:
                log.warning(
                    "provider %s cannot be opened: %s", name, exc, extra={"action": "provider_failed"}
                )

    async def lacks(self) -> dict[str, list[str]]:
        """Return sentences about what each agent lacks on this machine (its package, its key or a tool), by name.

        Agents that lack nothing are left out. This opens the agents' providers, but sends nothing.

        >>> await app.lacks()
        {}
        """
        found = {
            name: [
                *[lack for one in _providers_of(spec) for lack in await self._lacks_of_provider(one)],
                *self._lacks_of_tools(spec.tools),
                *self._lacks_of_limits(spec),
            ]
            for name, spec in self._agents.items()
        }
        return {name: lacking for name, lacking in found.items() if lacking}

    async def _lacks_of_provider(self, name: str) -> list[str]:
        try:
            check = getattr(await self.provider(name), "check_key", None)
            if check is not None:
                check()
        except AgentError as exc:
            return [exc.message]
        except Exception as exc:  # noqa: BLE001 - the App's own provider may still answer
            return [f"The provider {name!r} cannot be checked: {type(exc).__name__}."]
        return []

    def _lacks_of_tools(self, names: Sequence[str]) -> list[str]:
        return [
            f"The App has no tool {name!r}: add it to App(tools=[…])."
            for name in names
            if name not in self._tools
        ]

    def _lacks_of_limits(self, agent: AgentSpec) -> list[str]:
        limits = stricter(agent.limits, self._limits)
        lacking = [
            f"The App has no stop condition {name!r}: pass its function in Limits(stop=[…])."
            for name in limits.stop
            if name not in self._stops
        ]
        models = dict.fromkeys([agent.model, *(model.model for model in agent.fallback)])
        return lacking + [
            f"The model {model!r} has no price, so that its cost cannot be limited: add it to App(prices=…)."
            for model in models
            if limits.of_cost and self.prices().price(model) is None
        ]

    async def aclose(self) -> None:
        """Close the connections to model services and MCP servers, and the archive if it was opened from a URL.

        >>> await app.aclose()
        """
        if self._archive is not None and self._store is None:
            self._archive.close()
            self._archive = None
        for provider in self._providers.values():
            await provider.aclose()
        await close_providers()
        if self._servers:
            from antiphon_worker.mcp.servers import close_servers

            await close_servers()


def _providers_of(agent: AgentSpec) -> list[str]:
    """Return the providers of an agent and of its fallbacks, without duplicates."""
    return list(dict.fromkeys([agent.provider, *(model.provider for model in agent.fallback)]))


def _check(travelling: object, store: object) -> None:
    if travelling is not None and not is_a(travelling, Allow):
        raise SettingsError(f"travelling= must be an Allow(providers=…), not {travelling!r}.")
    if store is not None and not is_a(store, SessionStore):
        raise SettingsError(
            f"store= must be a SessionStore, such as SQLiteStore('sessions.db'), not {store!r}."
        )


def _listed(things: Any, name: str) -> Iterable[Any]:
    if not isinstance(things, Iterable) or isinstance(things, str):
        raise SettingsError(f"{name}= must be a list, not {type(things).__name__}.")
    return things


def _what(tool: Tool[..., Any]) -> tuple[Any, ...]:
    """Return the values that make two tools equal. Several agents may each create a tool from the same function."""
    return tool.function, tool.description, tool.timeout, tool.at_most_once, tool.strict, tool.approval


INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))


def load_app(path: str) -> App:
    """Load the App at ``module:attribute``, or return an empty App for an empty path. Raises ``SettingsError``.

    An error of the App's own code is reported with its line, and logged with its whole traceback at the level debug.
    """
    if not path:
        return App()
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        app = getattr(importlib.import_module(module_name), attribute or "app")
    except AgentError:
        raise
    except Exception as exc:
        log.debug("the App cannot be loaded", exc_info=exc)
        hint = _meant(module_name, attribute)
        raise SettingsError(
            f"ANTIPHON_APP (--app) {path!r} cannot be loaded: {_place_and_text(exc)}{hint}."
        ) from exc
    if not isinstance(app, App):
        raise SettingsError(f"ANTIPHON_APP (--app) {path!r} must be an App, not {type(app).__name__}.")
    return app


def _meant(module_name: str, attribute: str) -> str:
    """Return a hint: the module name if a file was given, or an App that the module has."""
    if module_name.endswith(".py"):
        return f": write {module_name.removesuffix('.py').replace('/', '.')}:{attribute or 'app'}"
    known: dict[str, Any] = vars(sys.modules[module_name]) if module_name in sys.modules else {}
    apps = [name for name, value in known.items() if isinstance(value, App)]
    return f": its App is {module_name}:{apps[0]}" if apps else ""


def _place_and_text(exc: Exception) -> str:
    """Return the last line number of the App's own code in the traceback, and the message, in one line."""
    if isinstance(exc, SyntaxError):
        return f"{Path(exc.filename or '').name}, line {exc.lineno}: {type(exc).__name__}: {exc.msg}"
    text = " ".join(str(exc).split()).rstrip(".")
    if not isinstance(exc, (ImportError, AttributeError)):
        text = f"{type(exc).__name__}: {text}"
    frames = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith(("<", __file__, *INSTALLED))
    ]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: {text}" if frames else text
