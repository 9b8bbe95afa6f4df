"""Handles of submitted turns: check, wait for, follow or cancel a turn. Following never disturbs the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec

from antiphon.errors import (
    AgentError,
    InvalidOutput,
    LimitReached,
    ProviderError,
    ResultTimeout,
    StreamGap,
    TurnCancelled,
    TurnError,
    TurnFailed,
)
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished
from antiphon.input.history_cuts import step_id
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.schema import typed
from antiphon.input.values import Keep, check_keep, patience
from antiphon.model import TERMINAL, Decision, Response, Status
from antiphon.model.feedback import checked_feedback
from antiphon.model.recording import KeptRequest, Recording, VariantRun
from antiphon.redis.connections import Connections
from antiphon.redis.edits import found_in
from antiphon.redis.feedback import rate_turn
from antiphon.redis.recording import record_turn, requests_of
from antiphon.redis.subscription import Subscription, TurnEvents
from antiphon.redis.trees import decide_in_tree, info_of, tree_of
from antiphon.redis.turn_records import response_of, runs_of, service_of
from antiphon.redis.unserved import watched
from antiphon.redis.variants import read_variants, start_variants
from antiphon.session.background import own_turns, waits_for_itself
from antiphon.session.turn_info import TurnInfo, TurnRun, TurnTree
from antiphon.text import text_of
from antiphon.tools.approval import approval_of, rejection_of, result_of
from antiphon.wire.records import TurnRecord, readable


class AsyncTurn:
    """A submitted turn. ``info()`` reads its whole state in one round trip.

    >>> from antiphon import Agent, AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> turn = await client.submit("user-123", "Hello", agent=Agent(provider="scripted", model="any"))
    >>> (await turn.result(timeout=10)).text
    'You said: Hello'
    """

    def __init__(
        self, connections: Connections, turn_id: TurnId, session_id: SessionId, schema: Any = None
    ) -> None:
        self._id = turn_id
        self._session_id = session_id
        self._connections = connections
        self._schema = schema  # the caller's type for structured output
        self._end: TurnRecord | None = None  # of the last run, if it was read together with other turns

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, session_id={self.session_id!r})"

    @property
    def id(self) -> TurnId:
        """The id of the turn. Any client can find the turn again with it.

        >>> (await (await client.turn(turn.id)).result(timeout=10)).text
        'You said: Hello'
        """
        return self._id

    @property
    def session_id(self) -> SessionId:
        """The session that the turn belongs to.

        >>> turn.session_id
        'user-123'
        """
        return self._session_id

    def step_id(self, step: int) -> str:
        """Return the id of a finished step, for ``Session.fork`` and ``rewind``. ``step`` counts model calls from 1.

        The step includes the results of its tool calls. Raises ``UsageError`` if ``step`` is not a number from 1.

        >>> turn.step_id(1) == f"{turn.id}#1"
        True
        """
        return step_id(self.id, step)

    async def status(self) -> Status:
        """Return the current status. Raises ``TurnNotFound`` from one week after the turn's end.

        >>> response = await turn.result(timeout=10)
        >>> await turn.status()
        'finished'
        """
        return cast("Status", (await self._record()).status)

    async def info(self) -> TurnInfo:
        """Return the turn as it is now: its input, agent, metadata, key, times, attempt, error, usage and messages.

        Raises ``TurnNotFound`` a week after its end.

        >>> response = await turn.result(timeout=10)
        >>> info = await turn.info()
        >>> info.input[0].text, info.status, info.attempt
        ('Hello', 'finished', 1)
        """
        return await info_of(self._connections.cells, await self._record())

    async def tree(self) -> TurnTree:
        """Return the turn as it is now, with its child turns and theirs: their states, times and usage.

        Raises ``TurnNotFound`` and ``TurnDeleted``.

        >>> response = await turn.result(timeout=10)
        >>> tree = await turn.tree()
        >>> tree.status, tree.children, tree.total_usage == response.usage
        ('finished', [], True)
        """
        return await tree_of(self._connections.cells, await self._record())

    async def runs(self) -> list[TurnRun]:
        """Return the runs of the turn, oldest first: requeueing a failed turn adds one.

        Only the last 21 runs are returned. Raises ``TurnNotFound`` a week after the turn's end.

        >>> response = await turn.result(timeout=10)
        >>> [(run.run, run.status, run.error) for run in await turn.runs()]
        [(1, 'finished', None)]
        """
        return runs_of(await self._record())

    async def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the turn to end and return its response.

        Raises the errors of ``Session.run`` if the turn failed (``ProviderRejected``, ``UnknownAgent``,
        ``TurnFailed``, …) or was cancelled (``TurnCancelled``); all are ``AgentError``. Raises ``ResultTimeout``
        after ``timeout`` seconds; the turn keeps running, so call again to wait longer. Without ``timeout`` it raises
        ``UsageError`` in a tool of a turn that this turn waits for. A turn that steers another turn has the response
        of that turn.

        >>> (await turn.result(timeout=10)).text
        'You said: Hello'
        """
        seconds = patience(timeout)
        if seconds is None and self._end is None:
            await self._check_others_turn()
        try:
            async with asyncio.timeout(seconds):
                with watched(self._connections.cell_of_turn(self.id), self.id):
                    record = await self.ended()
                if into := record.fields.get("steered_into"):
                    other = AsyncTurn(self._connections, TurnId(text_of(into)), self.session_id)
                    return await other.result()
                return response_to(self, record)
        except TimeoutError:
            raise ResultTimeout(
                f"The turn has not ended within {seconds:g} s. It is not cancelled: call again to wait longer.",
                session_id=self.session_id, turn_id=self.id,
            ) from None  # fmt: skip

    def stream(
        self, after: int | str | None = None, *, heartbeat: float | timedelta | None = None
    ) -> TurnEvents:
        """Iterate over the turn's events, from the first one that is kept (or after a cursor) to the terminal event.

        With a ``heartbeat`` (seconds), a ``Heartbeat`` comes after each such period without another event.

        If an ended turn's events are no longer kept, this yields only the terminal event; after
        that event's seq, it yields nothing. If only events before the turn are missing, it continues with the turn's
        first event. Raises ``StreamGap`` if a running turn's own events after ``after`` are no longer kept.

        A cancelled ``anext`` loses nothing.

        >>> [event.type async for event in turn.stream()][-1]
        'turn_finished'
        """
        return TurnEvents(
            self.id, after, record=self._record, beginning=self._beginning, kept=self._end_kept,
            subscribe=self._subscription, terminal_event=terminal_event, heartbeat=heartbeat, schema=self._schema,
        )  # fmt: skip

    async def cancel(self, reason: str = "cancelled by the client", *, keep: Keep = "steps") -> str:
        """Cancel the turn. ``keep`` sets what stays in the history (``Session.cancel`` keeps ``"partial"``).

        - ``"steps"``: the input and the finished steps, or nothing if no step is finished.
        - ``"partial"``: the input and all output, including a partial answer. The last message is
          marked ``interrupted``. A tool call that has not returned gets a result that states this.
        - ``"nothing"``: nothing.

        A turn that has not begun leaves nothing, whatever ``keep`` is. A turn's output and tool results can be read
        from the turn (``info``) for a week. If tools ran and the history does not show it, the session's next turn
        reports it to the model.

        Returns ``cancelled``, ``requested`` (a worker runs the turn and will end it), or the status of a turn that
        has ended. If the worker dies before it ends the turn, another one does, and keeps the same; the partial
        answer that the dead worker was writing is lost.

        >>> later = await client.submit("user-456", "Hello", agent="any", delay=3600)
        >>> await later.cancel("not needed any more")
        'cancelled'
        """
        return await self._connections.cell_of_turn(self.id).cancel(self.id, reason, check_keep(keep))

    async def approve(
        self, call_id: str, *, by: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Approve a tool call that the turn waits for. When all its calls are decided, a worker continues the turn.

        ``by`` names who decided: it is kept in the history and in the events. ``arguments`` replace those of the
        model, which is informed. The first decision about a call counts: later ones raise ``AlreadyDecided``, whose
        ``decision`` is the first one. Raises ``NotSuspended`` if the turn does not wait for this call, and
        ``UsageError`` if the call waits for a result instead.

        >>> await turn.approve("call_1", by="ada")
        Traceback (most recent call last):
        antiphon.errors.NotSuspended: ...
        """
        await self._decide(approval_of(call_id, by, arguments))

    async def reject(self, call_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Reject a call that the turn waits for. It does not run, and the model learns who rejected it and why.

        Raises the same errors as ``approve``.

        >>> await turn.reject("call_1", reason="Too expensive.", by="ada")
        Traceback (most recent call last):
        antiphon.errors.NotSuspended: ...
        """
        await self._decide(rejection_of(call_id, by, reason))

    async def tool_result(
        self, call_id: str, result: Any = None, *, is_error: bool = False, by: str | None = None
    ) -> None:
        """Submit the result of a call of a client-side tool: any value that a tool may return.

        With ``is_error``, the model reads it as an error. Raises the same errors as ``approve``.

        >>> await turn.tool_result("call_1", {"title": "A page"})
        Traceback (most recent call last):
        antiphon.errors.NotSuspended: ...
        """
        await self._decide(result_of(call_id, result, by, is_error=is_error))

    async def _decide(self, decision: Decision) -> None:
        await decide_in_tree(self._connections.cells, self.id, decision)

    async def feedback(self, score: float, note: str | None = None, *, by: str | None = None) -> None:
        """Rate the turn with a ``score`` from -1 (bad) to 1 (good), optionally with a ``note`` and its author.

        It replaces earlier feedback, is in ``info().feedback`` as long as the turn is kept, and counts for the agent
        revision that ran the turn. Raises ``UsageError``, ``TurnNotFound`` and ``TurnDeleted``. Repeating it changes
        nothing.

        >>> await turn.feedback(1, "Just what I asked for.", by="ada")
        >>> (await turn.info()).feedback.score
        1.0
        """
        await rate_turn(self._connections.cell_of_turn(self.id), self.id, checked_feedback(score, note, by))

    async def recording(self) -> Recording:
        """Record the ended turn, to replay it in a test: see ``antiphon.testing.replay``.

        The history before it is read from the session as it is now. Raises ``UsageError`` while the turn has not
        ended, ``TurnNotFound`` and ``TurnDeleted``.

        >>> [message.text for message in (await turn.recording()).messages]
        ['You said: Hello']
        """
        return await record_turn(self._connections.cell_of_turn(self.id), self.id)

    async def requests(self) -> list[KeptRequest]:
        """Return the requests that models received in all runs and attempts of the turn, in the order of the calls.

        Empty unless the workers' App keeps requests (``App(keep_requests=True)``), for 7 days after the last call.
        Raises ``TurnNotFound`` and ``TurnDeleted``.

        >>> await turn.requests()
        []
        """
        return await requests_of(self._connections.cell_of_turn(self.id), self.id)

    async def replay(
        self, revision: str, *, runs: int = 1, step: int = 1, model: str | None = None, system: str | None = None,
        key: str | None = None,
    ) -> list[VariantRun]:  # fmt: skip
        """Let workers run the ended turn again on a ``revision`` (``"agent@revision"`` or ``"agent@label"``).

        Each of the ``runs`` is a variant, optionally with another ``model`` or ``system`` prompt; model calls before
        ``step`` get the recorded answers. Tools do not run: a call like a recorded one gets its result. Returns at
        once; ``variants`` returns the results. A variant is lost if its worker stops, or does not run it within a
        day. Repeating the call with the same ``key`` starts no variant twice. Raises ``UsageError``, also if no
        worker has the revision, ``TurnNotFound`` and ``TurnDeleted``.

        >>> await turn.replay("support@2026-11-24")
        Traceback (most recent call last):
        antiphon.errors.UsageError: No worker has support@2026-11-24 now: start one with this revision of ...
        """
        cell = self._connections.cell_of_turn(self.id)
        return await start_variants(
            cell, self.id, revision, runs=runs, step=step, model=model, system=system, key=key
        )

    async def variants(self) -> list[VariantRun]:
        """Return the variants of the turn that ``replay`` started in the last 7 days, oldest first.

        Raises ``TurnNotFound`` and ``TurnDeleted``.

        >>> await turn.variants()
        []
        """
        return await read_variants(self._connections.cell_of_turn(self.id), self.id)

    async def requeue(self) -> None:
        """Run the failed turn again: a new run, at the end of the session's inbox, with a new count of attempts.

        When this returns, the run is accepted: ``status``, ``result`` and ``stream`` are those of the new run, and
        ``runs`` lists the failed one with its error. Raises ``UsageError`` if the turn has not failed or its session
        is closed, ``WrongTenant`` if another tenant has since begun a session with this id, and ``TurnNotFound`` a
        week after its end.

        >>> failed = await client.submit("user-456", "Hello", agent="nobody")
        >>> await failed.result(timeout=10)
        Traceback (most recent call last):
        antiphon.errors.UnknownAgent: ...
        >>> await failed.requeue()
        >>> [run.run for run in await failed.runs()]
        [1, 2]
        """
        self._end = None
        await self._connections.cell_of_turn(self.id).requeue(self.id)

    async def _check_others_turn(self) -> None:
        """Raise ``UsageError`` if a tool would wait, without a timeout, for a turn that cannot run before its own."""
        own = own_turns(self.session_id)
        if own and (await self._record()).status not in TERMINAL:
            found = await found_in(self._connections.cell_of_turn(self.id), self.session_id)
            if not own.isdisjoint(found.inbox):
                raise waits_for_itself(self.session_id)

    async def _record(self) -> TurnRecord:
        return await self._connections.cell_of_turn(self.id).turn(self.id)

    async def _beginning(self) -> int:
        """Return the cursor before the turn's first event that is kept."""
        return await self._connections.cell_of_turn(self.id).place_of_turn(self.session_id, self.id)

    async def _end_kept(self, record: TurnRecord) -> bool:
        """Return whether the session's log still holds the end of this turn."""
        return await self._connections.cell_of_turn(self.id).end_is_kept(self.session_id, record)

    def _subscription(self) -> Subscription:
        cell = self._connections.cell_of_turn(self.id)
        return Subscription(cell, self._connections.feed_of(cell), self.session_id, None)

    async def ended(self) -> TurnRecord:
        """Wait for the turn to end, with any outcome, and return its record."""
        if self._end is not None:
            return self._end
        while True:
            async with self._subscription() as events:
                record = await events.patiently(self._record)
                if record.status in TERMINAL:
                    return record
                try:
                    async for event in events:
                        if event.turn_id == self.id and event.terminal and event.run >= record.run:
                            return await events.patiently(self._record)
                except StreamGap:
                    continue  # the turn may have ended in the gap: look again


def response_to(turn: AsyncTurn, record: TurnRecord) -> Response:
    """Return the response that this record holds, with output of the caller's type. Raises as ``result`` does."""
    return typed(response_of_end(record), turn._schema)  # pyright: ignore[reportPrivateUsage]


def remember_end(turn: AsyncTurn, record: TurnRecord) -> None:
    """Keep the turn's end in the handle, so that ``result`` does not read it from Redis."""
    turn._end = record  # pyright: ignore[reportPrivateUsage]


def response_of_end(record: TurnRecord) -> Response:
    """Return the response of an ended turn. Raises its error if it failed or was cancelled."""
    where: dict[str, Any] = {"session_id": record.session_id, "turn_id": record.turn_id}
    if record.status == "failed":
        raise error_of(_failure(record, where))
    if record.status == "cancelled":
        raise TurnCancelled(record.error or None, **where)
    return response_of(record)


def _failure(record: TurnRecord, where: dict[str, Any]) -> TurnFailedEvent:
    said = response_of(record)
    return TurnFailedEvent(
        code=record.error_code, message=record.error, raw=said.text, service=service_of(record),
        limit=said.limit or "", **where,
    )  # fmt: skip


def terminal_event(record: TurnRecord) -> Event:
    """Make the terminal event of a turn whose events are no longer kept."""
    with readable("The record of a turn", session_id=record.session_id, turn_id=record.turn_id):
        ended = int(record.fields.get("ended_at") or 0)
    where: dict[str, Any] = {
        "seq": record.last_seq, "at": ended, "session_id": record.session_id, "turn_id": record.turn_id,
        "run": record.run, "attempt": record.attempt,
    }  # fmt: skip
    into = text_of(record.fields.get("steered_into"))
    match record.status:
        case "finished":
            return TurnFinished(response=None if into else response_of(record), steered_into=into, **where)
        case "failed":
            return _failure(record, where)
        case _:
            return TurnCancelledEvent(reason=record.error, **where)


def error_of(event: TurnFailedEvent) -> AgentError:
    """Return the error of a failed turn: an instance of the class with its code, or else of ``TurnFailed``."""
    where: dict[str, Any] = {"session_id": event.session_id, "turn_id": event.turn_id}
    known = _by_code(AgentError).get(event.code)
    if known is None:
        return TurnFailed(event.message or None, code=event.code or None, **where)
    if issubclass(known, ProviderError) and event.service is not None:
        where |= msgspec.structs.asdict(event.service)
    if known is InvalidOutput:
        where["raw"] = event.raw
    if issubclass(known, LimitReached):
        where["limit"] = event.limit
    return known(event.message or None, **where)


def _by_code(root: type[AgentError]) -> dict[str, type[AgentError]]:
    found: dict[str, type[AgentError]] = {}
    for child in root.__subclasses__():
        found |= _by_code(child)
    if root not in (AgentError, TurnError):
        found[str(root.code)] = root
    return found
