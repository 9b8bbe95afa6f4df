"""Handles of turns: look at one, wait for it, read along, cancel it. Watching never disturbs the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from typing import Any, Protocol, cast

import msgspec

from antiphon.errors import ResultTimeout, StreamGap, TurnCancelled, UsageError
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import TERMINAL, Response, Status
from antiphon.redis.edits import found_in
from antiphon.redis.subscription import Subscription
from antiphon.redis.turn_errors import error_of
from antiphon.session.background import call, iterate
from antiphon.session.reentry import own_turns, waits_for_itself
from antiphon.wire.cell import Cell, TurnRecord
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.records import readable

__all__ = ["AsyncTurn", "Turn", "seconds"]


class Connections(Protocol):
    """What a handle needs of its client. Raises ``ClientClosed`` where that is closed."""

    def cell_of_turn(self, turn: TurnId) -> Cell: ...

    def feed_of(self, cell: Cell) -> LiveFeed: ...


def seconds(value: float | timedelta | None) -> float | None:
    """How long a caller waits, in seconds; 0 does not wait. Raises ``UsageError``."""
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if found is None or (isinstance(found, int | float) and not isinstance(found, bool) and found >= 0):
        return found
    raise UsageError(f"timeout= is a number of seconds or a timedelta, not {value!r}.")


class AsyncTurn:
    """A turn that was submitted.

    >>> from antiphon import Agent, AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> turn = await client.submit("user-123", "Hello", agent=Agent(provider="scripted", model="any"))
    >>> turn.session_id
    'user-123'
    """

    def __init__(self, client: Connections, turn_id: TurnId, session_id: SessionId) -> None:
        self.id = turn_id
        self.session_id = session_id
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, session_id={self.session_id!r})"

    async def status(self) -> Status:
        """Where the turn is now. Raises ``TurnNotFound`` a week after its end.

        >>> await turn.status() in ("queued", "running", "finished")
        True
        """
        return cast("Status", (await self._record()).status)

    async def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the end and give the response.

        Raises as ``Session.run`` where the turn failed (``ProviderRejected``, ``UnknownAgent``, ``TurnFailed``, …) or
        was cancelled (``TurnCancelled``), always an ``AgentError``; after ``timeout`` seconds ``ResultTimeout``,
        which leaves the turn alone: call again to go on waiting. Without ``timeout`` it raises ``UsageError`` in a tool
        of a turn that this one waits for.

        >>> (await turn.result(timeout=10)).text
        'You said: Hello'
        """
        patience = seconds(timeout)
        if patience is None:
            await self._check_others_turn()
        try:
            async with asyncio.timeout(patience):
                return _response(await self.ended())
        except TimeoutError:
            raise ResultTimeout(
                f"The turn has not ended within {patience:g} s; it goes on.",
                session_id=self.session_id, turn_id=self.id,
            ) from None  # fmt: skip

    async def stream(self, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """The turn's events from its first one (or after a cursor) to its terminal event.

        Of a turn that ended long ago and whose events are no longer kept, only the terminal event comes.
        Raises ``StreamGap`` where a running turn's events after ``after`` are no longer kept.

        >>> [event.type async for event in turn.stream()][-1]
        'turn_finished'
        """
        record = await self._record()
        start = after if after is not None else max(record.queued_seq - 1, 0)
        async with self._subscription(start) as events:
            try:
                async for event in events:
                    if event.turn_id != self.id:
                        continue
                    yield event
                    if event.terminal and event.run >= record.run:
                        return
            except StreamGap:
                record = await events.patiently(self._record)
                if record.status not in TERMINAL:
                    raise
        yield _terminal_event(record)

    async def cancel(self, reason: str = "cancelled by the client") -> str:
        """Cancel the turn; its finished steps stay in the history.

        Gives ``cancelled``, ``requested`` (a worker runs it and will end it), or the status it had ended with.

        >>> later = await client.submit("user-456", "Hello", agent="any", delay=3600)
        >>> await later.cancel("not needed any more")
        'cancelled'
        """
        return await self._client.cell_of_turn(self.id).cancel(self.id, reason)

    async def _check_others_turn(self) -> None:
        """Before waiting without an end: raises ``UsageError`` in a tool of a turn that the session still has to do."""
        own = own_turns(self.session_id)
        if own and (await self._record()).status not in TERMINAL:
            found = await found_in(self._client.cell_of_turn(self.id), self.session_id)
            if not own.isdisjoint(found.inbox):
                raise waits_for_itself(self.session_id)

    async def _record(self) -> TurnRecord:
        return await self._client.cell_of_turn(self.id).turn(self.id)

    def _subscription(self, after: int | str | None) -> Subscription:
        cell = self._client.cell_of_turn(self.id)
        return Subscription(cell, self._client.feed_of(cell), self.session_id, after)

    async def ended(self) -> TurnRecord:
        """Wait for the end, however it is, and give the turn as it stands then."""
        while True:
            async with self._subscription(None) as events:
                record = await events.patiently(self._record)
                if record.status in TERMINAL:
                    return record
                try:
                    async for event in events:
                        if event.turn_id == self.id and event.terminal and event.run >= record.run:
                            return await events.patiently(self._record)
                except StreamGap:
                    continue  # the end may have been in it: look again


class Turn:
    """A turn that was submitted; the calls of ``AsyncTurn``, waiting.

    >>> from antiphon import Agent, Client
    >>> client = Client("redis://localhost:6379/0")
    >>> turn = client.submit("user-123", "Hello", agent=Agent(provider="scripted", model="any"))
    >>> turn.result(timeout=10).text
    'You said: Hello'
    """

    def __init__(self, turn: AsyncTurn) -> None:
        self._turn = turn

    @property
    def id(self) -> TurnId:
        """The id, by which any client finds the turn again.

        >>> client.turn(turn.id).result(timeout=10).text
        'You said: Hello'
        """
        return self._turn.id

    @property
    def session_id(self) -> SessionId:
        """The session that the turn belongs to.

        >>> turn.session_id
        'user-123'
        """
        return self._turn.session_id

    def __repr__(self) -> str:
        return f"Turn(id={self.id!r}, session_id={self.session_id!r})"

    def status(self) -> Status:
        """Where the turn is now. Raises ``TurnNotFound`` a week after its end.

        >>> turn.status()
        'finished'
        """
        return call(self._turn.status())

    def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the end and give the response. Raises as ``AsyncTurn.result``.

        >>> turn.result(timeout=10).usage.output_tokens
        4
        """
        return call(self._turn.result(timeout))

    def stream(self, after: int | str | None = None) -> Iterator[Event]:
        """The turn's events to its terminal event. Raises as ``AsyncTurn.stream``.

        >>> "".join(event.text for event in turn.stream() if event.type == "text_delta")
        'You said: Hello'
        """
        return iterate(self._turn.stream(after))

    def cancel(self, reason: str = "cancelled by the client") -> str:
        """Cancel the turn; its finished steps stay in the history.

        >>> turn.cancel()  # too late: it has ended
        'finished'
        """
        return call(self._turn.cancel(reason))


def _response(record: TurnRecord) -> Response:
    where: dict[str, Any] = {"session_id": record.session_id, "turn_id": record.turn_id}
    if record.status == "failed":
        raise error_of(record.error_code, record.error, record.session_id, record.turn_id)
    if record.status == "cancelled":
        raise TurnCancelled(record.error or None, **where)
    with readable("The response of a turn", **where):
        return msgspec.json.decode(record.response, type=Response)


def _terminal_event(record: TurnRecord) -> Event:
    """The terminal event of a turn whose events are no longer kept."""
    with readable("The record of a turn", session_id=record.session_id, turn_id=record.turn_id):
        ended = int(record.fields.get("ended_at") or 0)
    where: dict[str, Any] = {
        "seq": record.last_seq, "at": ended, "session_id": record.session_id, "turn_id": record.turn_id,
        "run": record.run, "attempt": record.attempt,
    }  # fmt: skip
    match record.status:
        case "finished":
            return TurnFinished(response=_response(record), **where)
        case "failed":
            return TurnFailedEvent(code=record.error_code, message=record.error, **where)
        case _:
            return TurnCancelledEvent(reason=record.error, **where)
