"""The outcomes of an attempt at a turn, their log lines, and the delay before a retry.

The tags are the names in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from antiphon.errors import AgentError, InvalidOutput, LimitReached, ProviderError
from antiphon.input.request import AgentSpec
from antiphon.model import Message, OpenCall, Response, ServiceAnswer, Usage, Wait, encode
from antiphon.model import Retry as RetryPolicy
from antiphon.telemetry import log_fault
from antiphon.wire.records import ClaimedTurn
from antiphon_worker import resilience
from antiphon_worker.app import App
from antiphon_worker.loop.hooks import Hooks
from antiphon_worker.loop.run_turn import TurnResult
from antiphon_worker.process.history import window_field
from antiphon_worker.process.lease import Lease, Stop
from antiphon_worker.providers.stream.json_text import valid
from antiphon_worker.resilience import Fallback
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.turn")

SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 30.0  # for a worker of a newer release


class Finished(Struct, tag="finished"):
    """An encoded answer. It is encoded before any write, so that an answer that cannot be encoded fails the turn."""

    messages: list[bytes]
    response: Response
    encoded: bytes  # the response
    window: str
    summary: bytes
    variables: dict[str, Any] | None  # if a tool changed them


class Failed(Struct, tag="failed"):
    code: str
    message: str
    service: ServiceAnswer | None = None
    raw: str = ""  # an answer that does not match its schema
    limit: str = ""  # the name of the limit that the turn has reached

    @classmethod
    def of(cls, exc: AgentError) -> Failed:
        raw = exc.raw if isinstance(exc, InvalidOutput) else ""
        limit = exc.limit if isinstance(exc, LimitReached) else ""
        return cls(str(exc.code), exc.message, ServiceAnswer.of(exc), raw, limit)


class Retry(Struct, tag="retrying"):
    error: ProviderError
    delay: float  # seconds


def finished(
    turn: ClaimedTurn,
    done: TurnResult,
    messages: Sequence[Message],
    before: Mapping[str, Any],
    *,
    moves: bool,
) -> Finished:
    """Return the outcome of a turn that added ``messages``. ``before`` are the variables that its session had.

    If the turn ``moves`` the session's window, the next turn begins where its window began.
    """
    response = done.loop.response(turn.turn_id, turn.session_id)
    return Finished(
        [encode(message) for message in messages],
        response,
        encode(response),
        window_field(done.window if moves else None),
        done.summary.to_field() if done.summary else b"",
        done.variables if done.variables != before else None,
    )


class Cancelled(Struct, tag="cancelled"):
    reason: str


class GivenBack(Struct, tag="given_back"):
    reason: str
    code: str = "drained"
    delay: float = 0.0
    lacking: str = ""  # digests of Apps that lack what the turn needs
    workers: tuple[str, ...] = ()  # some that have what it needs
    missing: str = ""  # the revision it runs on (agent@revision), if no worker has it


class Waiting(Struct, tag="suspended"):
    """The turn waits for decisions about these calls, or for these waits to end.

    If ``aside`` is its usage so far, other turns may overtake it.
    """

    calls: list[OpenCall | Wait]
    aside: Usage | None


class Superseded(Struct, tag="superseded"):
    pass


Outcome: TypeAlias = Finished | Failed | Retry | Cancelled | GivenBack | Waiting | Superseded


def encodable(outcome: Outcome) -> Outcome:
    """Make the outcome's reasons valid for Redis and JSON, so that writing the end of a turn never raises.

    Providers and tools of an App may return any text; a lone surrogate becomes U+FFFD.
    """
    match outcome:
        case Failed(code, message, service, raw, limit):
            if service is not None and service.request_id is not None:
                service = msgspec.structs.replace(service, request_id=valid(service.request_id))
            return Failed(valid(code), valid(message), service, valid(raw), limit)
        case Retry(error, delay):
            error.args = (valid(error.message),)
            error.request_id = error.request_id and valid(error.request_id)
            return Retry(error, delay)
        case Cancelled(reason):
            return Cancelled(valid(reason))
        case GivenBack(reason, code):
            return msgspec.structs.replace(outcome, reason=valid(reason), code=valid(code))
        case Finished() | Superseded() | Waiting():
            return outcome


def broken(turn: ClaimedTurn, exc: BaseException) -> Failed:
    """Log an unexpected exception, and return the failure of its turn."""
    log_fault(
        log, exc, "turn %s of session %s broke the worker's code", turn.turn_id, turn.session_id,
        action="turn_broke", session=turn.session_id, turn=turn.turn_id,
    )  # fmt: skip
    return Failed("internal_error", f"The worker's code failed: {type(exc).__name__}.")


def facts_of(outcome: Outcome, provider: str) -> tuple[dict[str, Any], str]:
    """Return the log fields of an outcome, and a text for debug logs only, because it may quote users."""
    match outcome:
        case Failed(code, message, service):
            service = service or ServiceAnswer()
            facts, said = {"code": code, "status": service.status, "request_id": service.request_id}, message
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


def code_of(outcome: Outcome) -> str:
    """Return the error code of an outcome, or ''."""
    match outcome:
        case Failed(code) | GivenBack(code=code):
            return code
        case Retry(error):
            return str(error.code)
        case _:
            return ""


def log_end(turn: ClaimedTurn, outcome: Outcome, provider: str, took: float) -> None:
    """Log the outcome of an attempt that took so many seconds; an end counts all attempts and the time between."""
    name = str(outcome.__struct_config__.tag)
    if isinstance(outcome, Finished | Failed | Cancelled):
        took += turn.spent_ms / 1000
    fields = {
        "action": f"turn_{name}",
        "session": turn.session_id,
        "turn": turn.turn_id,
        "fence": turn.fence,
    }
    facts, said = facts_of(outcome, provider)
    log.log(
        logging.WARNING if isinstance(outcome, Failed | Retry) else logging.INFO,
        "turn %s of session %s: %s after %.2f s%s",
        turn.turn_id, turn.session_id, name.replace("_", " "), took,
        "".join(f", {fact} {value}" for fact, value in facts.items()),
        extra=fields | facts,
    )  # fmt: skip
    if said:
        log.debug("turn %s of session %s: %s", turn.turn_id, turn.session_id, said, extra=fields | facts)


def seconds_until_retry(
    turn: ClaimedTurn, error: ProviderError, took: float, settings: Settings, retry: RetryPolicy | None
) -> float | None:
    """Return the seconds until the next try, or None to give the model up. ``took`` is this attempt's duration."""
    failing = 0.0 if turn.failing_ms is None else turn.failing_ms / 1000 + took
    return resilience.seconds_until_retry(error, turn.errors, failing, _policy(settings, retry))


def _policy(settings: Settings, retry: RetryPolicy | None) -> RetryPolicy:
    """Return the agent's policy, completed with the worker's defaults."""
    policy, most = retry or RetryPolicy(settings.retry_seconds), max(settings.error_limit - 1, 0)
    return msgspec.structs.replace(
        policy,
        times=most if policy.times is None else min(policy.times, most),
        delay=settings.retry_delay if policy.delay is None else policy.delay,
    )


class Tries:
    """The tries of one attempt at a turn. ``retry`` is the policy of its agent, once known."""

    def __init__(self, turn: ClaimedTurn, settings: Settings) -> None:
        self._turn = turn
        self._settings = settings
        self._began = time.monotonic()
        self._again: tuple[ProviderError, float] | None = None  # an error after which a model is tried again
        self.retry: RetryPolicy | None = None

    def pause(self, error: ProviderError) -> float | None:
        """Return the seconds until the next try, or None if the turn fails. The same error gets the same answer."""
        return self._again[1] if self._again and self._again[0] is error else self._pause(error, self.retry)

    def fallback(self, agent: AgentSpec, app: App) -> Fallback:
        """Return the agent's fallbacks. A model with a fallback is retried as the agent says, or briefly."""
        models = agent.fallback
        shortly = agent.retry or RetryPolicy(min(resilience.FALLBACK_SECONDS, self._settings.retry_seconds))

        def gives_up(error: ProviderError) -> bool:
            delay = self._pause(error, shortly)
            self._again = None if delay is None else (error, delay)
            return delay is None

        return Fallback(models, lambda place: app.fallback(models[place]), gives_up)

    def _pause(self, error: ProviderError, retry: RetryPolicy | None) -> float | None:
        return seconds_until_retry(self._turn, error, time.monotonic() - self._began, self._settings, retry)


def seconds_until_newer(turn: ClaimedTurn) -> float:
    """Return the seconds until a turn that needs a newer release is offered again: a quarter of its wait so far."""
    return min(max(turn.spent_ms / 4000, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)


async def noticed(outcome: Outcome, hooks: Hooks) -> Outcome:
    """Return the outcome of a turn, after notifying its hooks of a failure."""
    if isinstance(outcome, Failed):
        await hooks.failed(outcome.code, outcome.message)
    return outcome


def stopped(stop: Stop, lease: Lease) -> Outcome:
    """Return the outcome of a stopped attempt."""
    match stop:
        case Stop.SUPERSEDED:
            return Superseded()
        case Stop.CANCELLED:
            return Cancelled(lease.stop_reason)
        case Stop.DRAINED:
            return GivenBack(lease.stop_reason or "The worker stops.")


def said_by(service: ServiceAnswer | None) -> bytes:
    """Return the stored form of a model service's error."""
    return encode(service) if service is not None else b""
