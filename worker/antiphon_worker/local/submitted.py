"""A submitted turn of this process. It runs on the background loop, and can be read from every event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from antiphon.errors import AgentError, ResultTimeout, TurnCancelled, UsageError
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished, TurnQueued
from antiphon.input.request import input_bytes
from antiphon.input.values import IfBusy, Keep, check_keep, parse_cursor, patience
from antiphon.model import TERMINAL, Message, Response, Usage
from antiphon.session.background import spawn
from antiphon.session.saved import SavedTurn
from antiphon.session.streams import EventIterator, typed_event
from antiphon.session.turn_info import TurnInfo, TurnRun
from antiphon_worker.local.inbox import Place
from antiphon_worker.local.open_turn import OpenTurn
from antiphon_worker.local.session import LocalSession
from antiphon_worker.local.suspension import Suspension
from antiphon_worker.local.turn import BEGUN, LocalTurn
from antiphon_worker.loop.unfinished import outcomes_of


class SubmittedTurn(OpenTurn):
    """A turn that runs independently of its caller, and the task that runs it."""

    def __init__(
        self,
        session: LocalSession,
        info: TurnInfo,
        prepare: Callable[[Place], Awaitable[LocalTurn]],
        delay: float | None = None,
        schema: Any = None,
    ) -> None:
        self.request = b""  # compared with later requests that have the same key
        super().__init__(session, info)
        self._place = Place(info)
        self._prepare = prepare
        self._delay = delay
        self._schema = schema  # the caller's type for structured output
        self._saved: SavedTurn | None = None  # by another process, where it was suspended
        self._over: list[TurnRun] = []  # earlier runs
        self._lock = threading.Lock()
        self._events: list[Event] = []  # guarded by the lock, like all below it
        self._first = 0  # the place of the last run's first event
        self._watchers: list[Future[None]] = []
        self._error: AgentError | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled: str | None = None
        self._steered_into: Place | None = None

    @property
    def due(self) -> int | None:
        """When a delayed turn enters the inbox, in ms since 1970; None for one that is there."""
        delayed = self._delay is not None and not self._place.joined
        return self._info.due if delayed and self._info.status not in TERMINAL else None

    def start(self, if_busy: IfBusy = "enqueue") -> None:
        """Add the turn to the inbox, and start it on the background loop. Raises ``SessionBusy``."""
        self._place.taken = self._taken
        position = len(self._session.inbox.waiting)
        if self._delay is None:
            position = self._session.inbox.join(self._place, if_busy)
        self._session.turns[self.id] = self
        self._session.book.enter(self._info)
        self._info.status = "waiting" if position and self._delay is None else "queued"
        whole = input_bytes(self._info.input) > 0
        queued = TurnQueued(
            position=position, input=self._info.input if whole else [], input_omitted=not whole
        )
        self._log([self._numbered(queued)])
        spawn(self._run())

    def take_up(self, saved: SavedTurn) -> None:
        """Resume a turn that was suspended in another process, at the end of the session's inbox."""
        self._saved = saved
        self._session.inbox.join(self._place)
        self._session.turns[self.id] = self
        self._session.book.enter(self._info)
        self._session.suspend(self._info, Suspension(self.id, saved.calls))
        spawn(self._run())

    async def runs(self) -> list[TurnRun]:
        """Return the runs of the turn, the first one first."""
        return [*self._over, (await self.info()).last_run]

    async def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the turn to end and return its response. Raises the turn's error, or ``ResultTimeout``.

        Without ``timeout``, raises ``UsageError`` if the running turn waits for the caller.
        """
        seconds = patience(timeout)
        if seconds is None and (self._info.status not in TERMINAL or self._steered_into is not None):
            await self._session.inbox.check_others_turn()
        try:
            async with asyncio.timeout(seconds):
                async with aclosing(self.stream()) as events:
                    last = [event async for event in events][-1]
                if self._steered_into is not None:
                    return await asyncio.shield(asyncio.wrap_future(self._steered_into.outcome))
        except TimeoutError:
            raise ResultTimeout(
                f"The turn has not ended within {seconds:g} s; it is still running.",
                session_id=self.session_id, turn_id=self.id,
            ) from None  # fmt: skip
        if isinstance(last, TurnFinished) and last.response is not None:
            return last.response
        raise self._error or TurnCancelled(self._cancelled, session_id=self.session_id, turn_id=self.id)

    def stream(
        self, after: int | str | None = None, *, heartbeat: float | timedelta | None = None
    ) -> EventIterator:
        """Iterate over the turn's events, from the first one or after a cursor, up to its terminal event."""
        first = self._first if after is None else 0  # of the last run
        return _SubmittedEvents(self.event, first, self._info.run, after, heartbeat)

    def event(self, number: int) -> tuple[Event | None, Future[None] | None]:
        """Return the event with this number, from 0, or a future that is done when there are more."""
        with self._lock:
            if len(self._events) > number:
                return typed_event(self._events[number], self._schema), None
            changed: Future[None] = Future()
            self._watchers.append(changed)
            return None, changed

    async def cancel(self, reason: str = "cancelled by the client", *, keep: Keep = "steps") -> str:
        """Cancel the turn. ``keep`` is what stays of it in the history.

        Returns ``cancelled``, ``requested`` if it runs, or the final status if the turn had already ended.
        """
        check_keep(keep)
        with self._lock:
            status, task, loop = self._info.status, self._task, self._loop
            if status in TERMINAL:
                return status
            if status not in BEGUN:
                if self._cancelled is not None:
                    return "cancelled"
                self._cancelled = reason
        if status in BEGUN:
            return await self._place.cancel(reason, keep)
        self._place.stop(reason, keep)
        self._end_cancelled()
        if task is not None and loop is not None:
            loop.call_soon_threadsafe(task.cancel)
        return "cancelled"

    async def requeue(self) -> None:
        """Run the failed turn again, at the end of the session's inbox. Raises ``UsageError``."""
        self.run_again()

    def run_again(self, if_busy: IfBusy = "enqueue") -> None:
        """Run the failed turn again. Raises ``UsageError``, and ``SessionBusy`` where the caller asked for that."""
        info = self._info
        with self._lock:
            if info.status != "failed":
                raise UsageError(f"Turn {self.id} is {info.status}: only failed turns can be requeued.")
            if self._session.state.closed:
                raise UsageError("The session is closed.", session_id=self.session_id, turn_id=self.id)
            self._over.append(info.last_run)
            info.run, info.attempt, info.status = info.run + 1, 0, "queued"
            info.started = info.ended = info.code = info.error = info.service = self._error = (
                self._cancelled
            ) = None
            info.messages, info.usage, self._delay = [], Usage(), None
            steered = self._place.steered
            self._first, self._place, self._task = len(self._events), Place(info), None
            self._place.steered = steered
        self.start(if_busy)

    def _taken(self, by: Place) -> list[Message] | None:
        """The running turn takes the input of this one, which ends. Returns None if it has been cancelled before."""
        with self._lock:
            if self._info.status in TERMINAL or self._cancelled is not None:
                return None
            self._info.steered_into, self._steered_into = by.turn_id, by
            self._session.book.end(self._info, "finished")
        self._log([self._numbered(TurnFinished(steered_into=by.turn_id))])
        return [message.copied() for message in self._info.input]

    async def _run(self) -> None:
        with self._lock:
            self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            delay = self._delay if self._cancelled is None else None
        try:
            if delay is not None:
                await asyncio.sleep(delay)
                self._session.inbox.join(self._place)
            if self._place.joined:
                async with self._session.inbox.place(self._place):
                    if self._begins():
                        await self._work()
        except asyncio.CancelledError:
            if self._begins():  # the process ends
                self._end_cancelled()
        finally:
            self._session.turns.pop(self.id, None)

    def _begins(self) -> bool:
        """Return whether this is the first cancellation of the turn. From then on, a cancel interrupts it."""
        with self._lock:
            if self._cancelled is not None or self._info.status in TERMINAL:
                return False
            self._info.status = "running"
            return True

    async def _work(self) -> None:
        """Run the turn. Errors become its terminal event."""
        turn: LocalTurn | None = None
        last: list[Event] = []
        try:
            turn = await self._prepare(self._place)
            if self._saved is not None:
                turn.take_up(self._saved)
            turn.former = [call for run in self._over for call in outcomes_of(run.messages)]
            async with aclosing(turn.run()) as batches:
                async for batch in batches:
                    if isinstance(batch[-1], TurnFailedEvent | TurnCancelledEvent):
                        last = batch  # published below, once the error is set
                    else:
                        self._log(batch)
        except AgentError as exc:
            self._error = exc
            if not last:
                self._session.book.fail(self._info, exc, len(self._session.state.messages))
                last = [self._numbered(TurnFailedEvent.of(exc))]
            self._log(last)
        except asyncio.CancelledError:
            if turn is not None and turn.suspension is not None and self._place.stopped is None:
                raise  # the process ends: a store keeps the turn
            if turn is not None and not self._ended:
                keep = self._place.stopped.keep if self._place.stopped else "steps"
                self._log(await turn.cancelled(self._cancelled or "the process ended", keep))
            if not self._ended:
                self._end_cancelled()

    @property
    def _ended(self) -> bool:
        """The last run's terminal event is published."""
        return self._events[-1].terminal

    def _end_cancelled(self) -> None:
        """The turn ends before it has begun, and leaves nothing."""
        reason = self._cancelled or "the process ended"
        self._session.book.cancel(self._info, reason, len(self._session.state.messages))
        keep = self._place.stopped.keep if self._place.stopped else "steps"
        self._log([self._numbered(TurnCancelledEvent(reason=reason, keep=keep))])

    def _numbered(self, event: Event) -> Event:
        return self._session.numbered(event, self._info)

    def _log(self, batch: Sequence[Event]) -> None:
        with self._lock:
            self._events += batch
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if watcher.set_running_or_notify_cancel():
                watcher.set_result(None)


class _SubmittedEvents(EventIterator):
    """The events of a submitted turn, for one reader on any event loop."""

    def __init__(
        self,
        event: Callable[[int], tuple[Event | None, Future[None] | None]],
        first: int,
        run: int,
        after: int | str | None,
        heartbeat: float | timedelta | None,
    ) -> None:
        super().__init__(heartbeat)
        self.cursor = parse_cursor(after)
        self._event = event
        self._seen, self._run = first, run
        self._ended = False

    async def following(self) -> Event:
        while not self._ended:
            event, changed = self._event(self._seen)
            if event is None:
                assert changed is not None
                await asyncio.wrap_future(changed)
                continue
            self._seen += 1
            self._ended = event.terminal and event.run >= self._run
            if event.seq > (self.cursor or 0):
                self.cursor = event.seq
                return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._ended = True
