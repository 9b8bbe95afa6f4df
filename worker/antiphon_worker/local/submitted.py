"""A submitted turn of this process. It runs on the background loop, and can be read from every event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from datetime import timedelta

from antiphon.errors import AgentError, ResultTimeout, TurnCancelled
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished, TurnQueued
from antiphon.input.values import parse_cursor, patience
from antiphon.model import TERMINAL, Response, Status
from antiphon.session.background import spawn
from antiphon_worker.local.inbox import Place
from antiphon_worker.local.session import LocalSession
from antiphon_worker.local.turn import LocalTurn

__all__ = ["SubmittedTurn"]


class SubmittedTurn:
    """A turn that runs independently of its caller, and the task that runs it."""

    def __init__(
        self,
        session: LocalSession,
        place: Place,
        prepare: Callable[[Place], Awaitable[LocalTurn]],
        delay: float | None = None,
    ) -> None:
        self.request = b""  # compared with later requests that have the same key
        self._session = session
        self._place = place
        self._prepare = prepare
        self._delay = delay
        self._lock = threading.Lock()
        self._events: list[Event] = []  # guarded by the lock, like all below it
        self._watchers: list[Future[None]] = []
        self._status: Status = "queued" if delay is None else "waiting"
        self._error: AgentError | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled: str | None = None

    @property
    def id(self) -> str:
        return self._place.turn_id

    @property
    def session_id(self) -> str:
        return self._session.session_id

    def __repr__(self) -> str:
        return f"SubmittedTurn(id={self.id!r}, session_id={self.session_id!r})"

    def start(self, *, reject: bool) -> None:
        """Add the turn to the inbox, and start it on the background loop. Raises ``SessionBusy``."""
        if self._delay is None:
            self._session.inbox.join(self._place, reject=reject)
        self._session.turns[self.id] = self
        position = len(self._session.inbox.waiting)
        self._log([self._numbered(TurnQueued(position=position))])
        spawn(self._run())

    async def status(self) -> Status:
        """Return the current status."""
        return self._status

    async def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the turn to end and return its response. Raises the turn's error, or ``ResultTimeout``.

        Without ``timeout``, raises ``UsageError`` if the running turn waits for the caller.
        """
        seconds = patience(timeout)
        if seconds is None and self._status not in TERMINAL:
            await self._session.inbox.check_others_turn()
        try:
            async with asyncio.timeout(seconds):
                async with aclosing(self.stream()) as events:
                    last = [event async for event in events][-1]
        except TimeoutError:
            raise ResultTimeout(
                f"The turn has not ended within {seconds:g} s; it is still running.",
                session_id=self.session_id, turn_id=self.id,
            ) from None  # fmt: skip
        if isinstance(last, TurnFinished) and last.response is not None:
            return last.response
        raise self._error or TurnCancelled(self._cancelled, session_id=self.session_id, turn_id=self.id)

    async def stream(self, after: int | str | None = None) -> AsyncGenerator[Event, None]:
        """Yield the turn's events, from the first one or after a cursor, up to its terminal event."""
        cursor, seen = parse_cursor(after) or 0, 0
        while True:
            batch, changed = self._after(seen)
            for event in batch:
                if event.seq > cursor:
                    yield event
                if event.terminal:
                    return
            seen += len(batch)
            if changed is not None:
                await asyncio.wrap_future(changed)

    async def cancel(self, reason: str = "cancelled by the client") -> str:
        """Cancel the turn; its finished steps stay in the history.

        Returns ``requested``, or the final status if the turn had already ended.
        """
        with self._lock:
            if self._status in TERMINAL:
                return self._status
            self._cancelled = self._cancelled or reason
            task, loop = self._task, self._loop
        if task is not None and loop is not None:
            loop.call_soon_threadsafe(task.cancel)
        return "requested"

    async def _run(self) -> None:
        with self._lock:
            self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            cancelled = self._cancelled is not None
        try:
            if self._delay is not None:
                await asyncio.sleep(self._delay)
                self._session.inbox.join(self._place)
            async with self._session.inbox.place(self._place):
                if not cancelled:
                    await self._work()
                else:
                    self._end_cancelled(0)
        except asyncio.CancelledError:
            self._end_cancelled(0)
        finally:
            self._session.turns.pop(self.id, None)

    async def _work(self) -> None:
        """Run the turn. Errors become its terminal event."""
        self._status = "running"
        turn: LocalTurn | None = None
        failed: Event | None = None
        try:
            turn = await self._prepare(self._place)
            async with aclosing(turn.run()) as batches:
                async for batch in batches:
                    if isinstance(batch[-1], TurnFailedEvent):
                        failed = batch[-1]  # published below, once the error is set
                    else:
                        self._log(batch)
        except AgentError as exc:
            self._error = exc
            failed = failed or self._numbered(TurnFailedEvent(code=str(exc.code), message=exc.message))
            self._log([failed])
        except asyncio.CancelledError:
            self._end_cancelled(await turn.keep_finished_steps() if turn else 0)

    def _end_cancelled(self, kept: int) -> None:
        if self._status in TERMINAL:
            return
        self._log(
            [self._numbered(TurnCancelledEvent(reason=self._cancelled or "the process ended", kept=kept))]
        )

    def _numbered(self, event: Event) -> Event:
        return self._session.numbered(event, self.id)

    def _log(self, batch: Sequence[Event]) -> None:
        with self._lock:
            self._events += batch
            match batch[-1]:
                case TurnFinished():
                    self._status = "finished"
                case TurnFailedEvent():
                    self._status = "failed"
                case TurnCancelledEvent():
                    self._status = "cancelled"
                case _:
                    pass
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if watcher.set_running_or_notify_cancel():
                watcher.set_result(None)

    def _after(self, seen: int) -> tuple[list[Event], Future[None] | None]:
        """Return the events after the first ``seen``, or a future that is done when there are more."""
        with self._lock:
            if len(self._events) > seen:
                return self._events[seen:], None
            changed: Future[None] = Future()
            self._watchers.append(changed)
            return [], changed
