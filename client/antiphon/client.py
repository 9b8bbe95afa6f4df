"""Submitting turns and following sessions from any service.

async with AsyncClient("redis://localhost:6379/0") as client:
    turn = await client.submit("user-123", "Hello", agent="support")
    async for event in turn.stream():
        ...
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, get_args

import msgspec

from antiphon.errors import SessionNotFound, UsageError
from antiphon.events import Event
from antiphon.input.ids import SessionId, TurnId, new_session_id, session_id, turn_id
from antiphon.input.messages import Input
from antiphon.input.options import ListOptions, OpeningOptions
from antiphon.input.request import AgentSpec, Travelling, travelling_agent
from antiphon.input.values import duration
from antiphon.model import Message, Status, decode_message
from antiphon.redis.cells import ConnectionOptions
from antiphon.redis.connections import Connections
from antiphon.redis.listing import list_sessions, list_turns
from antiphon.redis.runtime import RedisRuntime
from antiphon.redis.subscription import Subscription
from antiphon.redis.turn import AsyncTurn
from antiphon.session.background import call, iterate, on_background
from antiphon.session.listing import AsyncSessionList, SessionList, wanted
from antiphon.session.opening import opening_of
from antiphon.session.runtime import DEFAULT_TTL_SECONDS, SessionAgent, SessionRef
from antiphon.session.session import Session
from antiphon.session.synchronous import spelled_out
from antiphon.session.turn import Turn
from antiphon.session.work import ClientSubmitOptions, work_of_client
from antiphon.wire.cell import DEFAULT_QUEUE

__all__ = ["DEFAULT_QUEUE", "AsyncClient", "Client", "SessionSnapshot", "Submission"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Submission(msgspec.Struct):
    """One turn for ``submit_many``."""

    session_id: str
    text: Any
    agent: Any = None
    key: str | None = None


class SessionSnapshot(msgspec.Struct):
    """A consistent view of a session.

    ``messages`` are the messages of the finished turns. ``turn_id`` is the running turn, or None. Subscribe after
    ``cursor`` to receive all events of the running turn and of the turns after it.
    """

    session_id: SessionId
    messages: list[Message]
    cursor: int
    turn_id: TurnId | None


class AsyncClient:
    """Submits turns to workers and follows sessions. It connects to Redis on first use.

    ``redis`` is a URL, a list of URLs (cells) or a redis-py client. Use each client in one event loop only.

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
        *,
        agent: str | AgentSpec | Travelling | None = None,
        ttl: float | timedelta | None = DEFAULT_TTL_SECONDS,
        **options: Unpack[ClientSubmitOptions],
    ) -> AsyncTurn:
        """Submit a turn. When this returns, the turn is stored and will run even if the caller stops.

        With a ``key``, repeating the call in the same session returns the first turn instead of a second one, until
        7 days after that turn's end; a different text raises ``KeyReused``. ``if_busy="reject"`` raises
        ``SessionBusy`` if the session has a turn. ``delay``, ``timeout`` (for each attempt, from its start) and
        ``ttl`` (how long the session is kept after its last turn, None for ever) are in seconds or a timedelta.

        The turn goes to the first queue that is set: ``queue``, the session's, that of ``agent``, of the session's
        agent, or of this client. If only ``queue`` is set, it becomes the session's. The session keeps its ``tenant``:
        another one raises ``UsageError``. Also raises ``InvalidId``, ``InvalidMessage`` and ``StoreError``.

        >>> first = await client.submit("user-123", "Pay", agent=agent, key="payment-1", tenant="acme")
        >>> first.id == (await client.submit("user-123", "Pay", agent=agent, key="payment-1")).id
        True
        """
        ref = SessionRef(session_id(session), ttl=duration(ttl, "ttl"))
        work = work_of_client(text, options)
        new_id = await self.connections.submit(ref, work, travelling_agent(agent))
        return AsyncTurn(self.connections, new_id, ref.id)

    async def submit_many(self, submissions: Iterable[Submission]) -> list[AsyncTurn]:
        """Submit several turns in order. If one is refused, its error is raised; the turns before it will run.

        >>> from antiphon.client import Submission
        >>> turns = await client.submit_many([Submission("a", "One", agent), Submission("b", "Two", agent)])
        >>> [(await turn.result(timeout=10)).text for turn in turns]
        ['You said: One', 'You said: Two']
        """
        wanted = list(submissions)
        for one in wanted:
            if not isinstance(one, Submission):
                raise UsageError(f"submit_many needs Submission(session_id, text, …), not {one!r:.80}.")
        return [await self.submit(one.session_id, one.text, agent=one.agent, key=one.key) for one in wanted]

    async def turn(self, turn: str) -> AsyncTurn:
        """Find a turn by its id. Raises ``TurnNotFound``.

        >>> await (await client.turn(turn.id)).status()
        'finished'
        """
        known = turn_id(turn)
        record = await self.connections.cell_of_turn(known).turn(known)
        return AsyncTurn(self.connections, known, record.session_id)

    @spelled_out
    def session(
        self,
        session: str | None = None,
        *,
        agent: SessionAgent | str | None = None,
        ttl: float | timedelta | None = DEFAULT_TTL_SECONDS,
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
            lambda after, page: list_sessions(self.connections.cells, after, page), wanted(**which)
        )

    async def turns(self, session: str, *, status: Status | None = None) -> AsyncGenerator[AsyncTurn, None]:
        """Iterate over the last 1,000 turns of a session, newest first. A turn is kept for a week after its end.

        ``status`` selects the turns that are ``queued``, ``waiting``, ``running``, ``retrying``, ``suspended``,
        ``finished``, ``failed`` or ``cancelled`` when they are read.

        >>> [found.id async for found in client.turns("user-123", status="finished")] == [turn.id]
        True
        """
        where = session_id(session)
        if status is not None and status not in get_args(Status):
            raise UsageError(f"status= must be one of {', '.join(get_args(Status))}, not {status!r}.")
        async for turn in list_turns(self.connections.cell_of_session(where), where, status):
            yield AsyncTurn(self.connections, turn, where)

    async def snapshot(self, session: str) -> SessionSnapshot:
        """Read a session's messages and the cursor to continue from, in one atomic step.

        For a session that does not exist, the snapshot is empty and the cursor is 0.

        >>> snapshot = await client.snapshot("user-123")
        >>> len(snapshot.messages), snapshot.turn_id
        (2, None)
        """
        where = session_id(session)
        try:
            found = await self.connections.cell_of_session(where).snapshot(where)
        except SessionNotFound:
            return SessionSnapshot(where, [], 0, None)
        return SessionSnapshot(
            where, [decode_message(one) for one in found.history], found.cursor, found.turn_id
        )

    async def subscribe(self, session: str, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """Iterate over the session's events after a cursor, each once and in order. The iteration does not end.

        ``after`` is the seq of the last event seen (a number or text), 0 for all stored events, or None for new events
        only. After a lost connection the client reconnects and reads the missed events from the log. Raises
        ``StreamGap`` if they are no longer kept: take a ``snapshot`` and continue from its cursor.

        >>> events = client.subscribe("user-123", after=0)
        >>> (await anext(events)).type, (await anext(events)).type
        ('turn_queued', 'turn_started')
        >>> await events.aclose()
        """
        where = session_id(session)
        cell = self.connections.cell_of_session(where)
        async with Subscription(cell, self.connections.feed_of(cell), where, after) as events:
            async for event in events:
                yield event

    async def as_completed(self, turns: Iterable[AsyncTurn]) -> AsyncGenerator[AsyncTurn, None]:
        """Iterate over the turns in the order in which they end.

        >>> [(await done.result()).text async for done in client.as_completed([turn])]
        ['You said: Hello']
        """

        async def ended(turn: AsyncTurn) -> AsyncTurn:
            await turn.ended()
            return turn

        tasks = [asyncio.create_task(ended(turn)) for turn in turns]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _waiting(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]], given: Callable[[T], R]
) -> Callable[Concatenate[Client, P], R]:
    """Make a ``Client`` method that waits for this method and returns its result converted by ``given``."""

    @wraps(method)
    def wait(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return given(call(method(self._client, *args, **kwargs)))

    wait.__qualname__ = f"Client.{method.__name__}"
    wait.__doc__ = (method.__doc__ or "").replace("await ", "")
    answer = "Turn" if given is Turn else inspect.signature(given).return_annotation
    cast("Any", wait).__signature__ = inspect.signature(method).replace(return_annotation=answer)
    return wait


def _turns(turns: list[AsyncTurn]) -> list[Turn]:
    return [Turn(turn) for turn in turns]


def _snapshot(snapshot: SessionSnapshot) -> SessionSnapshot:
    return snapshot


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

    @spelled_out
    def session(
        self,
        session: str | None = None,
        *,
        agent: SessionAgent | str | None = None,
        ttl: float | timedelta | None = DEFAULT_TTL_SECONDS,
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

    def turns(self, session: str, *, status: Status | None = None) -> Iterator[Turn]:
        """Iterate over the turns of a session, as ``AsyncClient.turns`` does.

        >>> [found.status() for found in client.turns("user-123")]
        ['finished']
        """
        for turn in iterate(self._client.turns(session, status=status)):
            yield Turn(turn)

    def subscribe(self, session: str, after: int | str | None = None) -> Iterator[Event]:
        """Iterate over the session's events after a cursor, as ``AsyncClient.subscribe`` does.

        >>> for event in client.subscribe("user-123", after=0):
        ...     if event.type == "turn_finished":
        ...         break
        >>> event.response.text
        'You said: Hello'
        """
        return iterate(self._client.subscribe(session, after))

    def as_completed(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """Iterate over the turns in the order in which they end.

        >>> for done in client.as_completed([turn]):
        ...     done.id == turn.id
        True
        """
        handles = {id(turn._turn): turn for turn in turns}
        for done in iterate(
            self._client.as_completed(cast("AsyncTurn", turn._turn) for turn in handles.values())
        ):
            yield handles[id(done)]


def _session(
    connections: Connections,
    known: str | None,
    agent: SessionAgent | str | None,
    ttl: float | timedelta | None,
    opening: OpeningOptions,
    *,
    background: bool,
) -> Session:
    """Return a session on these connections, which belong to the background loop or to the caller's loop."""
    if agent is not None and not isinstance(agent, str | Travelling):
        raise UsageError(f"agent= must be an agent's name or an Agent, not {type(agent).__name__}.")

    async def connected() -> Connections:
        if on_background() is not background:
            raise UsageError(
                "Use the _async methods for a session of an AsyncClient, and the other methods for one of a Client."
            )
        return connections

    ref = SessionRef(new_session_id() if known is None else session_id(known), ttl=duration(ttl, "ttl"))
    return Session(agent, ref, opening_of(**opening), RedisRuntime(connected))
