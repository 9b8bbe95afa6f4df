"""``App``: the agents, tools and providers of a worker. ``antiphon worker --app module:app`` loads it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.errors import AgentError, SettingsError, UnknownTool
from antiphon.input.request import AgentSpec, Travelling
from antiphon.stores.base import SessionStore
from antiphon.tools import Tool
from antiphon_worker.archive.store import Archive, store_at
from antiphon_worker.loop.toolbox import ToolBox, ToolErrors
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.registry import check_provider, close_providers, provider_for
from antiphon_worker.travelling import Allow, Door

if TYPE_CHECKING:
    from antiphon.agent import Agent

__all__ = ["App", "load_app"]

log = logging.getLogger("antiphon.app")

KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openai-chat": "OPENAI_API_KEY"}


class App:
    """The agents, tools and providers of a deployment.

    Turns name ``agents`` by their names. ``tools`` are additional tools, which agents sent with a turn may use; the
    tools of ``agents`` are included automatically. ``providers`` are model services by name. ``store`` archives
    sessions before they expire in Redis and restores them when they are used again; it may block.

    An App with agents, tools or providers runs only its own agents; ``travelling`` allows more (see ``Allow``). An
    empty App runs every agent that is sent with a turn, with the model services whose API keys the worker has.
    ``tool_errors`` is what models and clients see of an exception in a tool: ``"message"`` (its type and message),
    ``"type"``, or a function that takes the exception and returns a sentence.

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
        providers: Mapping[str, Provider] | None = None,
        store: SessionStore | None = None,
        travelling: Allow | None = None,
        tool_errors: ToolErrors = "message",
    ) -> None:
        if travelling is not None and not isinstance(travelling, Allow):
            raise SettingsError(f"travelling= must be an Allow(providers=…), not {travelling!r}.")
        if store is not None and not isinstance(store, SessionStore):
            raise SettingsError(
                f"store= must be a SessionStore, such as SQLiteStore('sessions.db'), not {store!r}."
            )
        self._store = store
        self._archive: Archive | None = None
        self._agents: dict[str, AgentSpec] = {}
        self._tools: dict[str, Tool[..., Any]] = {}
        self._providers = _checked_providers(providers or {})
        self._opening: dict[str, asyncio.Future[Provider]] = {}
        for tool in _listed(tools, "tools"):
            self._add_tool(tool if isinstance(tool, Tool) else Tool(tool))
        for_travellers = frozenset(self._tools)
        for agent in _listed(agents, "agents"):
            self._add_agent(agent)
        self.toolbox = ToolBox(list(self._tools.values()), tool_errors=tool_errors)
        closed = bool(self._agents or self._tools or self._providers)
        self._door = Door(self._agents, for_travellers, travelling or (Allow() if closed else None))

    def _add_agent(self, agent: Agent) -> None:
        if not isinstance(agent, Travelling):
            raise SettingsError(f"agents= must be a list of Agents, not of {type(agent).__name__}.")
        spec = agent.spec()
        if not spec.name:
            raise SettingsError("An agent of an App needs a name: use Agent(name=…).")
        if spec.name in self._agents:
            raise SettingsError(
                f"Two agents of the App have the name {spec.name!r}: give each agent a different name."
            )
        check_provider(spec.provider, self._providers)
        self._agents[spec.name] = spec
        for tool in agent.tools:
            self._add_tool(tool)

    def _add_tool(self, tool: Tool[..., Any]) -> None:
        known = self._tools.setdefault(tool.name, tool)
        if known is not tool and _what(known) != _what(tool):
            raise SettingsError(
                f"Two tools of the App have the name {tool.name!r}: give each tool a different name."
            )

    def agent(
        self,
        asked: str | AgentSpec | None,
        parameters: Mapping[str, Any] | None = None,
        own_system: bool = False,
    ) -> AgentSpec:
        """Return the agent for a turn: the App's agent with this name, its only agent, or the one sent with the turn.

        ``parameters`` are those of the turn. ``own_system`` is true if the session has its own system prompt. Raises
        ``UnknownAgent``, and ``NotAllowed``, ``UnknownProvider`` or ``UnknownTool`` if the App does not allow it.

        >>> app.agent("support").tools, app.agent(None).name
        (['add'], 'support')
        """
        return self._door.agent(asked, parameters or {}, own_system)

    def tools(self, names: Sequence[str]) -> list[Tool[..., Any]]:
        """Return tools by name. Raises ``UnknownTool``.

        >>> app.tools(["add"])[0](1, 2)
        3
        """
        for name in names:
            if name not in self._tools:
                raise UnknownTool(f"The worker has no tool {name!r}.")
        return [self._tools[name] for name in names]

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

    def archive(self, url: str = "") -> Archive | None:
        """Return the archive for sessions: the App's store, or the store at ``url`` (``ANTIPHON_ARCHIVE``), or None.

        Raises ``SettingsError`` if both are given or the URL is not valid.

        >>> from antiphon.stores import MemoryStore
        >>> App(agents=[support], store=MemoryStore()).archive() is not None, app.archive()
        (True, None)
        """
        if url and self._store is not None:
            raise SettingsError(
                "ANTIPHON_ARCHIVE (--archive) names a store, and the App also has store=…: use only one of them."
            )
        if self._archive is None and (url or self._store):
            self._archive = Archive(self._store or store_at(url))
        return self._archive

    async def preload(self) -> None:
        """Open providers before the first turn: those of the App's agents, or without agents those with an API key.

        >>> await app.preload()
        """
        used = {spec.provider for spec in self._agents.values()}
        with_key = {name for name, variable in KEYS.items() if os.environ.get(variable)}
        for name in sorted(used or with_key):
            try:
                await self.provider(name)
            except AgentError as exc:
                log.warning("provider %s cannot be opened: %s", name, exc)

    async def aclose(self) -> None:
        """Close the connections to the model services, and the archive if it was opened from a URL.

        >>> await app.aclose()
        """
        if self._archive is not None and self._store is None:
            self._archive.close()
            self._archive = None
        for provider in self._providers.values():
            await provider.aclose()
        await close_providers()


def _listed(things: Any, name: str) -> Iterable[Any]:
    if not isinstance(things, Iterable) or isinstance(things, str):
        raise SettingsError(f"{name}= must be a list, not {type(things).__name__}.")
    return things


def _checked_providers(providers: Any) -> dict[str, Provider]:
    if not isinstance(providers, Mapping):
        raise SettingsError(
            f"providers= must be a dictionary of providers by name, not {type(providers).__name__}."
        )
    for name, provider in providers.items():
        if not isinstance(name, str) or not callable(getattr(provider, "stream", None)):
            raise SettingsError(
                f"providers= has {provider!r} for {name!r}: use a provider, such as OpenAIChat(base_url=…)."
            )
    return dict(providers)


def _what(tool: Tool[..., Any]) -> tuple[Any, ...]:
    """Return what makes two tools equal. Several agents may each create a tool from the same function."""
    return tool.function, tool.description, tool.timeout, tool.at_most_once, tool.strict


def load_app(path: str) -> App:
    """Load the App at ``module:attribute``, or return an empty App for an empty path. Raises ``SettingsError``."""
    if not path:
        return App()
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        app = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as exc:
        raise SettingsError(f"ANTIPHON_APP (--app) {path!r} cannot be loaded: {exc}.") from exc
    if not isinstance(app, App):
        raise SettingsError(f"ANTIPHON_APP (--app) {path!r} must be an App, not {type(app).__name__}.")
    return app
