"""Submitting turns and following sessions from any service.

async with AsyncClient("redis://localhost:6379/0") as client:
    turn = await client.submit("user-123", "Hello", agent="support")
    async for event in turn.stream():
        ...
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, Self, Unpack, get_args

import msgspec

from antiphon.client_sessions import client_session
from antiphon.errors import ClientClosed, SessionNotFound, UsageError
from antiphon.events import Event
from antiphon.input.ids import (
    SessionId,
    TurnId,
    check_key,
    check_queue,
    new_turn_id,
    session_id,
    tenant_id,
    turn_id,
    turn_id_of_key,
)
from antiphon.input.messages import Input, to_input
from antiphon.input.options import ListOptions, OpeningOptions
from antiphon.input.request import (
    AgentSpec,
    OutputSpec,
    Travelling,
    TurnRequest,
    encode_request,
    queue_of,
    travelling_agent,
)
from antiphon.model import Message, Status, decode_message
from antiphon.redis.cells import Cells, open_cells
from antiphon.redis.listing import list_sessions, list_turns
from antiphon.redis.subscription import Subscription
from antiphon.redis.turn import AsyncTurn
from antiphon.session.listing import AsyncSessionList, wanted
from antiphon.session.runtime import AgentLike, duration, plain
from antiphon.session.session import Session
from antiphon.session.turns import check_if_busy
from antiphon.wire.cell import DEFAULT_QUEUE, DEFAULT_TTL_MS, Cell
from antiphon.wire.connection.pubsub import LiveFeed

__all__ = ["DEFAULT_QUEUE", "AsyncClient", "SessionSnapshot", "Submission"]


class Submission(msgspec.Struct):
    """One turn for ``submit_many``."""

    session_id: str
    text: Any
    agent: Any = None
    key: str | None = None


class SessionSnapshot(msgspec.Struct):
    """A session at one moment.

    ``messages`` are those of the finished turns. Subscribing after ``cursor`` brings the running turn, whose id is
    ``turn_id``, from its first event on, and then all that follows.
    """

    session_id: SessionId
    messages: list[Message]
    cursor: int
    turn_id: TurnId | None


class AsyncClient:
    """Submits turns and follows sessions. Constructing it connects to nothing.

    ``redis`` is a URL, a list of URLs (cells) or a redis-py client. One client belongs to one event loop.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> turn = await client.submit("user-123", "Hello", agent=agent)
    >>> (await turn.result(timeout=10)).text
    'You said: Hello'
    """

    def __init__(
        self, redis: Any, *, prefix: str | None = None, queue: str = DEFAULT_QUEUE, **options: Any
    ) -> None:
        self._open = lambda: open_cells(redis, prefix=prefix, **options)
        self._queue = check_queue(queue)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._cells = self._open()
        self._feeds = {id(cell): LiveFeed(cell.redis) for cell in self._cells}
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first use
        self._pid = os.getpid()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. Turns go on; whoever still reads or waits gets ``ClientClosed``.

        >>> await client.aclose()
        """
        self._closed = True
        if self._pid != os.getpid() or (self._loop is not None and self._loop.is_closed()):
            return  # the connections are its parent's, or ended with their loop
        for feed in self._feeds.values():
            await feed.aclose()
        for cell in self._cells:
            await cell.redis.aclose()

    async def submit(
        self,
        session: str,
        text: Input,
        *,
        agent: str | AgentSpec | Travelling | None = None,
        key: str | None = None,
        params: Mapping[str, Any] | None = None,
        output: OutputSpec | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_busy: Literal["enqueue", "reject"] = "enqueue",
        tenant: str | None = None,
        queue: str | None = None,
        delay: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        ttl: float | timedelta | None = DEFAULT_TTL_MS / 1000,
    ) -> AsyncTurn:
        """Hand in a turn; when this returns it is accepted and will run, whatever happens to the caller.

        With a ``key`` the same call in the same session submits once, for as long as the turn is kept (7 days after
        its end), and gives the first turn again; with another text it raises ``KeyReused``. ``if_busy="reject"``
        raises ``SessionBusy`` where the session has a turn. ``delay``, ``timeout`` (of each attempt, from its start)
        and ``ttl`` (how long the session is kept after its last turn, None for ever) are seconds or a timedelta.

        The turn goes to ``queue``, else to that of the session, of ``agent``, of the session's agent, or of this
        client. Where there is none but ``queue``, the session keeps it. A session also keeps its ``tenant``, and to
        another raises ``UsageError``. Raises ``InvalidId``, ``InvalidMessage`` and ``StoreError`` as well.

        >>> first = await client.submit("user-123", "Pay", agent=agent, key="payment-1", tenant="acme")
        >>> first.id == (await client.submit("user-123", "Pay", agent=agent, key="payment-1")).id
        True
        """
        where = session_id(session)
        check_if_busy(if_busy)
        asked = travelling_agent(agent)
        payload = encode_request(TurnRequest(
            to_input(text), asked, plain(params, "params"), output, plain(metadata, "metadata"),
            duration(timeout, "timeout"),
        ))  # fmt: skip
        new_id = turn_id_of_key(where, check_key(key)) if key is not None else new_turn_id(where)
        await self.cell_of_turn(new_id).submit(
            where, new_id, payload, digest=hashlib.sha256(payload).hexdigest(),
            queue=check_queue(queue) if queue is not None else "",
            agent_queue=queue_of(asked), default_queue=self._queue, ttl_ms=_milliseconds(ttl, "ttl"),
            reject_if_busy=if_busy == "reject", due_in_ms=_milliseconds(delay, "delay"),
            agent=msgspec.json.encode(asked) if asked is not None else b"",
            tenant="" if tenant is None else tenant_id(tenant),
        )  # fmt: skip
        return AsyncTurn(self, new_id, where)

    async def submit_many(self, submissions: Iterable[Submission]) -> list[AsyncTurn]:
        """Hand in several turns, in order. The first that is refused raises; those before it are accepted.

        >>> from antiphon.client import Submission
        >>> turns = await client.submit_many([Submission("a", "One", agent), Submission("b", "Two", agent)])
        >>> [(await turn.result(timeout=10)).text for turn in turns]
        ['You said: One', 'You said: Two']
        """
        wanted = list(submissions)
        for one in wanted:
            if not isinstance(one, Submission):
                raise UsageError(f"submit_many takes Submission(session_id, text, …), not {one!r:.80}.")
        return [await self.submit(one.session_id, one.text, agent=one.agent, key=one.key) for one in wanted]

    async def turn(self, turn: str) -> AsyncTurn:
        """The handle of a turn by its id. Raises ``TurnNotFound``.

        >>> await (await client.turn(turn.id)).status()
        'finished'
        """
        known = turn_id(turn)
        record = await self.cell_of_turn(known).turn(known)
        return AsyncTurn(self, known, record.session_id)

    def session(
        self,
        session: str | None = None,
        *,
        agent: AgentLike | str | None = None,
        ttl: float | timedelta | None = DEFAULT_TTL_MS / 1000,
        **opening: Unpack[OpeningOptions],
    ) -> Session:
        """The session of this id on this client, or a new one. Nothing is read or written before it is used.

        ``agent`` (an ``Agent``, or the name of one that the workers know) works on the turns that name no other;
        without it, the agent that the session began with. Further keywords as in ``Agent.session``: ``system``,
        ``messages``, ``variables``, ``metadata``, ``tenant``, ``queue``. Its ``_async`` methods are the ones to
        call.

        >>> session = client.session("user-123", agent=agent)
        >>> (await session.run_async("Again")).text
        'You said: Again'
        """
        return client_session(lambda: self, session, agent, ttl, opening, background=False)

    def sessions(self, **which: Unpack[ListOptions]) -> AsyncSessionList:
        """The sessions that are kept, on all cells, for ``async for``; keywords as in ``Client.sessions``.

        >>> [info.session_id async for info in client.sessions()]
        ['user-123']
        """
        return AsyncSessionList(lambda after, page: list_sessions(self.cells, after, page), wanted(**which))

    async def turns(self, session: str, *, status: Status | None = None) -> AsyncGenerator[AsyncTurn, None]:
        """The turns of a session, the one submitted last first: its last 1,000, a week beyond their end.

        ``status`` picks those that are ``queued``, ``waiting``, ``running``, ``retrying``, ``suspended``,
        ``finished``, ``failed`` or ``cancelled`` when they are read.

        >>> [found.id async for found in client.turns("user-123", status="finished")] == [turn.id]
        True
        """
        where = session_id(session)
        if status is not None and status not in get_args(Status):
            raise UsageError(f"status= is one of {', '.join(get_args(Status))}, not {status!r}.")
        async for turn in list_turns(self.cell_of_session(where), where, status):
            yield AsyncTurn(self, turn, where)

    async def snapshot(self, session: str) -> SessionSnapshot:
        """A session's finished messages and the cursor to go on from, read in one moment.

        A session that does not exist yet is empty, with cursor 0.

        >>> snapshot = await client.snapshot("user-123")
        >>> len(snapshot.messages), snapshot.turn_id
        (2, None)
        """
        where = session_id(session)
        try:
            found = await self.cell_of_session(where).snapshot(where)
        except SessionNotFound:
            return SessionSnapshot(where, [], 0, None)
        return SessionSnapshot(
            where, [decode_message(one) for one in found.history], found.cursor, found.turn_id
        )

    async def subscribe(self, session: str, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """The session's events after a cursor, each once and in order, without end.

        ``after`` is the seq of the last event seen (a number or its text), 0 for all that is kept, None for from now
        on. Lost connections are made again and what was missed is read from the log. Raises ``StreamGap`` where it
        is no longer there: take a ``snapshot`` and go on from its cursor.

        >>> events = client.subscribe("user-123", after=0)
        >>> (await anext(events)).type, (await anext(events)).type
        ('turn_queued', 'turn_started')
        >>> await events.aclose()
        """
        where = session_id(session)
        cell = self.cell_of_session(where)
        async with Subscription(cell, self.feed_of(cell), where, after) as events:
            async for event in events:
                yield event

    async def as_completed(self, turns: Iterable[AsyncTurn]) -> AsyncGenerator[AsyncTurn, None]:
        """The turns in the order in which they end.

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

    @property
    def cells(self) -> Cells:
        """The cells of the deployment. Raises ``ClientClosed``, and ``UsageError`` on another event loop."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            _left_behind.append((self._cells, self._feeds))
            self._begin()
        self._check_loop()
        return self._cells

    def cell_of_session(self, session: SessionId) -> Cell:
        return self.cells.of_session(session)

    def cell_of_turn(self, turn: TurnId) -> Cell:
        return self.cells.of_turn(turn)

    def feed_of(self, cell: Cell) -> LiveFeed:
        return self._feeds[id(cell)]

    def _check_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nothing is read or written here
            return
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "An AsyncClient belongs to the event loop on which it was first used: open one for each "
                "asyncio.run, or use Client, which works everywhere."
            )


def _milliseconds(value: float | timedelta | None, name: str) -> int:
    """A duration as the scripts take it: 0 where there is none."""
    return math.ceil((duration(value, name) or 0) * 1000)


_left_behind: list[object] = []
"""The parent's connections, in the child of a fork: taken apart there, they would leave the parent's event loop."""
