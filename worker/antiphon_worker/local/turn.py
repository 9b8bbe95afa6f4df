"""One turn of a local session: it runs the agent loop, yields the events and saves the result."""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from antiphon.errors import AgentError, TurnCancelled, TurnFailed
from antiphon.events import (
    Event,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnResumed,
    TurnStarted,
    TurnSuspended,
    VariablesChanged,
)
from antiphon.input.history_cuts import Revision, revision_of
from antiphon.input.values import Keep
from antiphon.model import Decision, Message, Response, Status, ToolOutcome
from antiphon.model.usage import NO_LIMITS, Usage
from antiphon.session.saved import SavedTurn
from antiphon.session.turn_info import TurnInfo
from antiphon.session.work import AgentLike, Work
from antiphon.tools import Context
from antiphon.window import SavedSummary
from antiphon_worker.local.attempts import Attempts
from antiphon_worker.local.events import EventQueue, MemoryJournal
from antiphon_worker.local.inbox import Place
from antiphon_worker.local.session import LocalSession, commit, refresh
from antiphon_worker.local.stops import StoppedError, canceller, end
from antiphon_worker.local.suspension import Suspension
from antiphon_worker.loop.costs import Meter, prices_in, stop_functions, used_by
from antiphon_worker.loop.input import loop_input, stamp
from antiphon_worker.loop.loop import Suspended
from antiphon_worker.loop.run_turn import TimeLimit, TurnResult, WindowPlace, run_turn
from antiphon_worker.loop.step_calls import Rules
from antiphon_worker.loop.steps import JournalEntry, Steered
from antiphon_worker.loop.toolbox import ToolBox, described, is_stop
from antiphon_worker.loop.unfinished import Unfinished, note_of
from antiphon_worker.loop.visible_history import LoadedHistory
from antiphon_worker.providers.base import Provider
from antiphon_worker.resilience import Fallback

BEGUN = ("running", "retrying", "suspended")


class LocalTurn:
    """One turn, from its place in the inbox to its saved result."""

    def __init__(
        self,
        session: LocalSession,
        place: Place,
        turn: TurnInfo,
        agent: AgentLike,
        work: Work,
        provider: Provider,
        toolbox: ToolBox,
        open_provider: Callable[[Any], Awaitable[Provider]],
    ) -> None:
        self._session = session
        self._place = place
        self._turn = turn
        self._agent = agent
        self._work = work
        self._provider = provider
        self._toolbox = toolbox
        self._open = open_provider
        self._task: asyncio.Task[Any] | None = None  # what a stop interrupts
        self.suspension: Suspension | None = None  # while the turn is suspended
        self._decisions: dict[str, Decision] = {}
        self._queue = EventQueue(session, place, turn)
        self._journal = MemoryJournal(self._queue, session.inbox, place)
        self._attempts = Attempts(turn, agent.retry, self._queue.put, lambda: self._journal.next_step)
        self._input = [copy.copy(message) for message in work.messages]
        self._meter: Meter | None = None
        self._spent = (
            0.0  # seconds, without the time while it was suspended, until the passage that began at:
        )
        self._began = 0.0
        self._revision: Revision | None = None  # of a turn that takes the place of a part of the history
        self.former: list[ToolOutcome] = []  # tool calls of earlier runs

    async def run(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events as they arrive, then raise the error of a failed turn.

        The history is updated before the terminal event. A turn that is suspended waits here for its decisions.
        """
        self._session.book.begin(self._turn)
        try:
            yield [self._numbered(TurnStarted(worker="local"))]
            while True:
                if self.suspension is not None:
                    self._wait()
                    self._begin(self.suspension.decided())
                    yield [await self._resumed(await self._ended())]
                self._check_stopped()
                self._queue.begin()
                self._begin(self._answer())
                while batch := await self._queue.take():
                    yield batch
                result = await self._ended()
                if isinstance(result, TurnResult):
                    break
                yield [await self._suspend(result)]
            yield await self._finished(result)
        except StoppedError as stop:
            await self._back()
            self._place.outcome.set_exception(self._placed(TurnCancelled(stop.reason)))
            yield await self.cancelled(stop.reason, stop.keep)
            raise self._placed(TurnCancelled(stop.reason)) from None
        except AgentError as exc:
            await self._back()
            error = self._placed(exc)
            await self._forget_suspended()
            self._session.book.fail(self._turn, error, self._length, self._record([]))
            self._undecided("failed")
            self._place.outcome.set_exception(error)
            yield [self._numbered(TurnFailedEvent.of(error))]
            raise
        finally:
            if not self._place.outcome.done():  # its caller has left it, or the process ends
                self._place.outcome.set_exception(self._placed(TurnCancelled("left by its caller")))
            if self._task is not None:
                await end(self._task)

    def take_up(self, saved: SavedTurn) -> None:
        """Resume a turn that was suspended in another process."""
        self._journal.written = [msgspec.convert(entry, JournalEntry) for entry in saved.journal]
        self.suspension = self._session.suspensions[self._place.turn_id]

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a part of the turn, which a stop interrupts."""
        self._task = asyncio.create_task(work, name=f"turn {self._place.turn_id}")
        self._place.on_stop(canceller(self._task))

    async def _ended(self) -> Any:
        """Wait for the part that was started, and return its result. Raises its error."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if self._task.cancelled() or self._task.exception() or isinstance(self._task.result(), TurnResult):
            self._place.seal()  # from now on nothing stops it
        self._check_stopped()
        return await self._task

    def _check_stopped(self) -> None:
        if (stopped := self._place.stopped) is not None:
            raise StoppedError(stopped.reason, stopped.keep)

    async def _suspend(self, result: Suspended) -> Event:
        """Wait for decisions from now on, also in the store. Returns the event that says so."""
        turn_id = self._place.turn_id
        self.suspension = Suspension(turn_id, result.calls)
        await self._save_suspended()
        self._session.suspend(self._turn, self.suspension)
        return self._numbered(TurnSuspended(step=self._step, calls=self.suspension.calls))

    def _wait(self) -> None:
        """Allow the session's next turns to overtake, if the submitter permitted it."""
        self._turn.status = "suspended"
        if self._work.while_suspended == "continue":
            self._session.inbox.leave(self._place)

    async def _resumed(self, decisions: list[Decision]) -> Event:
        """Apply the decisions in the next pass of the loop."""
        self._decisions = {decision.call_id: decision for decision in decisions}
        self.suspension, self._turn.status = None, "running"
        event = self._numbered(TurnResumed(step=self._step, decisions=decisions))
        await self._back()
        return event

    async def _back(self) -> None:
        """Wait for the inbox, if other turns have passed this one by."""
        if self._session.inbox.current is not self._place:
            await self._session.inbox.come_back(self._place)
            await refresh(self._session)

    def _undecided(self, status: Status) -> None:
        """The turn has ended, and takes no decision any more."""
        if (suspension := self._session.suspensions.get(self._place.turn_id)) is not None:
            suspension.end(status)

    @property
    def _step(self) -> int:
        steps = [entry.step for entry in self._journal.written if not isinstance(entry, Steered)]
        return max(steps, default=0)

    async def _finished(self, result: TurnResult) -> list[Event]:
        """Save the answer. Returns the last events of the turn."""
        before = self._session.state.variables
        response = await self._finish(result)
        self._place.outcome.set_result(response)
        last: list[Event] = [TurnFinished(response=response)]
        if self._revision is not None and self._revision.event is not None:
            last.insert(0, self._revision.event)
        if self._session.state.variables != before:
            last.insert(0, VariablesChanged(variables=copy.deepcopy(self._session.state.variables)))
        return [self._numbered(event) for event in last]

    async def cancelled(self, reason: str, keep: Keep) -> list[Event]:
        """Add what stays of the cancelled turn to the history. Returns its last events."""
        if self._work.revises is not None and self._revision is None:
            keep = "nothing"  # it stopped before it knew where its messages belong
        unfinished = self._unfinished()
        asked, said = unfinished.kept(keep)
        kept, place = [*asked, *said], self._length
        variables = unfinished.variables if kept else None
        if kept:
            used = unfinished.usage
            await self._commit(asked, said, variables or self._session.state.variables, used)
        else:
            await self._forget_suspended()
        response = self._record(kept)
        self._session.book.cancel(self._turn, reason, None if kept else place, response)
        self._undecided("cancelled")
        events: list[Event] = [TurnCancelledEvent(reason=reason, kept=len(kept), keep=keep)]
        if kept and self._revision is not None and self._revision.event is not None:
            events.insert(0, self._revision.event)
        if variables is not None:
            events.insert(0, VariablesChanged(variables=copy.deepcopy(variables)))
        return [self._numbered(event) for event in events]

    async def abandon(self) -> None:
        """Note that the caller has left the turn before its end: it leaves nothing."""
        if self._turn.status in BEGUN:
            await self._back()
            await self._forget_suspended()
            self._undecided("cancelled")
            response = self._record([])
            self._session.book.cancel(self._turn, "left by its caller", self._length, response)

    @property
    def _length(self) -> int:
        return len(self._session.state.messages)

    def _unfinished(self) -> Unfinished:
        used, said = self._meter.used if self._meter else None, "".join(self._queue.said)
        made = self._decisions
        if self.suspension is not None:
            made = {decision.call_id: decision for decision in self.suspension.decisions}
        return Unfinished(self._input, self._journal.written, said, made, used)

    def _record(self, kept: Sequence[Message]) -> Response | None:
        """Return the turn's output and tool results. The next turn is told of calls that the kept messages
        do not say.
        """
        unfinished = self._unfinished()
        if not kept:  # else it is committed with them
            self._session.state.usage = used_by(self._session.state.usage, unfinished.usage)
        if calls := unfinished.calls_beyond(kept):
            self._session.book.remember(self._turn, calls)
        return unfinished.record(self._place.turn_id, self._session.session_id)

    def _numbered(self, event: Event) -> Event:
        return self._session.numbered(event, self._turn)

    async def _answer(self) -> TurnResult | Suspended:
        """Run the agent loop within the turn's timeout. Raises all failures as ``AgentError``."""
        self._began = time.monotonic()
        try:
            async with TimeLimit(self._work.timeout):
                return await self._attempts.run(self._attempt)
        except AgentError:
            raise
        except BaseException as exc:
            if is_stop(exc):
                raise
            raise TurnFailed(f"The turn failed: {described(exc)}.", code="internal_error") from exc
        finally:
            self._spent += time.monotonic() - self._began
            self._queue.end()

    async def _attempt(self) -> TurnResult | Suspended:
        """Run the agent loop, from the last finished step of the attempts before."""
        session, agent = self._session, self._agent
        self._journal.begin()
        variables = copy.deepcopy(session.state.variables)
        context = Context(
            session.session_id, self._place.turn_id, variables=variables, attempt=self._turn.attempt,
            run=self._turn.run,
        )  # fmt: skip
        inp = loop_input(
            agent, self._work, agent.tools, session.state.system, session.state.variables,
            Rules(agent.approval), self._new_meter(),
        )  # fmt: skip
        inp.new_messages = self._input
        if self._work.revises is not None:
            self._revision = revision_of(session.state.messages, self._work.revises)
            inp.new_messages = [*self._revision.question, *self._input]
        inp.notes = self._notes()
        inp.timeouts = agent.timeouts
        if agent.fallback:
            models = agent.described().fallback
            inp.fallback = Fallback(
                models, lambda place: self._open(agent.fallback[place]), self._attempts.gives_up
            )
        return await run_turn(
            self._provider, inp, self._loaded_history(), self._toolbox, self._journal, self._queue, context,
            self._decisions,
        )  # fmt: skip

    def _new_meter(self) -> Meter:
        limits, prices = self._agent.limits or NO_LIMITS, prices_in(os.environ.get("ANTIPHON_PRICES", ""))
        stops, before = stop_functions(limits, {}), self._session.state.usage
        spent = self._spent + time.monotonic() - self._began
        self._meter = Meter(limits, prices, stops, before=before, spent=spent)
        return self._meter

    def _notes(self) -> list[Message]:
        """Return the note for the model about unreported calls."""
        untold = self._session.book.untold | {self._turn.turn_id: self.former}
        calls = [call for calls in untold.values() for call in calls]
        return [note_of(calls)] if calls else []

    def _loaded_history(self) -> LoadedHistory:
        """Return the history from the start of the last window on."""
        window, state = self._session.window, self._session.state
        if self._revision is not None:
            before, state = self._revision.before, state.shallow()
            state.keep(before)
            window = WindowPlace(window.start if window.start < before else 0, 0)

        async def read(start: int, stop: int) -> list[Message]:
            return state.messages[start:stop]

        start = window.start or (state.summary.messages if state.summary else 0)
        return LoadedHistory(state.messages[start:], start, window.counted or None, state.summary, read)

    async def _finish(self, result: TurnResult) -> Response:
        response = result.loop.response(self._place.turn_id, self._session.session_id)
        used, summary = response.usage, result.summary
        await self._commit(self._input, result.loop.messages, result.variables, used, summary)
        if result.window is not None:
            self._session.window = result.window
        self._session.book.untold = {}
        self._session.book.end(self._turn, "finished", response)
        self._undecided("finished")
        return msgspec.structs.replace(response, messages=list(response.messages))

    async def _save_suspended(self) -> None:
        """Save what another process needs to resume the turn."""
        assert self.suspension is not None
        agent = self._work.agent
        request = self._work.request(agent if agent is None or isinstance(agent, str) else agent.name)
        journal = [msgspec.to_builtins(entry) for entry in self._journal.written]
        state = self._session.state.shallow()
        turn = msgspec.structs.replace(self._turn, status="suspended")
        state.suspended = [*self._others(), SavedTurn(turn, request, journal, self.suspension.calls)]
        await commit(self._session, state)

    async def _forget_suspended(self) -> None:
        state, others = self._session.state.shallow(), self._others()
        if len(others) < len(state.suspended):
            state.suspended = others
            await commit(self._session, state)

    def _others(self) -> list[SavedTurn]:
        """The session's other suspended turns."""
        own = self._place.turn_id
        return [one for one in self._session.state.suspended if one.turn.turn_id != own]

    async def _commit(
        self,
        asked: list[Message],
        said: list[Message],
        variables: dict[str, Any],
        used: Usage,
        summary: SavedSummary | None = None,
    ) -> None:
        state = self._session.state.shallow()
        if self._revision is not None:
            state.keep(self._revision.kept)
            self._session.window = WindowPlace(0, 0)
        messages = stamp(asked, said, self._place.turn_id, self._turn.created, self._agent.name)
        state.messages += [message.copied() for message in messages]
        state.suspended = self._others()
        state.summary = summary or state.summary
        state.variables = variables
        state.usage = used_by(state.usage, used)
        if state.agent is None:
            state.agent = msgspec.to_builtins(self._agent.described())
        await commit(self._session, state)

    def _placed(self, error: AgentError) -> AgentError:
        error.session_id = error.session_id or self._session.session_id
        error.turn_id = error.turn_id or self._place.turn_id
        return error
