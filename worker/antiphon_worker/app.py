"""What a worker knows: agents, tools and providers by name. ``antiphon worker --app module:app`` loads it."""

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
    """Agents, tools and providers of a deployment.

    ``agents`` are known by their name, ``tools`` are those that agents which travel with a turn may name (an agent's
    own tools are known as well), ``providers`` are model services under names of their own. ``store`` is where sessions
    are archived before their life in Redis ends, and restored from when they are used again; it may block.

    An App with agents, tools or providers runs its own agents alone. ``travelling`` says what else turns may bring:
    see ``Allow``. An App with none of them runs every agent that travels with a turn, with the model services whose
    keys the worker has. ``tool_errors`` is what models and clients are told of an exception of a tool: ``"message"``
    (its type and message), ``"type"``, or a function of the exception that returns a sentence.

    Raises ``SettingsError`` where two agents or two tools have one name, and ``UnknownProvider`` for an agent whose
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
            raise SettingsError(f"travelling= is an Allow(providers=…), not {travelling!r}.")
        if store is not None and not isinstance(store, SessionStore):
            raise SettingsError(
                f"store= is a SessionStore, such as SQLiteStore('sessions.db'), not {store!r}."
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
            raise SettingsError(f"agents= is a list of Agents, not of {type(agent).__name__}.")
        spec = agent.spec()
        if not spec.name:
            raise SettingsError("An agent of an App needs a name: Agent(name=…).")
        if spec.name in self._agents:
            raise SettingsError(
                f"Two agents of the App are called {spec.name!r}: give each a name of its own."
            )
        check_provider(spec.provider, self._providers)
        self._agents[spec.name] = spec
        for tool in agent.tools:
            self._add_tool(tool)

    def _add_tool(self, tool: Tool[..., Any]) -> None:
        known = self._tools.setdefault(tool.name, tool)
        if known is not tool and _what(known) != _what(tool):
            raise SettingsError(
                f"Two tools of the App are called {tool.name!r}, and turns name them: give each a name of its own."
            )

    def agent(
        self,
        asked: str | AgentSpec | None,
        parameters: Mapping[str, Any] | None = None,
        own_system: bool = False,
    ) -> AgentSpec:
        """The agent a turn asks for: one of ours by name, the only one there is, or one that came with the turn.

        ``parameters`` are those of the turn, ``own_system`` says whether the session has a system prompt of its own.
        Raises ``UnknownAgent``, and ``NotAllowed``, ``UnknownProvider`` or ``UnknownTool`` for what the App does not
        allow.

        >>> app.agent("support").tools, app.agent(None).name
        (['add'], 'support')
        """
        return self._door.agent(asked, parameters or {}, own_system)

    def tools(self, names: Sequence[str]) -> list[Tool[..., Any]]:
        """Tools by name. Raises ``UnknownTool``.

        >>> app.tools(["add"])[0](1, 2)
        3
        """
        for name in names:
            if name not in self._tools:
                raise UnknownTool(f"The worker has no tool {name!r}.")
        return [self._tools[name] for name in names]

    async def provider(self, name: str) -> Provider:
        """The provider of this name, opened once. Raises ``UnknownProvider``, ``MissingPackage``.

        The first one of its kind loads its SDK, which takes a second: in a thread, so that other turns go on.

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
        """Where sessions are archived: the App's store, or the one that ``url`` (``ANTIPHON_ARCHIVE``) names.

        Raises ``SettingsError`` where there are two, or where the URL names none.

        >>> from antiphon.stores import MemoryStore
        >>> App(agents=[support], store=MemoryStore()).archive() is not None, app.archive()
        (True, None)
        """
        if url and self._store is not None:
            raise SettingsError(
                "ANTIPHON_ARCHIVE (--archive) names a store, and the App has one too (store=…): give one of them."
            )
        if self._archive is None and (url or self._store):
            self._archive = Archive(self._store or store_at(url))
        return self._archive

    async def preload(self) -> None:
        """Open the providers of the App's agents, or without agents those whose key is set, before the first turn.

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
        """Close the connections to the model services, and the archive that a URL named.

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
        raise SettingsError(f"{name}= is a list, not {type(things).__name__}.")
    return things


def _checked_providers(providers: Any) -> dict[str, Provider]:
    if not isinstance(providers, Mapping):
        raise SettingsError(
            f"providers= is a dictionary of providers by name, not {type(providers).__name__}."
        )
    for name, provider in providers.items():
        if not isinstance(name, str) or not callable(getattr(provider, "stream", None)):
            raise SettingsError(
                f"providers= has {provider!r} under {name!r}: it takes a provider, such as OpenAIChat(base_url=…)."
            )
    return dict(providers)


def _what(tool: Tool[..., Any]) -> tuple[Any, ...]:
    """What a tool does and how: agents may each make one of the same function."""
    return tool.function, tool.description, tool.timeout, tool.at_most_once, tool.strict


def load_app(path: str) -> App:
    """The App that ``module:attribute`` names; an empty one for an empty path. Raises ``SettingsError``."""
    if not path:
        return App()
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        app = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, AttributeError) as exc:
        raise SettingsError(f"ANTIPHON_APP (--app) names {path!r}, which cannot be loaded: {exc}.") from exc
    if not isinstance(app, App):
        raise SettingsError(
            f"ANTIPHON_APP (--app) names {path!r}, which is {type(app).__name__}, not an App."
        )
    return app
