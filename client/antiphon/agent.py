"""Agents: a model with its instructions and tools, and where its turns run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast
from weakref import WeakValueDictionary

from antiphon.errors import UsageError
from antiphon.input.ids import check_queue, new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.options import ListOptions, OpeningOptions
from antiphon.input.parameters import check_params
from antiphon.input.request import AgentSpec
from antiphon.input.values import duration, plain
from antiphon.redis.prefix import prefix_of
from antiphon.session.listing import AsyncSessionList, SessionList, wanted
from antiphon.session.opening import opening_of
from antiphon.session.runtime import (
    DEFAULT_TTL_SECONDS,
    Opening,
    Runtime,
    SessionRef,
    local_runtime,
)
from antiphon.session.session import Session
from antiphon.session.synchronous import spelled_out
from antiphon.tools import Tool

if TYPE_CHECKING:
    from antiphon.redis.connections import ConnectionsByLoop
    from antiphon.stores.base import SessionStore
    from antiphon.testing import Script
    from antiphon.window import Window

__all__ = ["Agent"]


class Agent:
    """A model with its instructions and tools. Making one connects to nothing.

    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> agent.session().run("Hello").text
    'You said: Hello'

    ``provider`` is the name of a model service (``openai``, ``openai-chat``, ``anthropic``, ``scripted``), or an
    ``antiphon.testing.script``. Without ``redis`` turns run in this process; with it (a URL, a list of URLs or a
    redis-py client) on workers, which know the tools by their names; ``prefix`` is
    the first part of their keys, by default ``ANTIPHON_PREFIX`` or ``ant``. ``store`` keeps the sessions of an agent
    of this process: they are saved after every turn. ``window`` is the number of turns of a long history that the
    model is sent, a ``Window`` or a ``Summary``. ``queue`` is the workers' queue for its turns, unless their session
    has one of its own. Other keywords (``temperature``, ``max_tokens``, …) go to the model with every turn; keys and
    addresses of services do not: ``UsageError`` says where they belong.
    """

    def __init__(
        self,
        provider: str | Script | Any,
        model: str,
        *,
        name: str | None = None,
        system: str | None = None,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        redis: Any = None,
        prefix: str | None = None,
        store: SessionStore | None = None,
        window: int | Window | None = None,
        max_steps: int | None = None,
        queue: str | None = None,
        runtime: Runtime | None = None,
        **params: Any,
    ) -> None:
        _check_provider(provider)
        if not isinstance(model, str) or not model:
            raise UsageError(f"model= is the name of a model, not {model!r}.")
        _check_text(name, "name")
        _check_text(system, "system")
        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            raise UsageError(f"max_steps= is a whole number, at least 1, not {max_steps!r}.")
        if redis is not None and runtime is not None:
            raise UsageError("Give redis= or runtime=, not both.")
        if prefix is not None and redis is None:
            raise UsageError("prefix= is that of the keys in Redis: give redis= as well.")
        self.provider = provider
        self.model = model
        self.name = name
        self.system = system
        self.tools = _tools(tools)
        self.redis = redis
        self._prefix = prefix if prefix is None else prefix_of(prefix)
        self.store = store
        self.window = _window(window)
        self.max_steps = max_steps
        self.queue = None if queue is None else check_queue(queue)
        check_params(params)
        self.params = plain(params, "params")
        self._runtime = runtime

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Agent(provider={self._provider_name!r}, model={self.model!r}{name})"

    @spelled_out
    def session(
        self,
        session_id: str | None = None,
        *,
        ttl: float | timedelta | None = DEFAULT_TTL_SECONDS,
        store: SessionStore | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Session:
        """The session of this id, a new one where there is none. Nothing is read or written before it is used.

        ``system``, ``metadata`` and ``queue`` (where its turns go) take the place of what the session has,
        ``variables`` are only set where it has none of that name. ``messages`` begin a new history: on a session
        that has one, the first use raises ``SessionExists``. ``tenant`` says whose session it is: where it is
        another's, the first use raises ``UsageError``. ``ttl`` (seconds or a timedelta, 30 days by default) is how
        long the session is kept without being used; None keeps it.

        >>> session = agent.session("user-123", system="You help {user}.", variables={"user": "Alice"})
        >>> session.run("Hello").text
        'You said: Hello'
        """
        return self.open_session(session_id, opening_of(**opening), ttl=duration(ttl, "ttl"), store=store)

    @spelled_out
    def sessions(self, **which: Unpack[ListOptions]) -> SessionList:
        """The sessions that are kept where this agent's are, those of other agents too.

        As ``Client.sessions``. Those of a store are in no particular order.

        >>> response = agent.session("user-123", metadata={"plan": "free"}).run("Hello")
        >>> [info.session_id for info in agent.sessions(metadata={"plan": "free"})]
        ['user-123']
        """
        return SessionList(self.sessions_async(**which))

    @spelled_out
    def sessions_async(self, **which: Unpack[ListOptions]) -> AsyncSessionList:
        """``sessions``, for ``async for``.

        >>> response = await agent.session("user-7", metadata={"plan": "paid"}).run_async("Hello")
        >>> [info.messages async for info in agent.sessions_async(metadata={"plan": "paid"})]
        [2]
        """
        return AsyncSessionList(
            lambda after, page: self.runtime.sessions(self.store, after, page), wanted(**which)
        )

    def spec(self) -> AgentSpec:
        """The agent as it travels with a turn. Raises ``UsageError`` where it cannot.

        >>> agent.spec().model
        'any'
        """
        if not isinstance(self.provider, str):
            raise UsageError(
                f"This agent's provider is {self._provider_name}, an object of this process, which cannot travel "
                "to a worker: give the provider's name, and the object to the worker's App(providers=…)."
            )
        return self.described()

    def described(self) -> AgentSpec:
        """The agent in plain data, whatever its provider is.

        >>> agent.described().name
        'parrot'
        """
        return AgentSpec(
            provider=self._provider_name,
            model=self.model,
            name=self.name,
            system=self.system,
            tools=[tool.name for tool in self.tools],
            params=self.params,
            max_steps=self.max_steps,
            window=self.window,
            queue=self.queue,
        )

    @property
    def runtime(self) -> Runtime:
        """What runs this agent's turns. Raises ``MissingPackage``.

        >>> agent.runtime is Agent(provider="scripted", model="other").runtime  # both of this process
        True
        """
        if self._runtime is None:
            self._runtime = (
                local_runtime() if self.redis is None else _redis_runtime(self.redis, self._prefix)
            )
        return self._runtime

    @property
    def _provider_name(self) -> str:
        return (
            self.provider
            if isinstance(self.provider, str)
            else getattr(self.provider, "name", None) or type(self.provider).__name__.lower()
        )

    def open_session(
        self,
        session_id: str | None,
        opening: Opening,
        *,
        ttl: float | None,
        store: SessionStore | None = None,
    ) -> Session:
        """A handle of a session, with what is to be done when it is first used."""

        known = new_session_id() if session_id is None else checked_session_id(session_id)
        if self.redis is not None and (store or self.store) is not None:
            raise UsageError(
                "store= belongs to agents of this process; workers keep their sessions in Redis."
            )
        ref = SessionRef(known, store or self.store, ttl)
        return Session(self, ref, opening)


def _check_provider(provider: object) -> None:
    if isinstance(provider, str) and provider:
        return
    from antiphon.testing import Script

    if not isinstance(provider, Script) and not callable(getattr(provider, "stream", None)):
        raise UsageError(
            "provider= is the name of a model service, such as 'openai', or an antiphon.testing.script, "
            f"not {provider!r}."
        )


def _check_text(value: object, name: str) -> None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name}= is text, not {type(value).__name__}.")


def _tools(tools: Any) -> list[Tool[..., Any]]:
    if not isinstance(tools, Iterable):
        raise UsageError(f"tools= is a list of functions or tools, not {tools!r}: tools=[…].")
    return [one if isinstance(one, Tool) else Tool(one) for one in cast("Iterable[Any]", tools)]


def _window(window: int | Window | None) -> Any:
    from antiphon.window import window_of

    window_of(window)
    return window


# Agents on one URL share their connections, which live at least as long as the event loops that use them.
_connections: WeakValueDictionary[tuple[str, str], ConnectionsByLoop] = WeakValueDictionary()


def _redis_runtime(redis: Any, prefix: str | None) -> Runtime:
    from antiphon.redis.connections import ConnectionsByLoop
    from antiphon.redis.runtime import RedisRuntime

    first = prefix_of(prefix)
    known = (redis, first) if isinstance(redis, str) else None
    connections = _connections.get(known) if known else None
    if connections is None:
        connections = ConnectionsByLoop(redis, first)
        if known:
            _connections[known] = connections
    return RedisRuntime(connections.here, connections.aclose)
