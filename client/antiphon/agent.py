"""``Agent``: a model with its instructions and tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import UsageError
from antiphon.handoffs import Handoff, checked_handoffs, with_targets
from antiphon.hooks import Hook, hooks_of
from antiphon.input.ids import check_queue, new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.limits import check_size
from antiphon.input.messages import MessageLike
from antiphon.input.options import ListOptions, OpeningOptions
from antiphon.input.parameters import check_params
from antiphon.input.request import LIMITED, WAITS, WITH_FALLBACK, WITH_HANDOFFS, AgentSpec
from antiphon.input.values import SessionWord, lifetime, plain
from antiphon.mcp import MCP, beginning_of, checked_servers
from antiphon.model import AtLimit, CallerTool, FallbackModel, Retry, Timeouts
from antiphon.model.budget import Budget, checked_budgets
from antiphon.model.resilience import checked_fallback, checked_retry, checked_timeouts
from antiphon.model.revisions import Rollout, Takes, checked_rollout
from antiphon.model.usage import NO_LIMITS, Limits, checked_limits
from antiphon.redis.cells import prefix_of
from antiphon.revisions import checked_label, revision_of
from antiphon.session.async_session import AsyncSession
from antiphon.session.listing import AsyncSessionList, list_query
from antiphon.session.opening import opening_of
from antiphon.session.runtime import (
    Opening,
    Runtime,
    SessionRef,
    local_runtime,
)
from antiphon.session.session import Session, SessionList
from antiphon.tools import Tool
from antiphon.tools.approval import AgentRule, ApprovalRule, ToolRule, agent_rule
from antiphon.tools.caller import caller_tools as declared_tools
from antiphon.tools.children import ChildTool

if TYPE_CHECKING:
    from antiphon.memory.declaration import Memory
    from antiphon.redis.connections import ConnectionsByLoop
    from antiphon.stores.base import SessionStore
    from antiphon.testing import Script
    from antiphon.window import Window


class Agent:
    """A model with its instructions and tools. Creating an agent opens no connections.

    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> agent.session().run("Hello").text
    'You said: Hello'

    ``provider`` is the name of a model service (``openai``, ``openai-chat``, ``anthropic``, ``scripted``), or an
    ``antiphon.testing.script``. Without ``redis``, turns run in this process. With ``redis`` (a URL, a list of URLs
    or a redis-py client), turns run on workers, which find the tools by name; ``prefix`` is then the first part of
    the keys, by default ``ANTIPHON_PREFIX`` or ``ant``. ``store`` saves the sessions of an agent in this process
    after every turn. ``window`` limits the history that the model receives: a number of turns, a ``Window`` or a
    ``Summary``. ``queue`` is the workers' queue for turns whose session has none. ``retry`` (an
    ``antiphon.model.Retry``) determines when a turn whose model service fails is retried, and ``timeouts`` (an
    ``antiphon.model.Timeouts``) how long model calls may take. ``fallback`` are the models that continue the turn if
    this one fails: ``"provider/model"``, or Agents, whose provider, model and parameters are used. ``limits`` (an
    ``antiphon.model.Limits``) sets what a turn and a session may use; ``max_steps`` is its ``steps``. ``approval``
    determines which tool calls wait for an approval: True for all, names of tools, or a function of the call.
    ``approval_timeout`` and ``approval_at_limit`` are those of ``@tool``. ``caller_tools`` are client-side tools,
    whose results the client supplies. ``memory`` (an ``antiphon.memory.Memory``) lets an agent of a worker's App
    recall earlier turns. ``label`` names its ``revision`` for people; change it when the code of a tool changes.
    ``hooks`` are functions that run before and after turns, model calls, tools and steps (see ``antiphon.hooks``).
    ``rollout`` (``"auto_upgrade"``, ``"pinned"`` or an ``antiphon.model.Rollout``) determines which revision the
    turns of a session take. ``handoffs`` are the agents that this one may pass a turn to: Agents, names of agents of
    the workers' App, or ``antiphon.handoffs.Handoff``. ``mcp`` are servers whose tools the model may call:
    ``antiphon.mcp.MCP``, or names of servers of the workers' App. ``budgets`` (of ``antiphon.model.Budget``) apply to
    all turns of an agent of a worker's App, or of this process. Other keywords (``temperature``, ``max_tokens``, …)
    go to the model with every turn. API keys and addresses of services raise a ``UsageError`` that describes where to
    set them.
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
        retry: Retry | None = None,
        timeouts: Timeouts | None = None,
        fallback: Iterable[str | FallbackModel | Agent] = (),
        limits: Limits | None = None,
        approval: AgentRule = False,
        approval_timeout: float | timedelta | None = None,
        approval_at_limit: AtLimit = "reject",
        caller_tools: Iterable[CallerTool | Mapping[str, Any] | Callable[..., Any]] = (),
        memory: Memory | None = None,
        label: str | None = None,
        hooks: Iterable[Hook[Any] | Callable[..., Any]] = (),
        budgets: Iterable[Budget] = (),
        rollout: Takes | Rollout | None = None,
        handoffs: Iterable[Agent | str | Handoff] = (),
        mcp: Iterable[MCP | str] = (),
        runtime: Runtime | None = None,
        **params: Any,
    ) -> None:
        _check_provider(provider)
        _check_model(model)
        _check_redis(redis, prefix, runtime)
        self.provider, self.model, self.redis = provider, model, redis
        self.name, self.system = _text(name, "name"), _text(system, "system")
        self.tools, self._prefix = _tools(tools), None if prefix is None else prefix_of(prefix)
        self.store, self.window, self.limits = _store(store), _window(window), checked_limits(limits)
        self.max_steps, self.retry = _most_steps(max_steps, self.limits), checked_retry(retry)
        self.fallback, self.timeouts = _fallbacks(fallback), checked_timeouts(timeouts)
        self.caller_tools = declared_tools(caller_tools, self.tools)
        self.memory, self.label, self._runtime = _memory(memory), checked_label(label), runtime
        self.hooks, self.budgets = hooks_of(hooks), checked_budgets(budgets)
        self.rollout, self.queue = checked_rollout(rollout), None if queue is None else check_queue(queue)
        self.handoffs = checked_handoffs(handoffs, self.name, [*self.tools, *self.caller_tools])
        names = [*(one.name for one in self.tools), *(one.tool for one in self.handoffs)]
        self.mcp, self.params = checked_servers(mcp, names, self.caller_tools), _params(params)
        names += map(beginning_of, self.mcp)
        self.approval = agent_rule(approval, approval_timeout, approval_at_limit, names)

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"Agent(provider={self._provider_name!r}, model={self.model!r}{name})"

    def session(
        self,
        session_id: str | None = None,
        *,
        ttl: float | timedelta | UnsetType | None = UNSET,
        store: SessionStore | None = None,
        system: str | None = None,
        messages: Sequence[MessageLike] | None = None,
        variables: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        queue: str | None = None,
    ) -> Session:
        """Return the session with this id, or a new one. Nothing is read or written before its first use.

        ``system`` and ``queue`` (where the turns go) replace the session's values, and ``metadata`` is merged into
        the session's. ``variables`` sets only the names that the session does not have yet. ``messages`` starts a new
        history: if the session already has one, the first use raises ``SessionExists``. If the session belongs to
        another ``tenant``, or to none, every use raises ``WrongTenant``. With a ``tenant``, reading writes nothing.
        ``ttl`` (seconds or a timedelta) is how long the session is kept without being used; None keeps it forever. The
        last ``ttl`` given applies from the next turn or change; by default, the session is kept for 30 days.

        >>> session = agent.session("user-123", system="You help {user}.", variables={"user": "Alice"})
        >>> session.run("Hello").text
        'You said: Hello'
        """
        opening = opening_of(
            system=system,
            messages=messages,
            variables=variables,
            metadata=metadata,
            tenant=tenant,
            queue=queue,
        )
        return Session(self.open_session(session_id, opening, ttl=lifetime(ttl), store=store))

    def session_async(
        self,
        session_id: str | None = None,
        *,
        ttl: float | timedelta | UnsetType | None = UNSET,
        store: SessionStore | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> AsyncSession:
        """Return ``session`` in its asynchronous form. The call itself is not awaited.

        >>> session = agent.session_async("user-123")
        >>> (await session.run("Hello")).text
        'You said: Hello'
        """
        return self.open_session(session_id, opening_of(**opening), ttl=lifetime(ttl), store=store)

    def sessions(
        self,
        *,
        tenant: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        state: SessionWord | None = None,
        search: str | None = None,
        parent: str | None = None,
        children: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> SessionList:
        """List the sessions stored in the same place as this agent's, including those of other agents.

        Keywords as in ``Client.sessions``. The sessions of a ``store`` are in no particular order.

        >>> response = agent.session("user-123", metadata={"plan": "free"}).run("Hello")
        >>> [info.session_id for info in agent.sessions(metadata={"plan": "free"})]
        ['user-123']
        """
        which = ListOptions(
            tenant=tenant, metadata=metadata, state=state, search=search, parent=parent, children=children,
            limit=limit, cursor=cursor,
        )  # fmt: skip
        return SessionList(self.sessions_async(**which))

    def sessions_async(self, **which: Unpack[ListOptions]) -> AsyncSessionList:
        """``sessions``, for ``async for``.

        >>> response = await agent.session("user-7", metadata={"plan": "paid"}).run_async("Hello")
        >>> [info.messages async for info in agent.sessions_async(metadata={"plan": "paid"})]
        [2]
        """
        return AsyncSessionList(
            lambda after, page: self.runtime.sessions(self.store, after, page), list_query(**which)
        )

    @property
    def revision(self) -> str:
        """The agent's revision: a hash of everything that changes how it behaves, equal in every process.

        It changes with the name, provider, model, parameters, system prompt, tools (their descriptions, schemas and
        approval rules), client-side tools, approvals, window, limits, fallbacks, memory, hooks, hand-offs, MCP servers
        and ``label``. The queue, retries, time-outs, budgets, rollout and the addresses of MCP servers do not change
        it. Functions count by their names: change the ``label`` when only the code of a tool changes.

        >>> agent.revision == Agent(provider="scripted", model="any", name="parrot").revision
        True
        >>> agent.revision == Agent(provider="scripted", model="any", name="parrot", label="v2").revision
        False
        """
        return revision_of(self)

    def spec(self) -> AgentSpec:
        """Return the agent in the form that is sent with a turn. Raises ``UsageError`` if it cannot be sent.

        The agents of its ``handoffs`` are sent with it.

        >>> agent.spec().model
        'any'
        """
        return with_targets(self) if self.handoffs else self.alone()

    def alone(self) -> AgentSpec:
        """Return what ``spec`` returns, without the agents of ``handoffs``.

        >>> agent.alone().model
        'any'
        """
        if not isinstance(self.provider, str):
            raise UsageError(
                f"This agent's provider is {self._provider_name}, an object in this process that cannot be sent to a "
                "worker: pass the agent to the worker's App(agents=…) and submit its name, or use the name of a "
                "provider that the App has in providers=…."
            )
        for model in self.fallback:
            if isinstance(model, Agent):
                model.spec()
        self._check_memory()
        if self.hooks:
            raise UsageError(
                "This agent has hooks=, functions that cannot be sent to a worker: pass the agent to the worker's "
                "App(agents=…) and submit its name, or pass the hooks to App(hooks=…)."
            )
        if self.mcp:
            raise UsageError(
                "An agent with mcp= cannot be sent: pass it to the worker's App(agents=…) and submit its name."
            )
        if self.budgets:
            raise UsageError(
                "An agent with budgets= cannot be sent: pass it to the worker's App(agents=…) and submit its name."
            )
        if callable(self.approval.rule):
            raise UsageError(
                "This agent's approval= is a function, which cannot be sent to a worker: use names of tools here, or "
                "pass the agent to the worker's App(agents=…) and submit its name."
            )
        return self.described()

    def described(self) -> AgentSpec:
        """Return the agent as plain data, even if its provider is an object. An approval function becomes True.

        >>> agent.described().name
        'parrot'
        """
        limits = None if self.limits is None else msgspec.structs.replace(self.limits.named(), steps=None)
        limits = None if limits == NO_LIMITS else limits  # steps are sent as max_steps
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
            retry=self.retry,
            timeouts=self.timeouts,
            fallback=[_fallback(model) for model in self.fallback],
            limits=limits,
            approval=self.approval.plain,
            approval_timeout=self.approval.seconds,
            approval_at_limit=self.approval.at_limit,
            caller_tools=self.caller_tools,
            handoffs=[one.spec() for one in self.handoffs],
            version=self._version(limits),
        )

    def _version(self, limits: Limits | None) -> int:
        if self.handoffs:
            return WITH_HANDOFFS
        if self.fallback or self.timeouts:
            return WITH_FALLBACK
        if limits:
            return LIMITED
        return WAITS if self.caller_tools or self.approval != ApprovalRule() else 1

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | timedelta | None = None,
        approval: ToolRule = False,
        deltas: bool = False,
    ) -> ChildTool:
        """Return the agent as a tool for other agents. Each call runs as a child turn.

        The child runs in a new session, on any worker that has the agent, and sees only the ``input`` of the call. The
        parent turn is suspended and occupies no worker. After ``timeout`` (seconds or a timedelta) the child is
        cancelled and the call fails. ``name`` and ``description`` are what the model sees, by default the agent's name.
        ``approval`` is that of ``antiphon.tool``. The parent's stream contains the child's events as
        ``child_event``, its deltas only with ``deltas``. Raises ``UsageError`` if the agent has no name.

        >>> writer = Agent("scripted", "any", name="writer", tools=[agent.as_tool(timeout=600)])
        >>> writer.tools[0].name
        'parrot'
        """
        return ChildTool(
            self, name=name, description=description, timeout=timeout, approval=approval, deltas=deltas
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

    def _check_memory(self) -> None:
        if self.memory is not None:
            raise UsageError(
                "An agent with memory= runs only on workers: pass it to their App(agents=…) and submit its name."
            )

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
        ttl: float | UnsetType | None,
        store: SessionStore | None = None,
    ) -> AsyncSession:
        """Return a session to which ``opening`` is applied on its first use."""

        self._check_memory()
        known = new_session_id() if session_id is None else checked_session_id(session_id)
        if self.redis is not None and (store or self.store) is not None:
            raise UsageError("store= works only without redis=: workers store their sessions in Redis.")
        ref = SessionRef(known, _store(store) or self.store, ttl, opening.tenant)
        return AsyncSession(self, ref, opening)


def _check_provider(provider: object) -> None:
    if isinstance(provider, str) and provider:
        return
    from antiphon.testing import Script

    if not isinstance(provider, Script) and not callable(getattr(provider, "stream", None)):
        raise UsageError(
            "provider= must be the name of a model service, such as 'openai', or an antiphon.testing.script, "
            f"not {provider!r}."
        )


def _check_model(model: object) -> None:
    if not isinstance(model, str) or not model:
        raise UsageError(f"model= must be the name of a model, not {model!r}.")


def _store(store: Any) -> SessionStore | None:
    if store is None:
        return None
    from antiphon.stores.base import SessionStore

    if not isinstance(store, SessionStore):
        raise UsageError(f"store= must be a SessionStore, such as SQLiteStore('sessions.db'), not {store!r}.")
    return store


def _memory(memory: Any) -> Memory | None:
    if memory is None:
        return None
    from antiphon.memory.declaration import checked_memory

    return checked_memory(memory)


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name}= must be text, not {type(value).__name__}.")
    return value


def _check_redis(redis: Any, prefix: str | None, runtime: Runtime | None) -> None:
    if redis is not None and runtime is not None:
        raise UsageError("Give redis= or runtime=, not both.")
    if prefix is not None and redis is None:
        raise UsageError("prefix= only applies to Redis: give redis= as well, or leave prefix= out.")


def _fallbacks(fallback: Any) -> list[Any]:
    models = checked_fallback(fallback)
    check_size("fallbacks", len(models), "fallback=")
    return models


def _fallback(model: FallbackModel | Agent) -> FallbackModel:
    if isinstance(model, FallbackModel):
        return model
    spec = model.described()
    return FallbackModel(spec.provider, spec.model, spec.params)


def _params(params: dict[str, Any]) -> dict[str, Any]:
    check_params(params)
    return plain(params, "params")


def _tools(tools: Any) -> list[Tool[..., Any]]:
    if not isinstance(tools, Iterable):
        raise UsageError(f"tools= must be a list of functions or tools, not {tools!r}: use tools=[…].")
    return [one if isinstance(one, Tool) else Tool(one) for one in cast("Iterable[Any]", tools)]


def _most_steps(max_steps: int | None, limits: Limits | None) -> int | None:
    if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
        raise UsageError(f"max_steps= must be a whole number of at least 1, not {max_steps!r}.")
    if limits is None or limits.steps is None:
        return max_steps
    if max_steps is not None:
        raise UsageError("Give max_steps= or limits=Limits(steps=…), not both: they are the same limit.")
    return limits.steps


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
