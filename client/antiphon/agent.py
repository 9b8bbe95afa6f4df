"""``Agent``: a model with its instructions and tools."""

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
    """A model with its instructions and tools. Creating an agent opens no connections.

    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> agent.session().run("Hello").text
    'You said: Hello'

    ``provider`` is the name of a model service (``openai``, ``openai-chat``, ``anthropic``, ``scripted``), or an
    ``antiphon.testing.script``. Without ``redis``, turns run in this process. With ``redis`` (a URL, a list of URLs
    or a redis-py client), turns run on workers, which find the tools by name; ``prefix`` is then the first part of the
    keys, by default ``ANTIPHON_PREFIX`` or ``ant``. ``store`` saves the sessions of an agent in this process after
    every turn. ``window`` limits the history that the model receives: a number of turns, a ``Window`` or a
    ``Summary``. ``queue`` is the workers' queue for turns whose session has none. Other keywords (``temperature``,
    ``max_tokens``, …) go to the model with every turn. API keys and addresses of services are not accepted:
    ``UsageError`` says where to set them.
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
            raise UsageError(f"model= must be the name of a model, not {model!r}.")
        _check_text(name, "name")
        _check_text(system, "system")
        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            raise UsageError(f"max_steps= must be a whole number of at least 1, not {max_steps!r}.")
        if redis is not None and runtime is not None:
            raise UsageError("Give redis= or runtime=, not both.")
        if prefix is not None and redis is None:
            raise UsageError("prefix= only applies to Redis: give redis= as well, or leave prefix= out.")
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
        """Return the session with this id, or a new one. Nothing is read or written before its first use.

        ``system`` and ``queue`` (where the turns go) replace the session's values, and ``metadata`` is merged into
        the session's. ``variables`` sets only the names that the session does not have yet. ``messages`` starts a new
        history: if the session already has one, the first use raises ``SessionExists``. If the session belongs to
        another ``tenant``, the first use raises ``UsageError``. ``ttl`` (seconds or a timedelta, by default 30 days)
        is how long the session is kept without being used; None keeps it forever.

        >>> session = agent.session("user-123", system="You help {user}.", variables={"user": "Alice"})
        >>> session.run("Hello").text
        'You said: Hello'
        """
        return self.open_session(session_id, opening_of(**opening), ttl=duration(ttl, "ttl"), store=store)

    @spelled_out
    def sessions(self, **which: Unpack[ListOptions]) -> SessionList:
        """List the sessions stored in the same place as this agent's, including those of other agents.

        Keywords as in ``Client.sessions``. The sessions of a ``store`` are in no particular order.

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
        """Return the agent in the form that is sent with a turn. Raises ``UsageError`` if it cannot be sent.

        >>> agent.spec().model
        'any'
        """
        if not isinstance(self.provider, str):
            raise UsageError(
                f"This agent's provider is {self._provider_name}, an object in this process that cannot be sent to a "
                "worker: use the provider's name here, and pass the object to the worker's App(providers=…)."
            )
        return self.described()

    def described(self) -> AgentSpec:
        """Return the agent as plain data. Its provider may also be an object.

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
        """The runtime that runs this agent's turns. Raises ``MissingPackage``.

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
        """Return a session to which ``opening`` is applied on its first use."""

        known = new_session_id() if session_id is None else checked_session_id(session_id)
        if self.redis is not None and (store or self.store) is not None:
            raise UsageError("store= works only without redis=: workers store their sessions in Redis.")
        ref = SessionRef(known, store or self.store, ttl)
        return Session(self, ref, opening)


def _check_provider(provider: object) -> None:
    if isinstance(provider, str) and provider:
        return
    from antiphon.testing import Script

    if not isinstance(provider, Script) and not callable(getattr(provider, "stream", None)):
        raise UsageError(
            "provider= must be the name of a model service, such as 'openai', or an antiphon.testing.script, "
            f"not {provider!r}."
        )


def _check_text(value: object, name: str) -> None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name}= must be text, not {type(value).__name__}.")


def _tools(tools: Any) -> list[Tool[..., Any]]:
    if not isinstance(tools, Iterable):
        raise UsageError(f"tools= must be a list of functions or tools, not {tools!r}: use tools=[…].")
    return [one if isinstance(one, Tool) else Tool(one) for one in cast("Iterable[Any]", tools)]


def _window(window: int | Window | None) -> Any:
    from antiphon.window import window_of

    window_of(window)
    return window


# Agents with the same URL share connections. These stay open at least as long as the event loops that use them.
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
