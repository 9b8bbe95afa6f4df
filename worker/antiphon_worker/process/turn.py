"""One claimed turn, from its claim to its outcome. The only place that turns causes into outcomes."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from antiphon.errors import AgentError, ProviderError
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent, TurnFinished, VariablesChanged
from antiphon.input.limits import check_size
from antiphon.input.request import AgentSpec, TurnRequest, check_request, decode_request
from antiphon.model import Message, Response, encode
from antiphon.tools import Context
from antiphon.wire.cell import Cell, ClaimedTurn
from antiphon.wire.records import readable
from antiphon_worker.app import App
from antiphon_worker.archive.store import ArchiveUnavailable
from antiphon_worker.loop.input import loop_input, stamp
from antiphon_worker.loop.run_turn import TimeLimit, run_turn
from antiphon_worker.loop.steps import messages_of
from antiphon_worker.process.faults import log_fault
from antiphon_worker.process.history import loaded_history, restore_before, window_field
from antiphon_worker.process.journal import TurnJournal, patiently
from antiphon_worker.process.lease import Lease, Stop, StopSignal
from antiphon_worker.process.publisher import Publisher, TurnSink
from antiphon_worker.providers.stream.json_text import valid
from antiphon_worker.settings import Settings

__all__ = ["TurnRunner"]

log = logging.getLogger("antiphon.turn")

LONGEST_RETRY_SECONDS = 60.0


class Finished(Struct, tag="finished"):
    """An answer, encoded already: what cannot be encoded is a failure, and known before anything is written."""

    messages: list[bytes]
    response: Response
    encoded: bytes  # the response
    window: str
    summary: bytes
    variables: dict[str, Any] | None  # where a tool changed them


class Failed(Struct, tag="failed"):
    code: str
    message: str
    status: int | None = None  # the model service's, as the request's id
    request_id: str | None = None

    @classmethod
    def of(cls, exc: AgentError) -> Failed:
        if isinstance(exc, ProviderError):
            return cls(str(exc.code), exc.message, exc.status, exc.request_id)
        return cls(str(exc.code), exc.message)


class Retry(Struct, tag="retrying"):
    error: ProviderError
    delay: float  # seconds


class Cancelled(Struct, tag="cancelled"):
    reason: str


class GivenBack(Struct, tag="given_back"):
    reason: str
    code: str = "drained"
    delay: float = 0.0


class Superseded(Struct, tag="superseded"):
    pass


Outcome: TypeAlias = Finished | Failed | Retry | Cancelled | GivenBack | Superseded


class TurnRunner:
    """Runs claimed turns; holds what all turns of the process share."""

    def __init__(self, cell: Cell, publisher: Publisher, app: App, settings: Settings) -> None:
        self.cell = cell
        self.publisher = publisher
        self.app = app
        self.settings = settings
        self.archive = app.archive(settings.archive)
        self.ended = (0, 0, 0.0)  # turns that finished, turns that failed, and how many seconds both took

    async def run(self, turn: ClaimedTurn, lease: Lease) -> str:
        """Work on a claimed turn until it has an outcome, and write that down. Gives the outcome's name."""
        began = time.monotonic()
        run = _Run(self, turn, lease)
        outcome = await run.run()
        name, took = str(outcome.__struct_config__.tag), time.monotonic() - began
        self._count(outcome, took)
        fields = {
            "action": f"turn_{name}",
            "session": turn.session_id,
            "turn": turn.turn_id,
            "fence": turn.fence,
        }
        facts, said = _why(outcome, run.provider)
        log.log(
            logging.WARNING if isinstance(outcome, Failed | Retry) else logging.INFO,
            "turn %s of session %s: %s after %.2f s%s",
            turn.turn_id, turn.session_id, name.replace("_", " "), took,
            "".join(f", {fact} {value}" for fact, value in facts.items()),
            extra=fields | facts,
        )  # fmt: skip
        if said:
            log.debug("turn %s of session %s: %s", turn.turn_id, turn.session_id, said, extra=fields | facts)
        return name

    def _count(self, outcome: Outcome, seconds: float) -> None:
        finished, failed, took = self.ended
        if isinstance(outcome, Finished | Failed):
            good = isinstance(outcome, Finished)
            self.ended = (finished + good, failed + (not good), took + seconds)


class _Run:
    """One attempt at one turn: claim has happened, then load, work, conclude."""

    def __init__(self, runner: TurnRunner, turn: ClaimedTurn, lease: Lease) -> None:
        self._runner = runner
        self._settings = runner.settings
        self._cell = runner.cell
        self._turn = turn
        self._lease = lease
        self._sink = TurnSink(turn, lease, runner.publisher)
        self._request: TurnRequest | None = None
        self._journal: TurnJournal | None = None
        self.provider = ""  # of its agent, once that is known

    async def run(self) -> Outcome:
        try:
            outcome = _encodable(await self._work())
            return outcome if await self._conclude(outcome) else Superseded()
        except StopSignal:
            return Superseded()
        finally:
            self._lease.on_stop(None)  # which held the sink, which holds the lease
            self._runner.publisher.forget(self._sink)

    async def _work(self) -> Outcome:
        """Load and answer; whatever happens is an outcome."""
        if self._turn.stop:
            self._lease.end(Stop.CANCELLED, self._turn.stop, at_once=False)
        try:
            with self._interruptible():
                return await self._answer()
        except StopSignal as signal:
            return _stopped(signal.stop, self._lease)
        except ProviderError as exc:
            exhausted = self._turn.errors + 1 >= self._settings.error_limit
            return Failed.of(exc) if exhausted or not exc.retryable else Retry(exc, self._delay(exc))
        except ArchiveUnavailable as exc:
            return GivenBack(exc.message, str(exc.code), exc.retry_after)
        except AgentError as exc:
            return Failed.of(exc)
        except UnicodeEncodeError:
            return Failed("internal_error", "The answer holds text that cannot be stored: half a character.")
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this turn's outcome
            log_fault(
                log, exc, "turn %s of session %s broke the worker's code", self._turn.turn_id, self._turn.session_id,
                action="turn_broke", session=self._turn.session_id, turn=self._turn.turn_id,
            )  # fmt: skip
            return Failed("internal_error", f"The worker's code failed: {type(exc).__name__}.")

    @contextmanager
    def _interruptible(self) -> Generator[None]:
        """Within this, a stop that must not wait cancels the task, and comes out as ``StopSignal``."""
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            self._sink.release()
            task.cancel()

        self._lease.on_stop(interrupt)
        try:
            yield
        except asyncio.CancelledError:
            if self._lease.stop is None:
                raise
            task.uncancel()
            raise StopSignal(self._lease.stop) from None
        finally:
            self._lease.on_stop(self._sink.release)

    async def _answer(self) -> Finished:
        turn, app = self._turn, self._runner.app
        request = self._request = decode_request(turn.request)
        check_request(request, len(turn.request))
        most = self._settings.turn_timeout
        async with TimeLimit(min(request.timeout or most, most)):
            self._journal = TurnJournal(self._cell, turn, self._lease, self._sink)
            await restore_before(self._cell, self._runner.archive, turn, self._lease)
            agent = app.agent(_asked(turn, request), request.params, bool(turn.system))
            self.provider = agent.provider
            provider = await app.provider(agent.provider)
            before = _variables(turn)
            inp = loop_input(agent, request, app.tools(agent.tools), _own_system(turn), before)
            context = Context(turn.session_id, turn.turn_id, variables=_variables(turn))
            history = loaded_history(self._cell, turn, agent)
            done = await run_turn(provider, inp, history, app.toolbox, self._journal, self._sink, context)
        messages = stamp([*request.messages, *done.loop.messages], turn.turn_id, agent.name)
        response = done.loop.response(turn.turn_id, turn.session_id)
        return Finished(
            [encode(message) for message in messages],
            response,
            encode(response),
            window_field(done.window),
            done.summary.to_field() if done.summary else b"",
            done.variables if done.variables != before else None,
        )

    async def _conclude(self, outcome: Outcome) -> bool:
        """Write the outcome. False where another fence is in force."""
        match outcome:
            case Finished():
                return await self._complete(outcome)
            case Failed(code, message, _, _):
                event = TurnFailedEvent(code=code, message=message)
                return await self._finish("failed", event, error_code=code, error=message)
            case Cancelled(reason):
                kept = self._kept()
                event = TurnCancelledEvent(reason=reason, kept=len(kept))
                encoded = [encode(message) for message in kept]
                return await self._finish("cancelled", event, messages=encoded, error=reason)
            case Retry(error, delay):
                return await self._give_back("error", error.message, str(error.code), delay)
            case GivenBack(reason, code, delay):
                return await self._give_back("drain", reason, code, delay)
            case Superseded():
                return False

    async def _complete(self, done: Finished) -> bool:
        events: list[Event] = [TurnFinished(response=done.response)]
        if done.variables is not None:
            events.insert(0, VariablesChanged(variables=done.variables))
        return await self._finish(
            "finished", *events, messages=done.messages, response=done.encoded, window=done.window,
            summary=done.summary, variables=encode(done.variables) if done.variables is not None else b"",
        )  # fmt: skip

    async def _finish(
        self, status: str, *events: Event, messages: Sequence[bytes] = (), **fields: Any
    ) -> bool:
        """One script: what was not published yet, history, the terminal event, the next turn's start."""
        bodies = await self._sink.settle() + [self._sink.body(event) for event in events]
        return await patiently(
            self._lease,
            lambda: self._cell.finish(self._turn, status, messages=messages, bodies=bodies, **fields),
        )

    async def _give_back(self, cause: str, reason: str, code: str, delay: float = 0.0) -> bool:
        """What was said stays visible; the turn starts again from its last finished step."""
        await self._sink.flushed()
        return await patiently(
            self._lease,
            lambda: self._cell.give_back(
                self._turn, cause, delay_ms=int(delay * 1000), reason=reason, code=code
            ),
        )

    def _delay(self, error: ProviderError) -> float:
        """Seconds until the next try: what the service asked for, or doubling ones."""
        delay = error.retry_after
        if delay is None:
            delay = self._settings.retry_delay * 2**self._turn.errors * random.uniform(0.8, 1.2)
        return min(delay, LONGEST_RETRY_SECONDS)

    def _kept(self) -> list[Message]:
        """What a cancelled turn leaves: its finished steps after its input, or nothing."""
        done = messages_of(self._journal.entries) if self._journal else []
        if not done or self._request is None:
            return []
        return stamp([*self._request.messages, *done], self._turn.turn_id)


def _asked(turn: ClaimedTurn, request: TurnRequest) -> str | AgentSpec | None:
    if request.agent is not None or not turn.session_agent:
        return request.agent
    with readable("The agent of a session", session_id=turn.session_id):
        return msgspec.json.decode(turn.session_agent, type=str | AgentSpec)


def _variables(turn: ClaimedTurn) -> dict[str, Any]:
    if not turn.variables:
        return {}
    check_size("variables_bytes", len(turn.variables), "The session's variables in bytes")
    with readable("The variables of a session", session_id=turn.session_id):
        return msgspec.json.decode(turn.variables, type=dict[str, Any])


def _own_system(turn: ClaimedTurn) -> str | None:
    """The session's own system prompt."""
    if not turn.system:
        return None
    check_size("system_bytes", len(turn.system), "The session's system prompt in bytes")
    with readable("The system prompt of a session", session_id=turn.session_id):
        return turn.system.decode()


def _encodable(outcome: Outcome) -> Outcome:
    """The outcome with reasons that Redis and JSON can hold: nothing that ends a turn may raise while it is written.


    Providers and tools of an App say what they like; half a character becomes U+FFFD.
    """
    match outcome:
        case Failed(code, message, status, request_id):
            return Failed(valid(code), valid(message), status, request_id)
        case Retry(error, delay):
            error.args = (valid(error.message),)
            return Retry(error, delay)
        case Cancelled(reason):
            return Cancelled(valid(reason))
        case GivenBack(reason, code, delay):
            return GivenBack(valid(reason), valid(code), delay)
        case Finished() | Superseded():
            return outcome


def _why(outcome: Outcome, provider: str) -> tuple[dict[str, Any], str]:
    """What the log adds to the outcome's name, and the text for debug alone: services and callers may quote users."""
    match outcome:
        case Failed(code, message, status, request_id):
            facts, said = {"code": code, "status": status, "request_id": request_id}, message
        case Retry(error, delay):
            facts, said = {"code": str(error.code), "status": error.status}, error.message
            facts |= {"request_id": error.request_id, "again_in": f"{delay:.1f}"}
        case GivenBack(reason, code):
            return {"code": code}, reason
        case Cancelled(reason):
            return {}, reason
        case _:
            return {}, ""
    facts["provider"] = provider or None
    return {fact: value for fact, value in facts.items() if value is not None}, said


def _stopped(stop: Stop, lease: Lease) -> Outcome:
    match stop:
        case Stop.SUPERSEDED:
            return Superseded()
        case Stop.CANCELLED:
            return Cancelled(lease.stop_reason)
        case Stop.DRAINED:
            return GivenBack(lease.stop_reason or "The worker stops.")
