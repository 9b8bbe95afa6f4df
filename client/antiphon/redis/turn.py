"""Handles of turns: look at one, wait for it, read along, cancel it. Watching never disturbs the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, cast

import msgspec

from antiphon.errors import AgentError, ResultTimeout, StreamGap, TurnCancelled, TurnError, TurnFailed
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.values import patience
from antiphon.model import TERMINAL, Response, Status
from antiphon.redis.connections import Connections
from antiphon.redis.edits import found_in
from antiphon.redis.subscription import Subscription
from antiphon.session.reentry import own_turns, waits_for_itself
from antiphon.wire.cell import TurnRecord
from antiphon.wire.inspection import place_of_turn
from antiphon.wire.records import readable

__all__ = ["AsyncTurn", "error_of"]


class AsyncTurn:
    """A turn that was submitted.

    >>> from antiphon import Agent, AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> turn = await client.submit("user-123", "Hello", agent=Agent(provider="scripted", model="any"))
    >>> turn.session_id
    'user-123'
    """

    def __init__(self, connections: Connections, turn_id: TurnId, session_id: SessionId) -> None:
        self.id = turn_id
        self.session_id = session_id
        self._connections = connections

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
        seconds = patience(timeout)
        if seconds is None:
            await self._check_others_turn()
        try:
            async with asyncio.timeout(seconds):
                return _response(await self.ended())
        except TimeoutError:
            raise ResultTimeout(
                f"The turn has not ended within {seconds:g} s; it goes on.",
                session_id=self.session_id, turn_id=self.id,
            ) from None  # fmt: skip

    async def stream(self, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """The turn's events from its first one that is kept (or after a cursor) to its terminal event.

        Of a turn that ended long ago and whose events are no longer kept, only the terminal event comes.
        Raises ``StreamGap`` where a running turn's events after ``after`` are no longer kept.

        >>> [event.type async for event in turn.stream()][-1]
        'turn_finished'
        """
        record = await self._record()
        start = after if after is not None else max(record.queued_seq - 1, 0)
        async with self._subscription(start) as events:
            while True:
                try:
                    async for event in events:
                        if event.turn_id != self.id:
                            continue
                        after = event.seq
                        yield event
                        if event.terminal and event.run >= record.run:
                            return
                except StreamGap:
                    record = await events.patiently(self._record)
                    if after is None:
                        after = await events.patiently(self._beginning)
                        events.go_on(after)
                    elif record.status in TERMINAL:
                        break
                    else:
                        raise
        yield _terminal_event(record)

    async def cancel(self, reason: str = "cancelled by the client") -> str:
        """Cancel the turn; its finished steps stay in the history.

        Gives ``cancelled``, ``requested`` (a worker runs it and will end it), or the status it had ended with.

        >>> later = await client.submit("user-456", "Hello", agent="any", delay=3600)
        >>> await later.cancel("not needed any more")
        'cancelled'
        """
        return await self._connections.cell_of_turn(self.id).cancel(self.id, reason)

    async def _check_others_turn(self) -> None:
        """Before waiting without an end: raises ``UsageError`` in a tool of a turn that the session still has to do."""
        own = own_turns(self.session_id)
        if own and (await self._record()).status not in TERMINAL:
            found = await found_in(self._connections.cell_of_turn(self.id), self.session_id)
            if not own.isdisjoint(found.inbox):
                raise waits_for_itself(self.session_id)

    async def _record(self) -> TurnRecord:
        return await self._connections.cell_of_turn(self.id).turn(self.id)

    async def _beginning(self) -> int:
        """The cursor before the turn's first event that is kept."""
        return await place_of_turn(self._connections.cell_of_turn(self.id), self.session_id, self.id)

    def _subscription(self, after: int | str | None) -> Subscription:
        cell = self._connections.cell_of_turn(self.id)
        return Subscription(cell, self._connections.feed_of(cell), self.session_id, after)

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


def error_of(code: str, message: str, session_id: str, turn_id: str) -> AgentError:
    """The error of a turn that ended with this code: of its own class where we know it, else ``TurnFailed``."""
    known = _by_code(AgentError).get(code)
    if known is None:
        return TurnFailed(message or None, code=code or None, session_id=session_id, turn_id=turn_id)
    return known(message or None, session_id=session_id, turn_id=turn_id)


def _by_code(root: type[AgentError]) -> dict[str, type[AgentError]]:
    found: dict[str, type[AgentError]] = {}
    for child in root.__subclasses__():
        found |= _by_code(child)
    if root not in (AgentError, TurnError):
        found[str(root.code)] = root
    return found
