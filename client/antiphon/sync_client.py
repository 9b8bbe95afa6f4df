"""The client for callers that do not await: its calls wait on the background loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Self, Unpack

from antiphon.client import DEFAULT_QUEUE, AsyncClient, SessionSnapshot, Submission
from antiphon.client_sessions import client_session
from antiphon.events import Event
from antiphon.input.messages import Input
from antiphon.input.options import OpeningOptions, SubmitOptions
from antiphon.model import Status
from antiphon.redis.turn import Turn
from antiphon.session.background import call, iterate
from antiphon.session.listing import SessionList
from antiphon.session.runtime import AgentLike
from antiphon.session.session import Session
from antiphon.wire.cell import DEFAULT_TTL_MS

__all__ = ["Client"]


class Client:
    """The calls of ``AsyncClient``, waiting: for scripts, threads, views, notebooks and forked servers.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", name="parrot")
    >>> client = Client("redis://localhost:6379/0")
    >>> turn = client.submit("user-123", "Hello", agent=agent)
    >>> turn.result(timeout=10).text
    'You said: Hello'
    """

    def __init__(
        self, redis: Any, *, prefix: str | None = None, queue: str = DEFAULT_QUEUE, **options: Any
    ) -> None:
        self._client = AsyncClient(redis, prefix=prefix, queue=queue, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Turns go on; threads that still read or wait get ``ClientClosed``.

        >>> with Client("redis://localhost:6379/0") as other:  # closed at the end
        ...     other.turn(turn.id).status()
        'finished'
        """
        call(self._client.aclose())

    def submit(self, session: str, text: Input, **options: Unpack[SubmitOptions]) -> Turn:
        """Hand in a turn; options and errors as in ``AsyncClient.submit``.

        >>> client.submit("user-123", "In an hour", agent=agent, delay=3600).status()
        'queued'
        """
        return Turn(call(self._client.submit(session, text, **options)))

    def submit_many(self, submissions: Iterable[Submission]) -> list[Turn]:
        """Hand in several turns, in order.

        >>> from antiphon.client import Submission
        >>> turns = client.submit_many([Submission("a", "One", agent), Submission("b", "Two", agent)])
        >>> [turn.result(timeout=10).text for turn in turns]
        ['You said: One', 'You said: Two']
        """
        return [Turn(turn) for turn in call(self._client.submit_many(submissions))]

    def turn(self, turn: str) -> Turn:
        """The handle of a turn by its id. Raises ``TurnNotFound``.

        >>> client.turn(turn.id).result(timeout=10).text
        'You said: Hello'
        """
        return Turn(call(self._client.turn(turn)))

    def session(
        self,
        session: str | None = None,
        *,
        agent: AgentLike | str | None = None,
        ttl: float | timedelta | None = DEFAULT_TTL_MS / 1000,
        **opening: Unpack[OpeningOptions],
    ) -> Session:
        """The session of this id on this client, or a new one; options as in ``AsyncClient.session``.

        It is used with the methods that wait.

        >>> client.session("user-123", agent=agent).run("Again").text
        'You said: Again'
        """
        return client_session(lambda: self._client, session, agent, ttl, opening, background=True)

    def sessions(
        self,
        *,
        tenant: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> SessionList:
        """The sessions that are kept, on all cells, the one whose life ends last (so, used last) first.

        ``tenant`` and ``metadata`` pick those that have these values. They are read in pages, as the iteration goes
        on. With a ``limit`` it ends after so many, or after having looked at 1,000 that were not wanted; the list's
        ``cursor`` then says where to go on: ``sessions(cursor=…)``. It is None at the end. A session that is used
        meanwhile moves to the front, and is not met any more.

        >>> [(info.session_id, info.messages) for info in client.sessions()]
        [('user-123', 2)]
        """
        return SessionList(
            self._client.sessions(tenant=tenant, metadata=metadata, limit=limit, cursor=cursor)
        )

    def turns(self, session: str, *, status: Status | None = None) -> Iterator[Turn]:
        """The turns of a session; as ``AsyncClient.turns``.

        >>> [found.status() for found in client.turns("user-123")]
        ['finished']
        """
        for turn in iterate(self._client.turns(session, status=status)):
            yield Turn(turn)

    def snapshot(self, session: str) -> SessionSnapshot:
        """A session's finished messages and the cursor to go on from, read in one moment.

        >>> snapshot = client.snapshot("user-123")
        >>> [message.text for message in snapshot.messages], snapshot.turn_id
        (['Hello', 'You said: Hello'], None)
        """
        return call(self._client.snapshot(session))

    def subscribe(self, session: str, after: int | str | None = None) -> Iterator[Event]:
        """The session's events after a cursor, each once and in order, without end.

        >>> for event in client.subscribe("user-123", after=0):
        ...     if event.type == "turn_finished":
        ...         break
        >>> event.response.text
        'You said: Hello'
        """
        return iterate(self._client.subscribe(session, after))

    def as_completed(self, turns: Iterable[Turn]) -> Iterator[Turn]:
        """The turns in the order in which they end.

        >>> for done in client.as_completed([turn]):
        ...     done.id == turn.id
        True
        """
        handles = {id(turn._turn): turn for turn in turns}
        for done in iterate(self._client.as_completed([turn._turn for turn in handles.values()])):
            yield handles[id(done)]
