"""``AsyncClient``: submitting turns and following sessions from any service.

async with AsyncClient("redis://localhost:6379/0") as client:
    turn = await client.submit("user-123", "Hello", agent="support")
    async for event in turn.stream():
        ...

``antiphon.client`` exports the public names of this module, and ``Client``, its synchronous form.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self, Unpack, get_args

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import AgentError, SessionNotFound, TurnDeleted, TurnNotFound, UsageError
from antiphon.input.ids import (
    SessionId,
    TurnId,
    check_tenant,
    new_session_id,
    session_id,
    tenant_id,
    turn_id,
    user_name,
)
from antiphon.input.messages import Input
from antiphon.input.options import ListOptions, OpeningOptions
from antiphon.input.request import Travelling
from antiphon.input.values import is_a, lifetime, page_of_last
from antiphon.model import Message, Response, Status, decode_history
from antiphon.model.budget import BudgetScope
from antiphon.redis import erasure
from antiphon.redis.agents import AsyncAgents
from antiphon.redis.all_events import AllEvents
from antiphon.redis.archived import whole_snapshot
from antiphon.redis.budgets import AsyncBudgets
from antiphon.redis.cells import ConnectionOptions
from antiphon.redis.connections import Connections
from antiphon.redis.deployment import TenantLimits, set_tenant_limits, tenant_limits
from antiphon.redis.edits import found_in
from antiphon.redis.erasure import ErasedPart, Forgotten, OfUser
from antiphon.redis.facts import AsyncFacts
from antiphon.redis.failed import FailedFilter, FailedTurn, list_failed, requeue_many
from antiphon.redis.fields import decode_field
from antiphon.redis.listing import list_due, list_sessions, list_suspended, list_turns
from antiphon.redis.results import as_completed, results
from antiphon.redis.runtime import RedisRuntime
from antiphon.redis.schedules import AsyncSchedules
from antiphon.redis.search import SearchOptions, SearchPage, checked_search, search_turns
from antiphon.redis.sent_events import send_event
from antiphon.redis.submission import Submission, submit_all
from antiphon.redis.subscription import Subscription
from antiphon.redis.titles import remove_title
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.turn_records import turn_infos
from antiphon.redis.webhooks import AsyncWebhooks
from antiphon.session.async_session import AsyncSession
from antiphon.session.listing import AsyncSessionList, list_query
from antiphon.session.opening import opening_of
from antiphon.session.runtime import Edit, SessionAgent, SessionRef
from antiphon.session.turn_info import TurnInfo
from antiphon.session.work import ClientSubmitOptions
from antiphon.wire.editing import Busy, erase_turns, erase_turns_of
from antiphon.wire.files import drop_files
from antiphon.wire.lists.inspection import DueTurn
from antiphon.wire.lists.sent_events import forget_events, kept_events
from antiphon.wire.suspension import SuspendedTurn


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

    ``redis`` is a URL, a list of URLs (cells) or a redis-py client; by default ``ANTIPHON_REDIS_URL``. ``prefix`` is
    the first part of the keys, by default ``ANTIPHON_PREFIX`` or ``ant``, and ``queue`` the default queue of turns.
    With the workers' ``archive``, archived sessions are read and listed. ``max_connections``, ``timeout_seconds`` and
    ``retries`` apply to each server. With ``durability="replicated"``, a call returns when a replica has its writes.

    Use each client in one event loop only. ``await client.aclose()`` or ``async with`` closes its connections.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> turn = await client.submit("user-123", "Hello", agent=agent)
    >>> (await turn.result(timeout=10)).text
    'You said: Hello'
    """

    def __init__(self, redis: Any = None, **options: Unpack[ConnectionOptions]) -> None:
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

    async def submit(
        self,
        session: str,
        text: Input,
        **options: Unpack[ClientSubmitOptions],
    ) -> AsyncTurn:
        """Submit a turn. When this returns, the turn is stored and will run even if the caller stops.

        With a ``key``, repeating the call in the same session returns the first turn instead of a second one,
        until 7 days after that turn's end; a different text raises ``KeyReused``. With ``retry_failed=True`` as
        well, a failed turn with that key runs again, as with ``AsyncTurn.requeue``. ``delay``, ``timeout`` (for
        each attempt, from its start) and ``ttl`` are in seconds or a timedelta. ``ttl`` is how long the session
        is kept after its last turn: 30 days by default, None for ever. The last value given applies, whether with
        a turn or a session. With a ``schema`` the answer is structured output, as in ``Session.run``. ``params``
        are parameters of the model, and ``metadata`` is stored with the turn. ``caller_tools``,
        ``while_suspended``, ``instructions`` and ``max_tool_calls`` are those of ``Session.run``, and so is
        ``user``, whose turns can be exported and erased.

        If the session has other turns, this one runs after them. ``if_busy="reject"`` raises ``SessionBusy``
        instead. ``"interrupt"`` and ``"rollback"`` cancel the running turn, keeping its partial answer or nothing, and
        this one runs next. ``"steer"`` adds the text to the running turn's next model call: ``info()`` has that
        turn as ``steered_into``, and the result is that turn's. If that turn ends first, this one runs on its own.

        With the ``cursor`` of a ``snapshot`` the turn is accepted only if nothing has happened in the session since.
        Otherwise ``SessionChanged`` is raised.

        The turn goes to the first queue that is set: ``queue``, or that of the session, of ``agent``, of the session's
        agent or of this client. If only ``queue`` is set, it becomes the session's. The session keeps its ``tenant``:
        another one raises ``WrongTenant``, and a limit of the tenant ``TenantLimit``. ``priority`` orders the turns of
        a tenant (``"high"`` first, ``"low"`` last) but never those of a session. ``service="batch"`` halves the price.
        Also raises ``InvalidId``, ``InvalidMessage`` and ``StoreError``.

        >>> first = await client.submit("user-456", "Pay", agent=agent, key="payment-1", tenant="acme")
        >>> first.id == (await client.submit("user-456", "Pay", agent=agent, key="payment-1")).id
        True
        """
        return await Submission(session, text, **options).submit(self.connections)

    async def submit_many(self, submissions: Iterable[Submission]) -> list[AsyncTurn | AgentError]:
        """Submit many turns in order, up to 32 per call to Redis. Each is accepted or refused on its own.

        The list has an entry for each submission: its turn, or the error that ``submit`` would raise. After a
        ``StoreUnavailable`` the turn may have been accepted: with a ``key``, submit it again. ``results`` and
        ``as_completed`` accept this list.

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
        """Find a turn by its id. Raises ``TurnNotFound``, ``TurnDeleted``, and ``WrongTenant`` for another tenant.

        ``schema`` is the type to read structured output as. Without it, ``result().output`` is plain JSON data.

        >>> await (await client.turn(turn.id)).status()
        'finished'
        """
        known = turn_id(turn)
        asked, cell = _tenant(tenant), self.connections.cell_of_turn(known)
        try:
            record = await cell.turn(known)
        except TurnDeleted as gone:
            check_tenant(gone.session_id or "", asked, True, gone.tenant)
            raise
        if asked is not None and record.tenant is None:  # an older release accepted it
            (await found_in(cell, record.session_id)).check_tenant(
                SessionRef(record.session_id, tenant=asked)
            )
        else:
            check_tenant(record.session_id, asked, True, record.tenant)
        return AsyncTurn(self.connections, known, record.session_id, schema)

    async def requeue(self, turn: str | AsyncTurn, *, tenant: str | None = None) -> AsyncTurn:
        """Run a failed turn again, given the turn or its id. Raises what ``AsyncTurn.requeue`` and ``turn`` raise.

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

    def failed(self, **which: Unpack[FailedFilter]) -> AsyncGenerator[FailedTurn, None]:
        """Iterate over the failed turns of all sessions, latest first. They are kept for a week and read in pages.

        Each has its input, its error and all its runs. ``tenant``, ``agent`` (a name), ``code``, ``queue``, ``since``
        and ``until`` (ms since 1970, or datetimes with a time zone) filter them.

        >>> failed = await client.submit("user-456", "Hello", agent="nobody")
        >>> outcome = await anext(client.results([failed]))
        >>> first = await anext(client.failed(code="unknown_agent"))
        >>> first.turn_id == failed.id, first.input[0].text, first.agent
        (True, 'Hello', 'nobody')
        """
        return list_failed(self.connections, which)

    async def requeue_many(
        self, turns: Iterable[str | AsyncTurn] | None = None, **which: Unpack[FailedFilter]
    ) -> list[AsyncTurn | AgentError]:
        """Run failed turns again, in pipelines: ``turns``, or all that the filter selects, which is that of ``failed``.

        The list has an entry for each: the turn, or the error that ``requeue`` would raise.

        >>> failed = await client.submit("user-456", "Hello", agent="nobody")
        >>> outcome = await anext(client.results([failed]))
        >>> [one.id == failed.id for one in await client.requeue_many(code="unknown_agent")]
        [True]
        """
        return await requeue_many(self.connections, turns, which)

    def session(
        self,
        session: str | None = None,
        *,
        agent: SessionAgent | str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        **opening: Unpack[OpeningOptions],
    ) -> AsyncSession:
        """Return the session with this id, or a new one. Nothing is read or written before its first use.

        ``agent`` (an ``Agent``, or the name of one that the workers know) runs the turns that name no other agent.
        Without it, the agent that the session began with runs them. The other keywords (``system``, ``messages``,
        ``variables``, ``metadata``, ``tenant``, ``queue``) are those of ``Agent.session``.

        >>> session = client.session("user-123", agent=agent)
        >>> (await session.run("Again")).text
        'You said: Again'
        """
        if agent is not None and not is_a(agent, str | Travelling):
            raise UsageError(f"agent= must be an agent's name or an Agent, not {type(agent).__name__}.")
        opened = opening_of(**opening)
        known = new_session_id() if session is None else session_id(session)
        ref = SessionRef(known, ttl=lifetime(ttl), tenant=opened.tenant)
        return AsyncSession(agent, ref, opened, RedisRuntime(self.connections.here))

    def sessions(self, **which: Unpack[ListOptions]) -> AsyncSessionList:
        """List the stored sessions of all cells, latest expiry first (usually the last used).

        ``tenant`` and ``metadata`` select sessions with these values, ``state`` those that are ``running`` or
        ``suspended``, for example, and ``search`` those with a text in their id, title, agent or tenant. Child sessions
        are left out: ``parent`` lists those of one session, ``children=True`` all. Sessions are read in pages.
        With a ``limit`` the iteration ends after that many sessions, or after reading 1,000 (or ``limit``, if larger).
        To continue, pass the list's ``cursor`` to ``sessions(cursor=…)``; it is None at the end. A session that is
        used during the iteration moves to the front and may be missed.

        >>> [info.session_id async for info in client.sessions()]
        ['user-123']
        """
        query = list_query(**which)
        return AsyncSessionList(
            lambda after, page: list_sessions(self.connections, after, page, query.state), query
        )

    async def search(self, text: str, **which: Unpack[SearchOptions]) -> SearchPage:
        """Search the finished turns of all sessions, or those of one ``tenant`` or ``session``, for a text.

        Finds turns that contain all of its words, best match first. Case and accents are ignored, the last word may be
        incomplete, and words in double quotes must be adjacent. The index is in the archive: the client needs
        ``archive=`` and workers ``App(search=True)``. It includes a turn within a second after its end. Pass the page's
        ``cursor`` for the next one. Raises ``UsageError``, ``StoreUnavailable`` and ``StoreError``.

        >>> async with AsyncClient("redis://localhost:6379/0") as other:
        ...     await other.search("refund", tenant="acme")
        Traceback (most recent call last):
        antiphon.errors.UsageError: search needs the workers' archive, ...
        """
        return await search_turns(self.connections, checked_search(text, which))

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
        """Iterate over the delayed turns that are not due yet, earliest first, optionally of one session or tenant.

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

    async def send_event(
        self, name: str, data: Any = None, *, key: str | None = None, tenant: str | None = None
    ) -> int:
        """Send an event to the turns that wait for it (``context.wait_for_event``). Returns how many it reached.

        If none waits, it starts the turns of ``schedules.set(…, on=name)`` and returns how many. ``data`` must have a
        JSON form of at most 64 KiB. With a ``tenant``, only turns of this tenant receive it, otherwise only turns
        without one. Events are kept for a day (the last 10,000 of a tenant): turns that wait later receive them too.
        Each waiting call receives an event once. Within that day, the same name, tenant and ``key`` are one event.

        When this returns, the event is stored. If it raises ``StoreError``, some turns may have received it: send it
        again with the same ``key``. Raises ``InvalidId`` for a name that is not 1 to 128 letters, digits and any of
        ``_.:/@-``, ``UsageError``, and ``LimitReached``, also if a limit refuses a turn that it would start.

        >>> await client.send_event("payment:4711", {"amount": 30}, key="evt_1")
        0
        """
        return await send_event(self.connections.cells, name, data, key=key, tenant=tenant)

    def schedules(self, session: str | None = None, *, tenant: str | None = None) -> AsyncSchedules:
        """Return the schedules of a session, a tenant or all sessions, to list, set, pause and delete.

        >>> await client.schedules("user-123").set("daily", "Good morning", agent=agent, every=86400)
        >>> [(one.session_id, one.name, one.every) async for one in client.schedules()]
        [('user-123', 'daily', 86400.0)]
        """
        return AsyncSchedules(self.connections, session, tenant)

    def agents(self, *, sessions: bool = False) -> AsyncAgents:
        """Return the workers' agents by revision. With ``sessions``, count those on each: this reads all sessions.

        >>> [one.agent async for one in client.agents()]  # without those that travel with their turns
        []
        """
        return AsyncAgents(self.connections, sessions=sessions)

    def webhooks(self, *, tenant: str | None = None) -> AsyncWebhooks:
        """Return the webhooks, optionally of one tenant: URLs to which workers post completion events.

        A webhook set with a ``tenant`` receives only the events of that tenant's turns.

        >>> secret = await client.webhooks().set("billing", "https://example.com/hooks")
        >>> [(one.name, one.waiting) async for one in client.webhooks()]
        [('billing', 0)]
        """
        return AsyncWebhooks(self.connections, tenant)

    def budgets(self, scope: BudgetScope, name: str | None, *, tenant: str | None = None) -> AsyncBudgets:
        """Return the budgets of a session, a tenant, a user (of a tenant) or an agent; None is those for all names.

        >>> await client.budgets("tenant", "acme").read()
        []
        """
        return AsyncBudgets(self.connections, scope, name, tenant)

    def memory(
        self, name: str = "memory", *, tenant: str | None = None, agent: str | None = None, session: str | None = None
    ) -> AsyncFacts:  # fmt: skip
        """Return the facts of a memory by its scope: of a tenant, of an agent's users, or from one session.

        ``name`` is that of its ``FactModel``. Facts can be listed, added, edited and deleted.

        >>> await client.memory(tenant="acme").add("Prefers tea.")
        Fact(id='...', text='Prefers tea.', by='person', ...)
        """
        return AsyncFacts(self.connections, name, tenant=tenant, agent=agent, session=session)

    async def set_tenant_limits(
        self, tenant: str | None, *, in_flight: int | None = None, waiting: int | None = None,
        per_minute: int | None = None, user_turns: int | None = None, user_in_flight: int | None = None,
        user_per_minute: int | None = None, stored_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """Set the limits of a tenant, or with ``tenant=None`` those of all tenants without limits of their own.

        They are kept in Redis and apply at once to all clients and workers, in each cell. None restores the default.
        ``TenantLimits`` describes what happens beyond each limit. Raises ``UsageError`` and ``StoreError``.

        >>> await client.set_tenant_limits("acme", in_flight=5, per_minute=100)
        >>> await client.tenant_limits("acme")
        TenantLimits(in_flight=5, per_minute=100)
        """
        all_ = in_flight, waiting, per_minute, user_turns, user_in_flight, user_per_minute, stored_bytes
        await set_tenant_limits(self.connections.cells, _tenant(tenant) or "", TenantLimits(*all_))

    async def tenant_limits(self, tenant: str | None) -> TenantLimits:
        """Read the limits of a tenant, or with None the defaults. Raises ``StoreError``.

        >>> await client.tenant_limits(None)
        TenantLimits()
        """
        return await tenant_limits(next(iter(self.connections.cells)), _tenant(tenant) or "")

    async def forget(
        self,
        *,
        session: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        memory: str = "memory",
    ) -> Forgotten:
        """Erase a session, or a tenant: its sessions, schedules, webhooks, sent events and facts of a ``memory``.

        With ``user``, optionally of one ``tenant``: the user's schedules, the sessions of this user alone, and from
        sessions of several users the user's turns, with their messages, and all events up to them.

        Turns of sessions that have expired are erased too. Running turns are cancelled first. Afterwards every key is
        searched; ``left`` names the keys that still have content, and ``pending`` the copies that workers will remove.
        Pass ``archive=`` to the client to erase archived sessions of a tenant or a user; otherwise ``unsearched`` names
        the archive, if there is one. Raises ``UsageError``, ``WrongTenant`` and ``StoreError``; repeat the call after
        an error.

        >>> found = await client.forget(session="user-456")
        >>> found.left
        []
        """
        asked = _tenant(tenant)
        if session is not None and user is not None:
            raise UsageError("Pass session= or user=, not both.")
        if session is not None:
            return await erasure.forget_session(self.connections, session_id(session), asked, self.session)
        if user is not None:
            found = await _forget_user(self, user_name(user), asked)
        elif asked is not None:
            found = await _forget_tenant(self, asked, memory)
        else:
            raise UsageError("Pass session=, tenant= or user=: what is to be forgotten.")
        if self.connections.archive is None:
            await erasure.note_archive(self.connections.cells, found)
        return found

    async def export(
        self, *, session: str | None = None, tenant: str | None = None, user: str | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over the content of a session, of a tenant or of a user, as values for lines of JSON.

        With ``user``, sessions of several users contribute only this user's messages, turns and schedules.

        Each has a ``type``: ``session`` (what ``Session.to_dict`` returns), followed by its turns (``turn``, with all
        ``runs``) and schedules (``schedule``); at the end a tenant's sent events (``event``). Raises ``UsageError``,
        ``WrongTenant`` and ``StoreError``.

        >>> [one["type"] async for one in client.export(session="user-123")][:2]
        ['session', 'turn']
        """
        if session is None and tenant is None and user is None:
            raise UsageError("Pass session=, tenant= or user=: what is to be exported.")
        asked = _tenant(tenant)
        for known in await _to_export(self, session, asked):
            saved = await self.session(known, tenant=asked).to_dict()
            whose = user if user is not None and saved.get("users") != [user] else None  # of others too
            if whose is not None:
                if whose not in saved.get("users", []):
                    continue
                saved = erasure.part_of_user(saved, whose)
            if whose is not None or saved["created"]:
                yield {"type": "session", **saved}
            async for turn in self.turns(known, tenant=asked):
                with suppress(TurnNotFound):  # it has expired
                    info = await turn.info()
                    if whose in (None, info.user):
                        runs = msgspec.to_builtins(await turn.runs())
                        yield {"type": "turn", **msgspec.to_builtins(info), "runs": runs}
            async for schedule in self.schedules(known, tenant=asked):
                if whose in (None, schedule.user):
                    yield {"type": "schedule", **msgspec.to_builtins(schedule)}
        for cell in self.connections.cells if session is None and user is None else ():
            for one in await kept_events(cell, asked or ""):
                yield {"type": "event", **one}

    async def waiting(self, *, tenant: str | None = None) -> AsyncGenerator[SuspendedTurn, None]:
        """Iterate over the turns that wait for decisions, longest wait first, optionally of one tenant.

        Each has ``turn_id``, ``session_id``, ``suspended`` (since when, in ms since 1970), ``calls`` (those without a
        decision), ``queue`` and ``tenant``. They are read in pages during the iteration.

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
        only. With a ``heartbeat`` (seconds or a timedelta), a ``Heartbeat`` follows each such period without an event.
        Raises ``WrongTenant`` if the session exists and does not belong to ``tenant``.

        After a lost connection the client reconnects. If it has never reached Redis, it raises ``StoreUnavailable``
        after 10 seconds. A ``message`` for each turn replaces events no longer kept, or ``StreamGap`` is raised.

        A cancelled ``anext`` loses nothing. ``await events.start()`` subscribes before the first event.

        >>> events = client.subscribe("user-123", after=0, heartbeat=15)
        >>> (await anext(events)).type, (await anext(events)).type
        ('turn_queued', 'turn_started')
        >>> await events.aclose()
        """
        where = session_id(session)
        cell, whose = self.connections.cell_of_session(where), _tenant(tenant)
        return Subscription(
            cell, self.connections.feed_of(cell), where, after, tenant=whose, heartbeat=heartbeat,
            past=self.connections.past_of,
        )  # fmt: skip

    def subscribe_all(
        self,
        types: Iterable[str] | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        after: str | int | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> AllEvents:
        """Iterate over the completion events of all turns, of one tenant, or of the agent with this name.

        Each event has the cursor to continue after it. ``types`` selects from ``turn_finished``, ``turn_failed``,
        ``turn_cancelled`` and ``turn_suspended``. ``after`` is a cursor, 0 for all kept events, or None for new
        ones. From the first call on, a cell keeps the last 100,000, until a week passes without a reader. Raises
        ``StreamGap`` if events after the cursor are no longer kept. The iteration does not end; it reconnects as
        ``subscribe`` does, and takes its ``heartbeat``, whose first one comes after Redis has answered.

        >>> beginning = (await anext(client.subscribe_all(heartbeat=0.01))).cursor
        >>> again = await client.submit("user-123", "Hello again", agent=agent)
        >>> event, cursor = await anext(client.subscribe_all(after=beginning))
        >>> event.type, event.turn_id == again.id
        ('turn_finished', True)
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

        Each cell has one log of all ends: waiting for 10,000 turns takes one connection to it. A turn has its outcome,
        so its ``result`` does not read Redis again. Errors that ``submit_many`` returned are left out. Raises
        ``TurnNotFound`` for an id without a turn.

        >>> [(await done.result()).text async for done in client.as_completed([turn])]
        ['You said: Hello']
        """
        return as_completed(self.connections, turns)

    def results(
        self, turns: Iterable[AsyncTurn | AgentError | str]
    ) -> AsyncGenerator[Response | AgentError, None]:
        """Iterate over the outcomes of the turns, or of the turns with these ids, in the order of the turns.

        An outcome is the response, or the error that ``AsyncTurn.result`` would raise: a failure does not hide the
        others. Errors that ``submit_many`` returned keep their places. It waits as ``as_completed`` does.

        >>> refused = await client.submit("user-456", "Hello", agent="nobody")
        >>> [type(outcome).__name__ async for outcome in client.results([refused, turn])]
        ['UnknownAgent', 'Response']
        """
        return results(self.connections, turns)


def _tenant(tenant: str | None) -> str | None:
    return None if tenant is None else tenant_id(tenant)


async def _to_export(client: AsyncClient, session: str | None, tenant: str | None) -> list[str]:
    if session:
        return [session, *await erasure.sub_agents_of(client.connections, session, tenant)]
    return [one.session_id async for one in client.sessions(tenant=tenant, children=True)]


async def _forget_tenant(client: AsyncClient, tenant: str, memory: str) -> Forgotten:
    found, cells = Forgotten(), list(client.connections.cells)
    for info in [one async for one in client.sessions(tenant=tenant, children=True)]:
        await client.session(info.session_id, tenant=tenant).delete()  # False if it is only archived
        found.sessions.append(info.session_id)
    for schedule in [one async for one in client.schedules(tenant=tenant)]:
        await client.schedules(schedule.session_id, tenant=tenant).delete(schedule.name)
        found.schedules += 1
    for hook in [one async for one in client.webhooks(tenant=tenant)]:
        await client.webhooks(tenant=tenant).delete(hook.name)
        found.webhooks += 1
    facts = client.memory(memory, tenant=tenant)
    for fact in [one async for one in facts]:
        await facts.delete(fact.id)
        found.facts += 1
    for cell in cells:
        found.events += await forget_events(cell, tenant)
        found.turns += await erase_turns(cell, tenant) or 0
    await erasure.search(cells, {*found.sessions}, tenant, found)
    return found


async def _forget_user(client: AsyncClient, user: str, tenant: str | None) -> Forgotten:
    found, cells = Forgotten(), list(client.connections.cells)
    for schedule in [one async for one in client.schedules(tenant=tenant) if one.user == user]:
        await client.schedules(schedule.session_id).delete(schedule.name)
        found.schedules += 1
    sessions = await erasure.sessions_of_user(cells, user, tenant)
    if client.connections.archive is not None:
        async for info in client.sessions(tenant=tenant, children=True):
            users = (await client.session(info.session_id).to_dict()).get("users", [])
            if user in users:
                sessions.setdefault(info.session_id, OfUser()).users = {*users}
    for session, of in sessions.items():
        if of.users == {user}:
            await client.session(session).delete()
            found.sessions.append(session)
        else:
            found.turns += await _forget_in(client, SessionId(session), user, of.turns)
    for cell in cells:
        found.turns += await erase_turns(cell) or 0
    await erasure.search(cells, {*found.sessions}, tenant, found, user, sessions.keys())
    return found


async def _forget_in(client: AsyncClient, session: SessionId, user: str, turns: list[str]) -> int:
    """Erase the turns of a user from a session that stays, and the turns that they steered."""
    erased = ErasedPart(user, turns)
    for turn in turns:
        with suppress(TurnNotFound):
            one = await client.turn(turn)
            await one.cancel("the user was erased")
            await one.ended()
            erased.add(await one.info())
    cell = client.connections.cell_of_session(session)
    runtime, ref = RedisRuntime(client.connections.here), SessionRef(session)
    erased.without(await runtime.read(ref))
    while True:
        # First, so that a repetition after a crash finds the messages that name them.
        await drop_files(cell, session, *await erased.files(cell, session))
        try:
            await runtime.edit(ref, Edit(becomes=erased.without))
        except UsageError:
            return 0  # it is closed: its history cannot be changed, and the search reports it
        await remove_title(cell, session, erased.turns)
        answer = await erase_turns_of(cell, session, user, sorted(erased.turns))
        if not isinstance(answer, Busy):
            return answer
        with suppress(TurnNotFound):
            await (await client.turn(answer.turn_id)).ended()
