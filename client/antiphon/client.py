"""Submitting turns and following sessions from any service.

async with AsyncClient("redis://localhost:6379/0") as client:
    turn = await client.submit("user-123", "Hello", agent="support")
    async for event in turn.stream():
        ...
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import AgentError, SessionNotFound, UsageError
from antiphon.events import Event
from antiphon.input.ids import (
    SessionId,
    TurnId,
    check_tenant,
    new_session_id,
    session_id,
    tenant_id,
    turn_id,
)
from antiphon.input.messages import Input
from antiphon.input.options import ListOptions, OpeningOptions, spelled_out
from antiphon.input.request import Travelling
from antiphon.input.values import is_a, lifetime, page_of_last
from antiphon.model import Message, Response, Status, decode_history
from antiphon.redis.all_events import AllEvents, FollowedEvent
from antiphon.redis.archived import whole_snapshot
from antiphon.redis.cells import ConnectionOptions
from antiphon.redis.connections import Connections
from antiphon.redis.deployment import TenantLimits, set_tenant_limits, tenant_limits
from antiphon.redis.edits import found_in
from antiphon.redis.facts import AsyncFacts, Fact, Facts
from antiphon.redis.failed import FailedFilter, FailedTurn, list_failed, requeue_many
from antiphon.redis.fields import decode_field
from antiphon.redis.listing import list_due, list_sessions, list_suspended, list_turns
from antiphon.redis.results import as_completed, results
from antiphon.redis.runtime import RedisRuntime
from antiphon.redis.schedules import AsyncSchedules, Schedule, Schedules
from antiphon.redis.submission import Submission, submit_all
from antiphon.redis.subscription import Subscription
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.turn_records import turn_infos
from antiphon.redis.webhooks import AsyncWebhooks, Webhook, Webhooks
from antiphon.session.background import call, iterate, on_background
from antiphon.session.listing import AsyncSessionList, SessionList, list_query
from antiphon.session.opening import opening_of
from antiphon.session.runtime import SessionAgent, SessionRef
from antiphon.session.session import Session
from antiphon.session.turn import Turn
from antiphon.session.turn_info import TurnInfo
from antiphon.session.work import ClientSubmitOptions
from antiphon.wire.cell import DEFAULT_QUEUE
from antiphon.wire.lists.inspection import DueTurn
from antiphon.wire.suspension import SuspendedTurn

__all__ = [
    "DEFAULT_QUEUE",
    "AllEvents",
    "AsyncClient",
    "AsyncFacts",
    "AsyncSchedules",
    "AsyncWebhooks",
    "Client",
    "DueTurn",
    "Fact",
    "Facts",
    "FailedTurn",
    "FollowedEvent",
    "Schedule",
    "Schedules",
    "SessionSnapshot",
    "Submission",
    "SuspendedTurn",
    "TenantLimits",
    "Webhook",
    "Webhooks",
]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class SessionSnapshot(msgspec.Struct):
    """A consistent view of a session.

    ``messages`` are the messages of the finished turns. ``turn_id`` is the running turn, or None. Subscribe after
    ``cursor`` to receive all events of the running turn and of the turns after it. ``pending`` are the turns that have
    not ended, with their input and status, in the order in which they run; delayed ones come last.
    """

    session_id: SessionId
    messages: list[Message]
    cursor: int
    turn_id: TurnId | None
    pending: list[TurnInfo]


class AsyncClient:
    """Submits turns to workers and follows sessions. It connects to Redis on first use.

    ``redis`` is a URL, a list of URLs (cells) or a redis-py client. Use each client in one event loop only. With the
    workers' ``archive``, a store or its URL, archived sessions are read whole before their next turn, and listed.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> turn = await client.submit("user-123", "Hello", agent=agent)
    >>> (await turn.result(timeout=10)).text
    'You said: Hello'
    """

    @spelled_out
    def __init__(self, redis: Any, **options: Unpack[ConnectionOptions]) -> None:
        self.connections = Connections(redis, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Turns keep running; calls that still read or wait raise ``ClientClosed``.

        >>> await client.aclose()
        """
        await self.connections.aclose()

    @spelled_out
    async def submit(
        self,
        session: str,
        text: Input,
        **options: Unpack[ClientSubmitOptions],
    ) -> AsyncTurn:
        """Submit a turn. When this returns, the turn is stored and will run even if the caller stops.

        With a ``key``, repeating the call in the same session returns the first turn instead of a second one, until
        7 days after that turn's end; a different text raises ``KeyReused``. With ``retry_failed=True`` too, a turn of
        that key that has failed runs again, as ``AsyncTurn.requeue`` does it. ``delay``, ``timeout`` (for each attempt,
        from its start) and ``ttl`` are in seconds or a timedelta. ``ttl`` is how long the session is kept after its
        last turn, None for ever: the last one that was given counts, for turns and sessions alike, and without any it
        is 30 days. With a ``schema`` the answer is structured output, as ``Session.run`` describes.

        If the session has a turn, this one waits behind all others. ``if_busy="reject"`` raises ``SessionBusy``
        instead. ``"interrupt"`` and ``"rollback"`` cancel the running turn, keeping what it said or nothing, and this
        one runs next. ``"steer"`` lets the running turn take the text into its next model call: ``info()`` says
        ``steered_into``, and the result is that turn's. If that turn ends first, this is a turn of its own.

        With the ``cursor`` of a ``snapshot`` the turn is accepted only if nothing has happened in the session since.
        Otherwise ``SessionChanged`` is raised.

        The turn goes to the first queue that is set: ``queue``, the session's, that of ``agent``, of the session's
        agent, or of this client. If only ``queue`` is set, it becomes the session's. The session keeps its ``tenant``:
        another one raises ``WrongTenant``, and a limit of the tenant ``TenantLimit``. A turn of ``priority`` ``"high"``
        goes before others of its tenant, and ``"low"`` behind them, but never out of its session's order. Also raises
        ``InvalidId``, ``InvalidMessage`` and ``StoreError``.

        >>> first = await client.submit("user-456", "Pay", agent=agent, key="payment-1", tenant="acme")
        >>> first.id == (await client.submit("user-456", "Pay", agent=agent, key="payment-1")).id
        True
        """
        return await Submission(session, text, **options).submit(self.connections)

    async def submit_many(self, submissions: Iterable[Submission]) -> list[AsyncTurn | AgentError]:
        """Submit many turns in order, in pipelines. Each is accepted or refused by itself.

        The answer has an entry for each submission: its turn, or the error that ``submit`` would raise. After a
        ``StoreUnavailable`` the turn may have been accepted: with a ``key``, submit it again. ``results`` and
        ``as_completed`` take the answer as it is.

        >>> from antiphon.client import Submission
        >>> batch = [Submission(id, text, agent=agent, key="1") for id, text in (("a", "One"), ("b", "Two"))]
        >>> turns = await client.submit_many(batch)
        >>> [response.text async for response in client.results(turns)]
        ['You said: One', 'You said: Two']
        """
        wanted = list(submissions)
        for one in wanted:
            if not is_a(one, Submission):
                raise UsageError(f"submit_many needs Submission(session, text, …), not {one!r:.80}.")
        return await submit_all(self.connections, wanted)

    async def turn(self, turn: str, *, schema: Any = None, tenant: str | None = None) -> AsyncTurn:
        """Find a turn by its id. Raises ``TurnNotFound``, and ``WrongTenant`` if it is not a turn of ``tenant``.

        ``schema`` is the type to read structured output as. Without it, ``result().output`` is plain JSON data.

        >>> await (await client.turn(turn.id)).status()
        'finished'
        """
        known = turn_id(turn)
        asked, cell = _tenant(tenant), self.connections.cell_of_turn(known)
        record = await cell.turn(known)
        if asked is not None and record.tenant is None:  # an older release accepted it
            (await found_in(cell, record.session_id)).check_tenant(
                SessionRef(record.session_id, tenant=asked)
            )
        else:
            check_tenant(record.session_id, asked, True, record.tenant)
        return AsyncTurn(self.connections, known, record.session_id, schema)

    async def requeue(self, turn: str | AsyncTurn, *, tenant: str | None = None) -> AsyncTurn:
        """Run a failed turn again, given the turn or its id. Raises as ``AsyncTurn.requeue`` and ``turn`` do.

        >>> failed = await client.submit("user-456", "Hello", agent="nobody")
        >>> await failed.result(timeout=10)
        Traceback (most recent call last):
        antiphon.errors.UnknownAgent: ...
        >>> (await client.requeue(failed.id)).id == failed.id
        True
        """
        found = turn if isinstance(turn, AsyncTurn) else None
        if found is None or tenant is not None:
            known = await self.turn(turn if isinstance(turn, str) else turn.id, tenant=tenant)
            found = found or known
        await found.requeue()
        return found

    @spelled_out
    def failed(self, **which: Unpack[FailedFilter]) -> AsyncGenerator[FailedTurn, None]:
        """Iterate over the failed turns of all sessions, the last one first, each for a week.

        A turn comes with its input, its error and all its runs. ``tenant``, ``agent`` (a name), ``code``, ``queue``,
        ``since`` and ``until`` (ms since 1970, or datetimes with a time zone) select some. They are read in pages.

        >>> failed = await client.submit("user-456", "Hello", agent="nobody")
        >>> outcome = await anext(client.results([failed]))
        >>> async for turn in client.failed(code="unknown_agent"):
        ...     print(turn.turn_id == failed.id, turn.input[0].text, turn.agent)
        ...     break
        True Hello nobody
        """
        return list_failed(self.connections, which)

    @spelled_out
    async def requeue_many(
        self, turns: Iterable[str | AsyncTurn] | None = None, **which: Unpack[FailedFilter]
    ) -> list[AsyncTurn | AgentError]:
        """Run failed turns again: these, or all that a filter selects, as ``failed`` takes it. In pipelines.

        The answer has an entry for each: the turn, or the error that ``requeue`` would raise.

        >>> failed = await client.submit("user-456", "Hello", agent="nobody")
        >>> outcome = await anext(client.results([failed]))
        >>> [one.id == failed.id for one in await client.requeue_many(code="unknown_agent")]
        [True]
        """
        return await requeue_many(self.connections, turns, which)

    @spelled_out
    def session(
        self,
        session: str | None = None,
        *,
        agent: SessionAgent | str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        **opening: Unpack[OpeningOptions],
    ) -> Session:
        """Return the session with this id, or a new one. Nothing is read or written before its first use.

        ``agent`` (an ``Agent``, or the name of one that the workers know) runs the turns that name no other agent.
        Without it, the agent that the session began with runs them. The other keywords (``system``, ``messages``,
        ``variables``, ``metadata``, ``tenant``, ``queue``) are those of ``Agent.session``. Call the ``_async`` methods
        of this session.

        >>> session = client.session("user-123", agent=agent)
        >>> (await session.run_async("Again")).text
        'You said: Again'
        """
        return _session(self.connections, session, agent, ttl, opening, background=False)

    @spelled_out
    def sessions(self, **which: Unpack[ListOptions]) -> AsyncSessionList:
        """List the stored sessions of all cells, for ``async for``. Keywords as in ``Client.sessions``.

        >>> [info.session_id async for info in client.sessions()]
        ['user-123']
        """
        return AsyncSessionList(
            lambda after, page: list_sessions(self.connections, after, page), list_query(**which)
        )

    async def turns(
        self, session: str, *, status: Status | None = None, tenant: str | None = None
    ) -> AsyncGenerator[AsyncTurn, None]:
        """Iterate over the last 1,000 turns of a session, newest first. A turn is kept for a week after its end.

        Raises ``WrongTenant`` if the session exists and does not belong to ``tenant``.

        ``status`` selects the turns that are ``queued``, ``waiting``, ``running``, ``retrying``, ``suspended``,
        ``finished``, ``failed`` or ``cancelled`` when they are read.

        >>> [found.id async for found in client.turns("user-123", status="finished")] == [turn.id]
        True
        """
        where = session_id(session)
        if status is not None and status not in get_args(Status):
            raise UsageError(f"status= must be one of {', '.join(get_args(Status))}, not {status!r}.")
        async for turn in list_turns(self.connections.cell_of_session(where), where, status, _tenant(tenant)):
            yield AsyncTurn(self.connections, turn, where)

    async def due(
        self, session: str | None = None, *, tenant: str | None = None
    ) -> AsyncGenerator[DueTurn, None]:
        """Iterate over the delayed turns that are not due yet, the next one first, perhaps of one session or tenant.

        Each has ``turn_id``, ``session_id``, ``due`` (ms since 1970), ``queue``, ``tenant`` and ``created``.

        >>> later = await client.submit("user-789", "Good morning", agent=agent, delay=3600)
        >>> [turn.turn_id async for turn in client.due("user-789")] == [later.id]
        True
        """
        where = None if session is None else session_id(session)
        asked = _tenant(tenant)
        cells = self.connections.cells if where is None else [self.connections.cell_of_session(where)]
        async for turn in list_due(cells):
            if where in (None, turn.session_id) and asked in (None, turn.tenant):
                yield turn

    def schedules(self, session: str | None = None, *, tenant: str | None = None) -> AsyncSchedules:
        """Return the schedules of a session, or of all sessions, perhaps of one tenant: to list, set, pause and delete.

        >>> await client.schedules("user-123").set("daily", "Good morning", agent=agent, every=86400)
        >>> [(one.session_id, one.name, one.every) async for one in client.schedules()]
        [('user-123', 'daily', 86400.0)]
        """
        return AsyncSchedules(self.connections, session, tenant)

    def webhooks(self, *, tenant: str | None = None) -> AsyncWebhooks:
        """Return the webhooks, perhaps of one tenant: URLs that workers tell of the ends of turns.

        With a ``tenant``, a webhook that is set gets the events of its turns alone.

        >>> secret = await client.webhooks().set("billing", "https://example.com/hooks")
        >>> [(one.name, one.waiting) async for one in client.webhooks()]
        [('billing', 0)]
        """
        return AsyncWebhooks(self.connections, tenant)

    def memory(
        self,
        name: str = "memory",
        *,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> AsyncFacts:
        """Return what a memory with ``facts`` knows, by its scope: of a tenant, of an agent's users, from one session.

        ``name`` is that of its ``FactModel``. Facts can be listed, added, edited and deleted.

        >>> await client.memory(tenant="acme").add("Prefers tea.")
        Fact(id='...', text='Prefers tea.', by='person', ...)
        """
        return AsyncFacts(self.connections, name, tenant=tenant, agent=agent, session=session)

    async def set_tenant_limits(
        self,
        tenant: str | None,
        *,
        in_flight: int | None = None,
        waiting: int | None = None,
        per_minute: int | None = None,
    ) -> None:
        """Set the limits of a tenant, or with ``tenant=None`` those of all tenants without limits of their own.

        They are kept in Redis, and hold for all clients and workers from then on, in each cell. A limit that is None
        is the default again. Turns beyond ``in_flight`` wait. A turn beyond ``waiting``, or beyond ``per_minute`` (at
        most 10,000), is refused with ``TenantLimit``. Raises ``UsageError`` and ``StoreError``.

        >>> await client.set_tenant_limits("acme", in_flight=5, per_minute=100)
        >>> await client.tenant_limits("acme")
        TenantLimits(in_flight=5, waiting=None, per_minute=100)
        """
        limits = TenantLimits(in_flight, waiting, per_minute)
        await set_tenant_limits(self.connections.cells, _tenant(tenant) or "", limits)

    async def tenant_limits(self, tenant: str | None) -> TenantLimits:
        """Read the limits of a tenant, or with None the defaults. Raises ``StoreError``.

        >>> await client.tenant_limits(None)
        TenantLimits(in_flight=None, waiting=None, per_minute=None)
        """
        return await tenant_limits(next(iter(self.connections.cells)), _tenant(tenant) or "")

    async def waiting(self, *, tenant: str | None = None) -> AsyncGenerator[SuspendedTurn, None]:
        """Iterate over the turns that wait for decisions, the one that waits longest first, perhaps of one tenant.

        Each has ``turn_id``, ``session_id``, ``suspended`` (since when, in ms since 1970), ``calls`` (those that nobody
        has decided about), ``queue`` and ``tenant``. They are read in pages during the iteration.

        >>> [turn.calls[0].name async for turn in client.waiting()]
        []
        """
        asked = _tenant(tenant)
        async for turn in list_suspended(self.connections.cells):
            if asked in (None, turn.tenant):
                yield turn

    async def snapshot(
        self, session: str, *, tenant: str | None = None, last: int | None = None
    ) -> SessionSnapshot:
        """Read a session's messages and the cursor to continue from, in one atomic step.

        ``last`` is how many of the last messages to read; all if left out. For a session that does not exist, the
        snapshot is empty and the cursor is 0. Raises ``WrongTenant`` if it exists and does not belong to ``tenant``.

        >>> snapshot = await client.snapshot("user-123")
        >>> len(snapshot.messages), snapshot.turn_id
        (2, None)
        """
        where = session_id(session)
        asked = _tenant(tenant)
        start, stop = page_of_last(last)
        try:
            cell = self.connections.cell_of_session(where)
            found = await whole_snapshot(cell, self.connections.archive, where, start, stop, turns="pending")
        except SessionNotFound:
            return SessionSnapshot(where, [], 0, None, [])
        check_tenant(where, asked, True, decode_field("tenant", found.fields.get("tenant", b"")))
        messages = decode_history(found.history, found.history_length - len(found.history))
        return SessionSnapshot(where, messages, found.cursor, found.turn_id, turn_infos(found.turns))

    def subscribe(
        self,
        session: str,
        after: int | str | None = None,
        *,
        tenant: str | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> Subscription:
        """Iterate over the session's events after a cursor, each once and in order. The iteration does not end.

        ``after`` is the seq of the last event seen (a number or text), 0 for all stored events, or None for new events
        only. With a ``heartbeat`` (seconds or a timedelta), a ``Heartbeat`` comes whenever nothing else has come for so
        long. A cancelled ``anext`` loses nothing, so that ``asyncio.wait_for(anext(events), 1)`` may be repeated.

        After a lost connection the client reconnects and reads the missed events from the log. If it has never reached
        Redis, it raises ``StoreUnavailable`` after 10 seconds of trying. Raises ``StreamGap`` if events are no longer
        kept: take a ``snapshot`` and continue from its cursor. ``await events.start()`` subscribes before the first
        event, and raises ``WrongTenant`` if the session exists and does not belong to ``tenant``.

        >>> events = client.subscribe("user-123", after=0, heartbeat=15)
        >>> (await anext(events)).type, (await anext(events)).type
        ('turn_queued', 'turn_started')
        >>> await events.aclose()
        """
        where = session_id(session)
        cell = self.connections.cell_of_session(where)
        return Subscription(
            cell, self.connections.feed_of(cell), where, after, tenant=_tenant(tenant), heartbeat=heartbeat
        )

    def subscribe_all(
        self,
        types: Iterable[str] | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        after: str | int | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> AllEvents:
        """Iterate over the ends of all turns: of every session, of one tenant, or of the agent with this name.

        Each event comes with the cursor to go on behind it. ``types`` selects from ``turn_finished``, ``turn_failed``,
        ``turn_cancelled`` and ``turn_suspended``. ``after`` is a cursor, 0 for all that is kept, or None for what is
        new. A cell keeps the last 100,000 from the first call on, until nobody has asked for them for a week. Raises
        ``StreamGap`` if events behind the cursor are no longer kept. The iteration does not end; it waits for a Redis
        that is away as ``subscribe`` does, and takes its ``heartbeat``.

        >>> ends = client.subscribe_all(tenant="acme")
        >>> await ends.start()
        >>> paid = await client.submit("user-456", "Pay again", agent=agent, tenant="acme")
        >>> event, cursor = await anext(ends)
        >>> event.type, event.response.text
        ('turn_finished', 'You said: Pay again')
        >>> await ends.aclose()
        """
        return AllEvents(
            self.connections,
            types=types,
            tenant=_tenant(tenant),
            agent=agent,
            after=after,
            heartbeat=heartbeat,
        )

    def as_completed(self, turns: Iterable[AsyncTurn | AgentError | str]) -> AsyncGenerator[AsyncTurn, None]:
        """Iterate over the turns, or the turns with these ids, in the order in which they end.

        One log tells of all ends: waiting for 10,000 turns takes one connection. A turn comes with its outcome, so
        that its ``result`` does not ask Redis again. Errors, as ``submit_many`` returns them, are left out. Raises
        ``TurnNotFound`` for an id without a turn.

        >>> [(await done.result()).text async for done in client.as_completed([turn])]
        ['You said: Hello']
        """
        return as_completed(self.connections, turns)

    def results(
        self, turns: Iterable[AsyncTurn | AgentError | str]
    ) -> AsyncGenerator[Response | AgentError, None]:
        """Iterate over the outcomes of the turns, or of the turns with these ids, in the order of the turns.

        An outcome is the response, or the error that ``AsyncTurn.result`` would raise: one failure hides none of the
        others. Errors, as ``submit_many`` returns them, keep their places. It waits as ``as_completed`` does.

        >>> refused = await client.submit("user-456", "Hello", agent="nobody")
        >>> [type(outcome).__name__ async for outcome in client.results([refused, turn])]
        ['UnknownAgent', 'Response']
        """
        return results(self.connections, turns)


def _waiting(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]], given: Callable[[T], R]
) -> Callable[Concatenate[Client, P], R]:
    """Make a ``Client`` method that waits for this method and returns its result converted by ``given``."""

    @wraps(method)
    def wait(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return given(call(method(self._client, *args, **kwargs)))  # pyright: ignore[reportPrivateUsage]

    wait.__qualname__ = f"Client.{method.__name__}"
    wait.__doc__ = (method.__doc__ or "").replace("await ", "").replace("async for", "for")
    answer = "Turn" if given is Turn else inspect.signature(given).return_annotation
    cast("Any", wait).__signature__ = inspect.signature(method).replace(return_annotation=answer)
    return wait


def _turns(turns: list[AsyncTurn | AgentError]) -> list[Turn | AgentError]:
    return [Turn(turn) if isinstance(turn, AsyncTurn) else turn for turn in turns]


def _snapshot(snapshot: SessionSnapshot) -> SessionSnapshot:
    return snapshot


def _limits(limits: TenantLimits) -> TenantLimits:
    return limits


def _nothing(_: None) -> None:
    return None


class Client:
    """``AsyncClient`` with synchronous methods, for scripts, threads, web views, notebooks and forked servers.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> client = Client("redis://localhost:6379/0")
    >>> turn = client.submit("user-123", "Hello", agent=agent)
    >>> turn.result(timeout=10).text
    'You said: Hello'
    """

    @spelled_out
    def __init__(self, redis: Any, **options: Unpack[ConnectionOptions]) -> None:
        self._client = AsyncClient(redis, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Turns keep running; calls in other threads raise ``ClientClosed``.

        >>> with Client("redis://localhost:6379/0") as other:  # closed at the end
        ...     other.turn(turn.id).status()
        'finished'
        """
        call(self._client.aclose())

    submit = _waiting(AsyncClient.submit, Turn)
    submit_many = _waiting(AsyncClient.submit_many, _turns)
    turn = _waiting(AsyncClient.turn, Turn)
    snapshot = _waiting(AsyncClient.snapshot, _snapshot)
    set_tenant_limits = _waiting(AsyncClient.set_tenant_limits, _nothing)
    tenant_limits = _waiting(AsyncClient.tenant_limits, _limits)

    def requeue(self, turn: str | Turn, *, tenant: str | None = None) -> Turn:
        """Run a failed turn again, given the turn or its id. Raises as ``AsyncClient.requeue``.

        >>> failed = client.submit("user-456", "Hello", agent="nobody")
        >>> failed.result(timeout=10)
        Traceback (most recent call last):
        antiphon.errors.UnknownAgent: ...
        >>> client.requeue(failed).id == failed.id
        True
        """
        done = call(self._client.requeue(cast("AsyncTurn | str", _inner(turn)), tenant=tenant))
        return turn if isinstance(turn, Turn) else Turn(done)

    @spelled_out
    def failed(self, **which: Unpack[FailedFilter]) -> Iterator[FailedTurn]:
        """Iterate over the failed turns of all sessions, as ``AsyncClient.failed`` does.

        >>> failed = client.submit("user-456", "Hello", agent="nobody")
        >>> outcome = next(client.results([failed]))
        >>> next(client.failed(agent="nobody")).code
        'unknown_agent'
        """
        return iterate(self._client.failed(**which))

    @spelled_out
    def requeue_many(
        self, turns: Iterable[str | Turn] | None = None, **which: Unpack[FailedFilter]
    ) -> list[Turn | AgentError]:
        """Run failed turns again: these, or all that a filter selects, as ``AsyncClient.requeue_many`` does.

        >>> failed = client.submit("user-456", "Hello", agent="nobody")
        >>> outcome = next(client.results([failed]))
        >>> [one.id == failed.id for one in client.requeue_many(agent="nobody")]
        [True]
        """
        given = (
            turns
            if turns is None or isinstance(turns, str)
            else [cast("AsyncTurn", _inner(one)) for one in turns]
        )
        return _turns(call(self._client.requeue_many(given, **which)))

    @spelled_out
    def session(
        self,
        session: str | None = None,
        *,
        agent: SessionAgent | str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        **opening: Unpack[OpeningOptions],
    ) -> Session:
        """Return the session with this id, or a new one. Options as in ``AsyncClient.session``.

        Call the synchronous methods of this session.

        >>> client.session("user-123", agent=agent).run("Again").text
        'You said: Again'
        """
        return _session(self._client.connections, session, agent, ttl, opening, background=True)

    @spelled_out
    def sessions(self, **which: Unpack[ListOptions]) -> SessionList:
        """List the stored sessions of all cells, the one that expires last (usually the one used last) first.

        ``tenant`` and ``metadata`` select sessions with these values. Sessions are read in pages during the iteration.
        With a ``limit`` the iteration ends after that many sessions, or after reading 1,000 (or ``limit``, if larger).
        To continue, pass the list's ``cursor`` to ``sessions(cursor=…)``; it is None at the end. A session that is
        used during the iteration moves to the front and may be missed.

        >>> [(info.session_id, info.messages) for info in client.sessions()]
        [('user-123', 2)]
        """
        return SessionList(self._client.sessions(**which))

    def turns(
        self, session: str, *, status: Status | None = None, tenant: str | None = None
    ) -> Iterator[Turn]:
        """Iterate over the turns of a session, as ``AsyncClient.turns`` does.

        >>> [found.status() for found in client.turns("user-123")]
        ['finished']
        """
        for turn in iterate(self._client.turns(session, status=status, tenant=tenant)):
            yield Turn(turn)

    def due(self, session: str | None = None, *, tenant: str | None = None) -> Iterator[DueTurn]:
        """Iterate over the delayed turns that are not due yet, as ``AsyncClient.due`` does.

        >>> later = client.submit("user-789", "Good morning", agent=agent, delay=3600)
        >>> [turn.turn_id for turn in client.due()] == [later.id]
        True
        """
        return iterate(self._client.due(session, tenant=tenant))

    def schedules(self, session: str | None = None, *, tenant: str | None = None) -> Schedules:
        """Return the schedules of a session, or of all sessions, as ``AsyncClient.schedules`` does.

        >>> client.schedules("user-123").set("daily", "Good morning", agent=agent, every=86400)
        >>> [one.name for one in client.schedules()]
        ['daily']
        """
        return Schedules(self._client.schedules(session, tenant=tenant))

    def webhooks(self, *, tenant: str | None = None) -> Webhooks:
        """Return the webhooks, perhaps of one tenant, as ``AsyncClient.webhooks`` does.

        >>> secret = client.webhooks().set("billing", "https://example.com/hooks")
        >>> [one.name for one in client.webhooks()]
        ['billing']
        """
        return Webhooks(self._client.webhooks(tenant=tenant))

    def memory(
        self,
        name: str = "memory",
        *,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> Facts:
        """Return what a memory with ``facts`` knows, as ``AsyncClient.memory`` does.

        >>> client.memory(tenant="acme").add("Prefers tea.").text
        'Prefers tea.'
        """
        return Facts(self._client.memory(name, tenant=tenant, agent=agent, session=session))

    def waiting(self, *, tenant: str | None = None) -> Iterator[SuspendedTurn]:
        """Iterate over the turns that wait for decisions, as ``AsyncClient.waiting`` does.

        >>> [turn.calls[0].name for turn in client.waiting()]
        []
        """
        return iterate(self._client.waiting(tenant=tenant))

    def subscribe(
        self,
        session: str,
        after: int | str | None = None,
        *,
        tenant: str | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> Iterator[Event]:
        """Iterate over the session's events after a cursor, as ``AsyncClient.subscribe`` does.

        >>> for event in client.subscribe("user-123", after=0):
        ...     if event.type == "turn_finished":
        ...         break
        >>> event.response.text
        'You said: Hello'
        """

        async def events() -> AsyncGenerator[Event, None]:
            found = self._client.subscribe(session, after, tenant=tenant, heartbeat=heartbeat)
            async with aclosing(found):
                async for event in found:
                    yield event

        return iterate(events(), instead="AsyncClient.subscribe")

    def subscribe_all(
        self,
        types: Iterable[str] | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        after: str | int | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> Iterator[FollowedEvent]:
        """Iterate over the ends of all turns, as ``AsyncClient.subscribe_all`` does.

        >>> beginning = next(client.subscribe_all(heartbeat=0.01)).cursor
        >>> again = client.submit("user-123", "Hello again", agent=agent)
        >>> event, cursor = next(client.subscribe_all(after=beginning))
        >>> event.type, event.turn_id == again.id
        ('turn_finished', True)
        """

        async def events() -> AsyncGenerator[FollowedEvent, None]:
            async with self._client.subscribe_all(
                types, tenant=tenant, agent=agent, after=after, heartbeat=heartbeat
            ) as found:
                async for one in found:
                    yield one

        return iterate(events(), instead="AsyncClient.subscribe_all")

    def as_completed(self, turns: Iterable[Turn | AgentError | str]) -> Iterator[Turn]:
        """Iterate over the turns, or the turns with these ids, as ``AsyncClient.as_completed`` does.

        >>> for done in client.as_completed([turn]):
        ...     done.id == turn.id
        True
        """
        given = list(turns)
        known = {cast("AsyncTurn", turn._turn): turn for turn in given if isinstance(turn, Turn)}  # pyright: ignore[reportPrivateUsage]
        for done in iterate(self._client.as_completed(map(_inner, given))):
            yield known.get(done) or Turn(done)

    def results(self, turns: Iterable[Turn | AgentError | str]) -> Iterator[Response | AgentError]:
        """Iterate over the outcomes of the turns in their order, as ``AsyncClient.results`` does.

        >>> [outcome.text for outcome in client.results([turn])]
        ['You said: Hello']
        """
        return iterate(self._client.results(map(_inner, turns)), instead="AsyncClient.results")


def _inner(turn: Turn | AgentError | str) -> AsyncTurn | AgentError | str:
    return cast("AsyncTurn", turn._turn) if isinstance(turn, Turn) else turn  # pyright: ignore[reportPrivateUsage]


def _session(
    connections: Connections,
    known: str | None,
    agent: SessionAgent | str | None,
    ttl: float | timedelta | UnsetType | None,
    opening: OpeningOptions,
    *,
    background: bool,
) -> Session:
    """Return a session on these connections, which belong to the background loop or to the caller's loop."""
    if agent is not None and not is_a(agent, str | Travelling):
        raise UsageError(f"agent= must be an agent's name or an Agent, not {type(agent).__name__}.")

    async def connected() -> Connections:
        if on_background() is not background:
            raise UsageError(
                "Use the _async methods for a session of an AsyncClient, and the other methods for one of a Client."
            )
        return connections

    opened = opening_of(**opening)
    ref = SessionRef(
        new_session_id() if known is None else session_id(known), ttl=lifetime(ttl), tenant=opened.tenant
    )
    return Session(agent, ref, opened, RedisRuntime(connected))


def _tenant(tenant: str | None) -> str | None:
    return None if tenant is None else tenant_id(tenant)
