"""Runs one claimed turn up to its outcome. Only this module turns causes into outcomes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from antiphon.errors import (
    AgentError,
    ProviderError,
    RevisionUnavailable,
    UnknownAgent,
    UnknownProvider,
    UnknownTool,
)
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished, VariablesChanged
from antiphon.input.history_cuts import Revision
from antiphon.input.request import AgentSpec, TurnRequest, check_request, decode_request
from antiphon.model import ServiceAnswer, encode
from antiphon.model.usage import Usage
from antiphon.redis.cells import Cells
from antiphon.tools import Context
from antiphon.wire.cell import Cell
from antiphon.wire.errors import CancelledFirst
from antiphon.wire.records import ClaimedTurn, open_stopped
from antiphon.wire.suspension import claimed_decisions, suspend
from antiphon_worker.app import App
from antiphon_worker.archive import ArchiveUnavailable
from antiphon_worker.loop.costs import Meter
from antiphon_worker.loop.handoffs import HandOff
from antiphon_worker.loop.hooks import Hooks, hooks_of_turn
from antiphon_worker.loop.input import loop_input, stamp
from antiphon_worker.loop.loop import Suspended
from antiphon_worker.loop.run_turn import TimeLimit, run_turn
from antiphon_worker.loop.steps import decode_entry, tools_to_run
from antiphon_worker.loop.toolbox import is_stop
from antiphon_worker.loop.unfinished import Unfinished
from antiphon_worker.memory.recall import Recalls
from antiphon_worker.observing.observer import Observer
from antiphon_worker.process.batched import in_batches
from antiphon_worker.process.budgets import Attempt, Budgets, Held
from antiphon_worker.process.children import Kin
from antiphon_worker.process.elsewhere import offer_elsewhere, stop_elsewhere
from antiphon_worker.process.files import LeasedFiles
from antiphon_worker.process.history import (
    asked_agent,
    loaded_history,
    own_system,
    restore_before,
    revised,
    untold_calls,
    variables_of_session,
)
from antiphon_worker.process.in_charge import Charge, charge_of
from antiphon_worker.process.interruptible import Interruptible
from antiphon_worker.process.journal import TurnJournal, patiently, used_before, used_with
from antiphon_worker.process.lease import Lease, StopSignal
from antiphon_worker.process.opening import FOR_OTHERS, Opening
from antiphon_worker.process.outcomes import (
    Cancelled,
    Failed,
    Finished,
    GivenBack,
    Outcome,
    Retry,
    Superseded,
    Tries,
    Waiting,
    broken,
    code_of,
    encodable,
    finished,
    log_end,
    noticed,
    said_by,
    stopped,
)
from antiphon_worker.process.placement import Placement
from antiphon_worker.process.publisher import Publisher, TurnSink
from antiphon_worker.process.routing import choose_route
from antiphon_worker.process.watched_sink import WatchedSink
from antiphon_worker.providers.http.limits import Gate, HeldBack
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.turn")


class TurnRunner:
    """Runs claimed turns and holds what all turns of the process share."""

    has_others = True
    """Whether another worker may run a turn that needs something this worker's App lacks."""

    def __init__(
        self, cell: Cell, publisher: Publisher, app: App, settings: Settings, gate: Gate | None = None,
        cells: Cells | None = None, observer: Observer | None = None, budgets: Budgets | None = None,
    ) -> None:  # fmt: skip
        self.cell = cell
        self.publisher = publisher
        self.app = app
        self.settings = settings
        self.gate = gate
        self.observer = observer
        self.archive = app.archive(settings.archive)
        self.prices = app.prices(settings.prices)
        self.recalls = Recalls(cell, app.memories, cells or Cells([cell]))
        self.cells = cells or Cells([cell])
        self.opening, self.budgets = Opening(cell.seal), budgets or Budgets(self.cells)
        self.ended = (0, 0, 0.0)  # finished turns, failed turns, and the seconds of all attempts
        self.tokens = 0  # of attempts that have ended

    @cached_property
    def placement(self) -> Placement:
        return Placement(self.cell, self.app)

    async def run(self, turn: ClaimedTurn, lease: Lease) -> str:
        """Run a claimed turn until it has an outcome, write the outcome and return its name."""
        run = TurnAttempt(self, turn, lease)
        outcome = await run.run()
        took = time.monotonic() - run.began
        if run.kin is not None:
            await run.kin.ended(outcome)
        self.count(run, outcome, took)
        self.tokens += run.meter.tokens if run.meter else 0
        self._log_end(turn, outcome, run.provider, took)
        name = str(outcome.__struct_config__.tag)
        if run.watch is not None:
            with suppress(Exception):  # an observer must never harm a turn
                run.watch.end(name, code_of(outcome), run.provider)
        return name

    def _log_end(self, turn: ClaimedTurn, outcome: Outcome, provider: str, took: float) -> None:
        log_end(turn, outcome, provider, took)

    def count(self, run: TurnAttempt, outcome: Outcome, seconds: float) -> None:
        finished, failed, took = self.ended
        failed += isinstance(outcome, Failed)
        self.ended = (finished + isinstance(outcome, Finished), failed, took + seconds)


class TurnAttempt:
    """One attempt at a claimed turn: load, work, conclude."""

    def __init__(self, runner: TurnRunner, turn: ClaimedTurn, lease: Lease) -> None:
        self._runner = runner
        self._settings = runner.settings
        self._cell = runner.cell
        self._turn = turn
        self._lease = lease
        watch = self.watch = runner.observer.begin(turn) if runner.observer else None
        self._sink = (
            TurnSink(turn, lease, runner.publisher) if watch is None
            else WatchedSink(turn, lease, runner.publisher, watch.event)
        )  # fmt: skip
        self._request: TurnRequest | None = None
        self.journal: TurnJournal | None = None
        self.meter: Meter | None = None
        self._hooks: Hooks | None = None
        self.began = time.monotonic()
        self._tries = Tries(turn, runner.settings)
        self._revision: Revision | None = None  # of a turn that replaces a part of the history
        self._unsent: list[bytes] = []  # events published with the turn's end
        self._memories = ""  # the memories that index the turn
        self._bare = False  # its unfinished output cannot be written
        self.provider = ""
        self.agent: str | None = None
        self._charge: Charge | None = None
        self.kin: Kin | None = None  # of a child
        self._ids = (turn.turn_id, turn.session_id)

    async def run(self) -> Outcome:
        try:
            outcome = await self._work()
            return await self._end(outcome if self._hooks is None else await noticed(outcome, self._hooks))
        except StopSignal:
            return Superseded()
        finally:
            if self.kin is not None:
                self.kin.leave()
            self._lease.on_stop(None)  # breaks the cycle of sink and lease
            self._runner.publisher.forget(self._sink)

    async def _work(self) -> Outcome:
        """Load and answer; turn every exception into an outcome, except a stop."""
        if self._turn.stop:
            return Cancelled(open_stopped(self._cell.seal, self._turn))
        try:
            return encodable(await self._attempt())
        except BaseException as exc:  # also KeyboardInterrupt, and exceptions of an error's __str__
            if is_stop(exc):
                raise
            return broken(self._turn, exc)

    async def _end(self, outcome: Outcome) -> Outcome:
        """Write the outcome. If the turn's unfinished output cannot be written, the turn ends without it."""
        try:
            return outcome if await self._conclude(outcome) else Superseded()
        except CancelledFirst as exc:
            return await self._end(Cancelled(exc.reason))
        except BaseException as exc:
            if is_stop(exc) or isinstance(exc, AgentError) or self._bare:
                raise
            failed, self._bare = broken(self._turn, exc), True
            return await self._end(outcome if isinstance(outcome, Cancelled) else failed)

    async def _attempt(self) -> Outcome:
        """Load and answer; turn every known failure into an outcome."""
        try:
            with Interruptible(self._lease, self._sink):
                return await self._answer()
        except StopSignal as signal:
            return stopped(signal.stop, self._lease)
        except ProviderError as exc:
            delay = self._tries.pause(exc)
            return Failed.of(exc) if delay is None else Retry(exc, delay)
        except (ArchiveUnavailable, Held) as exc:
            return GivenBack(exc.message, str(exc.code), exc.retry_after)
        except FOR_OTHERS as exc:
            return self._runner.opening.leave(exc, self._turn)
        except (UnknownAgent, UnknownTool, UnknownProvider, RevisionUnavailable) as exc:
            return await self._lacks(exc)
        except AgentError as exc:
            return Failed.of(exc)
        except UnicodeEncodeError:
            return Failed("internal_error", "The answer holds text that cannot be stored: half a character.")

    async def _lacks(self, exc: AgentError) -> Outcome:
        """Requeue the turn for a worker whose App can run it, or fail it if there is none."""
        if not self._runner.has_others:
            return Failed.of(exc)
        assert self._request is not None
        needed = tools_to_run(self.journal.entries if self.journal else (), claimed_decisions(self._turn))
        needed -= {tool.name for tool in self._request.caller_tools}
        asked = self._charge.asked if self._charge else asked_agent(self._turn, self._request)
        return await self._runner.placement.leave(exc, self._turn, asked, needed, self._lease)

    async def _answer(self) -> Finished | Waiting:
        turn = self._runner.opening.open(self._turn)
        request = self._request = decode_request(turn.request)
        check_request(request, len(turn.request))
        if request.parent is not None:
            self.kin = Kin(self._runner.cells, turn, request, self._lease, self._sink)
        most = self._settings.turn_timeout
        async with TimeLimit(min(request.timeout or most, most)):
            self.journal = TurnJournal(self._cell, turn, self._lease, self._sink)
            await restore_before(self._cell, self._runner.archive, turn, self._lease)
            attempt = Attempt(self._cell, turn, request, self._lease, self._sink, self._runner.prices, most)
            if (router := self._runner.app.router) is not None:
                await choose_route(attempt, router, self.journal, self._sink)
            while True:
                try:
                    return await self._run_agent(attempt, self.journal)
                except HandOff:
                    self._turn.lacking = ""  # other Apps may have the next agent

    async def _run_agent(self, attempt: Attempt, journal: TurnJournal) -> Finished | Waiting:
        """Run the turn with the agent in charge. Raises ``HandOff`` when it hands the turn over."""
        turn, request = attempt.turn, attempt.request
        if request.revises is not None and self._revision is None:
            self._revision = await revised(self._cell, turn, request.revises, self._lease)
        app, charge = self._runner.app, charge_of(turn, asked_agent(turn, request), journal.entries)
        self._charge, part, brought = charge, charge.request(request), charge.brought(request)
        system = own_system(turn, part) if charge.first else None
        agent = await self._opened(turn, app.agent(charge.asked, brought, bool(system)), charge)
        provider, before = await app.provider(agent.provider), variables_of_session(turn)
        spent = turn.spent_ms / 1000 + time.monotonic() - self.began
        meter = app.meter(agent, self._runner.prices, before=used_before(turn), spent=spent)
        meter.tokens = self.meter.tokens if self.meter else 0  # of the agent before it
        tools, rules, self.meter = app.tools(agent.tools), app.rules(agent), meter
        own = variables_of_session(turn)
        context = Context(turn.session_id, turn.turn_id, "", own, turn.attempt, turn.run)
        hooks = self._hooks = await hooks_of_turn(
            app.hooks(agent), app.toolbox, context, agent, request, journal
        )
        part.messages, variables = request.messages, charge.variables(before, journal.entries)
        inp = loop_input(agent, part, tools, system, variables, rules, meter)
        inp.timeouts, inp.gate, inp.hooks = agent.timeouts or app.timeouts, self._runner.gate, hooks
        inp.files = LeasedFiles(self._cell, self._lease, request.user)
        if agent.fallback:
            inp.fallback = self._tries.fallback(agent, app)
        provider = await self._runner.budgets.charged(provider, inp, agent, app, attempt)
        decisions = claimed_decisions(self._turn)
        if request.service == "batch":
            provider = in_batches(provider, inp, attempt, journal, decisions, self._settings)
        if turn.untold or turn.run > 1:
            inp.notes = await patiently(self._lease, partial(untold_calls, self._cell, turn))
        if self._revision is not None:
            inp.new_messages = [*self._revision.question, *request.messages]
        history = loaded_history(self._cell, turn, agent)
        if charge.handed is not None or agent.handoffs:
            charge.prepare(inp, agent, history, app)
        lease, runner = self._lease, self._runner
        await offer_elsewhere(inp, provider, runner.cells, runner.observer, app, agent, attempt, journal)
        self._memories = await patiently(
            lease, partial(runner.recalls.offer, inp, turn, agent, history, self._sink.put)
        )
        done = await run_turn(provider, inp, history, app.toolbox, journal, self._sink, context, decisions)
        if isinstance(done, Suspended):
            passed_by = request.while_suspended == "continue"
            return Waiting(done.calls, (meter.used or Usage()) if passed_by else None)
        messages = stamp(request.messages, done.loop.messages, turn.turn_id, turn.created, agent.name)
        charge.mark(messages)
        return finished(turn, done, messages, before, moves=charge.handed is None)

    async def _opened(self, turn: ClaimedTurn, agent: AgentSpec, charge: Charge) -> AgentSpec:
        """Note the agent that runs the turn. Raises ``OnOtherRevision`` if this worker lacks its revision."""
        if self._runner.has_others and charge.handed is not None and not charge.begins:
            await self._runner.placement.settle_target(turn, agent, charge.handed, self._lease, self.journal)
        elif self._runner.has_others and self._runner.placement.asks(turn, agent):
            await self._runner.placement.settle(turn, agent, self._lease, self._sink)
        self.provider, self._tries.retry, self.agent = agent.provider, agent.retry, agent.name
        if self.watch is not None:
            with suppress(Exception):
                self.watch.opened(agent, self._runner.app.revisions.get(agent.name or ""))
        return agent

    async def _conclude(self, outcome: Outcome) -> bool:
        """Write the outcome. Returns False if another fence is in force."""
        match outcome:
            case Finished():
                return await self._complete(outcome)
            case Failed(code, message, service, raw, limit):
                event = TurnFailedEvent(code=code, message=message, raw=raw, service=service, limit=limit)
                unfinished = await self._unfinished()
                response, calls = unfinished.recorded(*self._ids, [], raw, limit)
                return await self._finish(
                    "failed", event, response=response, calls=calls, error_code=code, error=message,
                    service=said_by(service), usage=unfinished.usage,
                )  # fmt: skip
            case Cancelled(reason):
                return await self._cancel(reason)
            case Retry(error, delay):
                service = said_by(ServiceAnswer.of(error))
                cause = "limit" if isinstance(error, HeldBack) else "error"
                return await self._give_back(cause, error.message, str(error.code), delay, service=service)
            case GivenBack(reason, code, delay, lacking, workers, missing):
                found = {"lacking": lacking, "workers": workers, "missing": missing}
                return await self._give_back("drain", reason, code, delay, **found)
            case Waiting():
                return await self._suspend(outcome)
            case Superseded():
                return False

    async def _suspend(self, waiting: Waiting) -> bool:
        """Suspend the turn without a worker, or end it if it was cancelled in the meantime."""
        self._unsent += await self._sink.settle()
        stop = await patiently(
            self._lease,
            lambda: suspend(self._cell, self._turn, waiting.calls, bodies=self._unsent, aside=waiting.aside),
        )
        return await self._cancel(stop) if stop else stop is not None

    async def _complete(self, done: Finished) -> bool:
        events: list[Event] = [TurnFinished(response=done.response)]
        if done.variables is not None:
            events.insert(0, VariablesChanged(variables=done.variables))
        return await self._finish(
            "finished", *events, messages=done.messages, response=done.encoded, window=done.window,
            summary=done.summary, variables=encode(done.variables) if done.variables is not None else b"",
            calls="told" if self._turn.untold else "", usage=done.response.usage, memories=self._memories,
        )  # fmt: skip

    async def _cancel(self, reason: str) -> bool:
        """Keep part of the turn in the history, as requested by the cancellation, and all of it in its record."""
        keep = self._lease.keep
        keep = keep or await patiently(self._lease, lambda: self._cell.keep_of(self._turn.turn_id))
        unfinished = await self._unfinished()
        if not await self._finds_place():
            keep = "nothing"
        kept = stamp(*unfinished.kept(keep), self._turn.turn_id, self._turn.created, self.agent)
        if self._charge is not None:
            self._charge.mark(kept)
        response, calls = unfinished.recorded(*self._ids, kept)
        events: list[Event] = [TurnCancelledEvent(reason=reason, kept=len(kept), keep=keep)]
        variables = unfinished.variables if kept else None
        if variables is not None:
            events.insert(0, VariablesChanged(variables=variables))
        return await self._finish(
            "cancelled", *events, messages=[encode(message) for message in kept], response=response, calls=calls,
            error=reason, variables=encode(variables) if variables is not None else b"", usage=unfinished.usage,
        )  # fmt: skip

    async def _finds_place(self) -> bool:
        """Find the place in the history of a revising turn that was stopped early. Return False if it is gone."""
        request = self._request
        with suppress(AgentError):
            if request is not None and request.revises is not None and self._revision is None:
                self._revision = await revised(self._cell, self._turn, request.revises, self._lease)
            return True
        return False

    async def _unfinished(self) -> Unfinished:
        """Stop what runs elsewhere; return output and tool results, or nothing if the data of the turn is damaged."""
        if self._bare:
            return Unfinished([], [], "")
        try:
            self._request = self._request or decode_request(self._turn.request)
            entries = self.journal.entries if self.journal else [*map(decode_entry, self._turn.journal)]
            used = self.meter.used if self.meter else None
            decisions = claimed_decisions(self._turn)
            found = Unfinished(self._request.messages, entries, self._sink.said(), decisions, used)
            of = self._turn.tenant or None, self._request.user
            await stop_elsewhere(self._runner.cells, self._runner.app, self._lease, entries, *of)
            return found
        except AgentError:
            return Unfinished([], [], "")

    async def _finish(
        self, status: str, *events: Event, messages: Sequence[bytes] = (), usage: Usage, **fields: Any
    ) -> bool:
        """Run one script: the unpublished events, the history, the terminal event and the next turn's start."""
        if messages and self._revision is not None:
            fields["kept"] = self._revision.kept
            events = (*filter(None, [self._revision.event]), *events)
        fields |= {"usage": used_with(self._turn, usage), "events_ttl": self._runner.app.events_ttl}
        self._unsent += await self._sink.settle()
        bodies = self._unsent + [self._sink.body(event) for event in events]
        return await patiently(
            self._lease,
            lambda: self._cell.finish(self._turn, status, messages=messages, bodies=bodies, **fields),
        )

    async def _give_back(self, cause: str, reason: str, code: str, delay: float, **others: Any) -> bool:
        """Requeue the turn. Its published events stay visible; it starts again from its last finished step."""
        await self._sink.flushed()
        return await patiently(
            self._lease,
            lambda: self._cell.give_back(
                self._turn, cause, delay_ms=int(delay * 1000), reason=reason, code=code, **others
            ),
        )
