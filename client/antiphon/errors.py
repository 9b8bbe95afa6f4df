"""The exceptions that Antiphon raises.

    AgentError                      the base class; has ``code``, and ``session_id`` and ``turn_id`` if known
    ├─ UsageError                   the call is wrong; retrying does not help
    │  ├─ SettingsError             a setting is missing or wrong; the message names the variable and the fix
    │  ├─ MissingPackage            an optional package is not installed
    │  ├─ InvalidId, InvalidMessage an id is invalid; a message is malformed or too large
    │  ├─ InvalidTool               a function cannot be used as a tool
    │  ├─ InvalidOutput             structured output does not match its schema; ``raw`` is the model's text
    │  ├─ UnknownAgent, UnknownProvider, UnknownTool, UnknownPrice
    │  ├─ NotAllowed                the worker's App does not accept this from a turn
    │  ├─ LimitReached              a value exceeds a limit, or a turn has used up one; ``limit`` is its name
    │  │  └─ TenantLimit            a tenant has too many turns; ``retryable``, ``retry_after``
    │  ├─ KeyReused                 an idempotency key was used for a different request
    │  ├─ SessionChanged            the session has changed since the caller read it
    │  ├─ SessionExists             the session already has a history
    │  ├─ WrongTenant               the session does not belong to the tenant that the call names
    │  ├─ AlreadyDecided            a pending tool call was already decided; ``decision`` is the first decision
    │  ├─ NotSuspended              the turn does not wait for this call; ``status`` is the turn's
    │  └─ ClientClosed
    ├─ NotFound                     SessionNotFound, TurnNotFound (TurnDeleted), MessageNotFound
    ├─ SessionBusy                  the session is running a turn, or its inbox is full
    ├─ TurnError                    TurnFailed, TurnCancelled, StepLimitReached, ResultTimeout (also a TimeoutError)
    ├─ EventTimeout                 no event came in time (also a TimeoutError)
    ├─ StepFailed                   a durable step of a tool or turn function failed; the journal keeps its text
    ├─ StreamError                  StreamGap: the events after the cursor are unknown
    ├─ ProviderError                a model service failed; ``retryable``, ``retry_after``, ``status``, ``request_id``
    │  └─ ProviderRateLimited, ProviderOverloaded, ProviderTimedOut, ProviderUnreachable,
    │     ProviderRejected, ProviderUnauthorized, ProviderStreamBroken; kinds of ProviderTimedOut:
    │     ProviderFirstTokenTimedOut, ProviderSilent, ProviderStepTimedOut; of ProviderRejected: ContextTooLong
    ├─ ToolError                    sent to the model: ToolRaised, ToolTimedOut, ToolNotFound, ToolArgumentsInvalid
    └─ StoreError                   Redis or a session store failed; ``retryable``: StoreUnavailable (NotReplicated),
                                    StoreFull, StoreReadOnly, StoreUnsupported, CorruptRecord (KeyMissing,
                                    SealBroken, NotEncrypted)

``code`` is stable, and also used in events and logs. The first line of a class's docstring is its default message.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

__all__ = [
    "AgentError", "AlreadyDecided", "ClientClosed", "ContextTooLong", "CorruptRecord", "InvalidId", "InvalidMessage",
    "InvalidOutput", "InvalidTool", "KeyMissing", "KeyReused", "LimitReached", "MessageNotFound", "MissingPackage",
    "NotAllowed", "NotEncrypted", "NotFound", "NotReplicated", "NotSuspended", "ProviderError",
    "ProviderFirstTokenTimedOut", "ProviderOverloaded", "ProviderRateLimited", "ProviderRejected", "ProviderSilent",
    "ProviderStepTimedOut", "ProviderStreamBroken", "ProviderTimedOut", "ProviderUnauthorized", "ProviderUnreachable",
    "ResultTimeout", "SealBroken", "SessionBusy", "SessionChanged", "SessionExists", "SessionNotFound", "SettingsError",
    "StepFailed", "StepLimitReached", "StoreError", "StoreFull", "StoreReadOnly", "StoreUnavailable",
    "StoreUnsupported", "StreamError", "StreamGap", "TenantLimit", "ToolArgumentsInvalid", "ToolError", "ToolNotFound",
    "ToolRaised", "ToolTimedOut", "TurnCancelled", "TurnDeleted", "TurnError", "TurnFailed", "TurnNotFound",
    "UnknownAgent", "UnknownPrice", "UnknownProvider", "UnknownTool", "UsageError", "WrongTenant",
]  # fmt: skip

_SENTENCES = {
    "The assistant is not available at the moment. Please try again later.": (
        "provider provider_unreachable provider_unauthorized draining unknown_agent unknown_provider unknown_price "
        "revision_unavailable settings missing_package store store_unavailable not_replicated store_full "
        "store_read_only store_unsupported"
    ),
    "The assistant has reached its limit for now. Please try again later.": "budget_reached",
    "The assistant is very busy at the moment. Please try again in a few minutes.": (
        "provider_rate_limited provider_overloaded"
    ),
    "The answer took too long. Please try again.": (
        "provider_timed_out provider_first_token_timed_out provider_silent provider_step_timed_out turn_timed_out "
        "result_timeout"
    ),
    "The answer broke off. Please try again.": "provider_stream_broken worker_died worker_crashed loop_stalled",
    "The assistant cannot answer this message. Please change it and try again.": (
        "provider_rejected guardrail_tripwire blocked invalid_message"
    ),
    "This conversation is too long for the assistant. Please send a shorter message or start a new one.": (
        "context_too_long"
    ),
    "The answer was stopped.": "turn_cancelled",
    "This is more than the assistant can handle at once. Please ask for less.": (
        "step_limit limit_reached body_too_large"
    ),
    "The assistant is still busy with this conversation. Please wait a moment.": "session_busy",
    "This was decided before.": "already_decided",
    "This no longer waits for a decision.": "not_suspended",
    "The conversation has changed in the meantime. Please reload it.": (
        "session_changed message_not_found stream_gap"
    ),
    "This is no longer available.": "not_found session_not_found turn_not_found turn_deleted",
    "You do not have access to this.": "wrong_tenant not_allowed forbidden",
    "Please sign in again.": "unauthorized",
    "You have sent too many messages. Please wait a moment.": "tenant_limit too_many_requests",
    "Too many pages are open. Please close some of them.": "too_many_streams",
}
USER_MESSAGES = {code: sentence for sentence, codes in _SENTENCES.items() for code in codes.split()}
"""The sentences that end users read about errors, by code. Translate them by code."""

_LIMIT = re.compile(r"(?:is over|exceeds) the limit (\w+), which is |\(limit (\w+)\)")


class AgentError(Exception):
    """A session, a turn or a call failed.

    >>> from antiphon import Agent
    >>> from antiphon.testing import script
    >>> session = Agent(provider=script(ProviderRateLimited(retry_after=2.0)), model="any").session()
    >>> try:
    ...     session.run("Hello")
    ... except AgentError as error:
    ...     print(error.code, error.retryable, error)
    provider_rate_limited True The model service is limiting the rate of requests: try again later.
    """

    code: ClassVar[str] | str = "error"
    retryable: bool = False

    def __init__(
        self, message: str | None = None, *, session_id: str | None = None, turn_id: str | None = None
    ) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])
        self.session_id = session_id
        self.turn_id = turn_id

    @property
    def message(self) -> str:
        """What went wrong and, where possible, how to fix it.

        >>> ClientClosed().message
        'The client is closed: open a new one.'
        """
        return str(self.args[0])

    @property
    def user_message(self) -> str:
        """A sentence for end users: it names no key, address, setting or tenant. ``message`` is for operators.

        >>> ProviderUnauthorized().user_message
        'The assistant is not available at the moment. Please try again later.'
        """
        return user_message(str(self.code))


def user_message(code: str) -> str:
    """Return the sentence for end users about an error with this code.

    >>> user_message("provider_silent")
    'The answer took too long. Please try again.'
    """
    return USER_MESSAGES.get(code, "Something went wrong. Please try again.")


class UsageError(AgentError):
    """The call is not valid: change it before you try again."""

    code = "usage"


class SettingsError(UsageError):
    """A setting is missing or wrong."""

    code = "settings"


class MissingPackage(UsageError):
    """An optional package is not installed: pip install 'antiphon[worker]'."""

    code = "missing_package"


class InvalidId(UsageError):
    """The id is empty, is too long or contains characters that are not allowed."""

    code = "invalid_id"


class InvalidMessage(UsageError):
    """The message is malformed or too large."""

    code = "invalid_message"


class InvalidTool(UsageError):
    """This function cannot be used as a tool."""

    code = "invalid_tool"


class InvalidOutput(UsageError):
    """The model's structured output does not match the schema."""

    code = "invalid_output"

    def __init__(self, message: str | None = None, *, raw: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.raw = raw


class UnknownAgent(UsageError):
    """No agent with this name is registered in the worker's App."""

    code = "unknown_agent"


class RevisionUnavailable(AgentError):
    """No worker has the revision of the agent on which the turn began, and the time to wait for one is over."""

    code = "revision_unavailable"


class UnknownProvider(UsageError):
    """No provider with this name is registered."""

    code = "unknown_provider"


class UnknownTool(UsageError):
    """No tool with this name is registered in the worker's App."""

    code = "unknown_tool"


class UnknownPrice(UsageError):
    """The cost of a turn is limited, but its model has no price."""

    code = "unknown_price"


class NotAllowed(UsageError):
    """The worker's App does not accept this from a turn."""

    code = "not_allowed"


class LimitReached(UsageError):
    """A value exceeds a limit.

    For a turn: it has used up one of its ``Limits`` without an answer.

    ``limit`` is the name of the limit. The message contains it too, for readers that have only code and message.

    >>> error = LimitReached("The turn has too many bytes.", limit="request_bytes")
    >>> error.message, LimitReached(error.message).limit
    ('The turn has too many bytes. (limit request_bytes)', 'request_bytes')
    """

    code = "limit_reached"

    def __init__(self, message: str | None = None, *, limit: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        named = _LIMIT.search(self.message)
        self.limit = limit or (named[1] or named[2] if named else "")
        if limit and not (named and limit in named.groups()):
            self.args = (f"{self.message} (limit {limit})",)


class BudgetReached(LimitReached):
    """A budget is used up: raise it (``Client.budgets``) and run the turn again, or wait for its next window.

    ``limit`` is the budget's scope, unit and window.

    >>> BudgetReached("The budget is used up.", limit="tenant_cost_per_day").limit
    'tenant_cost_per_day'
    """

    code = "budget_reached"


class TenantLimit(LimitReached):
    """The tenant has reached one of its limits: submit the turn again later.

    ``limit`` is one of ``TenantLimits``, or ``tenant_turns``, and ``retry_after`` is in seconds.

    >>> error = TenantLimit(limit="per_minute", retry_after=12.5)
    >>> error.limit, error.retry_after, error.retryable
    ('per_minute', 12.5, True)
    """

    code = "tenant_limit"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after: float = 1.0, **where: Any) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after


class KeyReused(UsageError):
    """This idempotency key was already used in this session for a different request."""

    code = "key_reused"


class SessionChanged(UsageError):
    """The session has changed since the ``cursor`` of the call: read it again before you submit.

    >>> SessionChanged(session_id="s1").session_id
    's1'
    """

    code = "session_changed"


class SessionExists(UsageError):
    """The session already has a history."""

    code = "session_exists"


class WrongTenant(UsageError):
    """The session does not belong to this tenant: answer 403, or use another session id."""

    code = "wrong_tenant"


class AlreadyDecided(UsageError):
    """This call was decided before.

    ``decision`` is the first decision, which remains valid.

    >>> from antiphon.model import Decision
    >>> late = AlreadyDecided(decision=Decision("call_1", "approve", by="ada"))
    >>> late.message, late.decision.by
    ("The call 'call_1' was approved before, by ada.", 'ada')
    """

    code = "already_decided"

    def __init__(self, message: str | None = None, *, decision: Any = None, **where: Any) -> None:
        super().__init__(message or (decision and _as_decided(decision)), **where)
        self.decision = decision


def _as_decided(first: Any) -> str:
    """Describe a decision by who made it or, if unknown, by its reason, such as a time limit."""
    done = {"approve": "approved", "reject": "rejected", "result": "given a result"}[first.kind]
    if not first.who and first.reason:
        return f"The call {first.call_id!r} was {done} before: {first.reason[:200]}"
    return f"The call {first.call_id!r} was {done} before{f', by {first.who}' if first.who else ''}."


class NotSuspended(UsageError):
    """The turn does not wait for a decision about this call.

    ``status`` is that of the turn.

    >>> NotSuspended(status="finished").status
    'finished'
    """

    code = "not_suspended"

    def __init__(self, message: str | None = None, *, status: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.status = status


class ClientClosed(UsageError):
    """The client is closed: open a new one."""

    code = "client_closed"


class NotFound(AgentError):
    """Nothing was found for this id."""

    code = "not_found"


class SessionNotFound(NotFound):
    """The session does not exist or has expired."""

    code = "session_not_found"


class TurnNotFound(NotFound):
    """The turn does not exist or has expired."""

    code = "turn_not_found"


class TurnDeleted(TurnNotFound):
    """The turn was deleted with its session: nothing that it said is kept, and it cannot run again.

    Its key is free again a week after its end: until then, use another one.
    """

    code = "turn_deleted"
    tenant: str | None = None


class MessageNotFound(NotFound):
    """The session's history has no message with this id: use the id of one of session.messages."""

    code = "message_not_found"


class SessionBusy(AgentError):
    """The session is running a turn, or its inbox is full: try again later.

    ``retry_after`` is in seconds.

    >>> SessionBusy(retry_after=2.0).retry_after
    2.0
    """

    code = "session_busy"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after: float = 1.0, **where: Any) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after


class TurnError(AgentError):
    """The turn did not finish.

    >>> isinstance(ResultTimeout(turn_id="t1"), TimeoutError)
    True
    """

    code = "turn"

    def __init__(self, message: str | None = None, *, code: str | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        if code:
            self.code = code


class TurnFailed(TurnError):
    """The turn failed."""

    code = "turn_failed"


class TurnCancelled(TurnError):
    """The turn was cancelled."""

    code = "turn_cancelled"


class StepLimitReached(TurnError):
    """The turn reached its step limit without an answer: raise max_steps."""

    code = "step_limit"


class ResultTimeout(TurnError, TimeoutError):
    """The turn has not ended within the timeout; it is still running."""

    code = "result_timeout"
    retryable = True


class StreamError(AgentError):
    """The stream of events cannot continue.

    >>> gap = StreamGap(cursor=7, oldest=90)  # events 8 to 89 are gone: take a snapshot
    >>> gap.oldest - gap.cursor
    83
    """

    code = "stream"


class StreamGap(StreamError):
    """It is not known what came after the cursor: take a snapshot and continue from its cursor."""

    code = "stream_gap"

    def __init__(
        self, message: str | None = None, *, cursor: int = 0, oldest: int | None = None, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.cursor = cursor
        self.oldest = oldest


class ProviderError(AgentError):
    """The model service failed.

    ``retry_after`` is in seconds, ``status`` is the HTTP status and ``request_id`` is the service's own id.

    >>> ProviderOverloaded(status=529, retry_after=3.0).retryable
    True
    """

    code = "provider"

    def __init__(
        self,
        message: str | None = None,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        request_id: str | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        if retryable is not None:
            self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.request_id = request_id


class ProviderRateLimited(ProviderError):
    """The model service is limiting the rate of requests: try again later."""

    code = "provider_rate_limited"
    retryable = True


class ProviderOverloaded(ProviderError):
    """The model service is overloaded or has an internal error: try again later."""

    code = "provider_overloaded"
    retryable = True


class ProviderTimedOut(ProviderError):
    """The model service did not answer in time."""

    code = "provider_timed_out"
    retryable = True


class ProviderFirstTokenTimedOut(ProviderTimedOut):
    """The model service did not begin its answer in time: try again, or raise Timeouts(first_token=…)."""

    code = "provider_first_token_timed_out"


class ProviderSilent(ProviderTimedOut):
    """The model service fell silent in its answer: try again, or raise Timeouts(between_tokens=…)."""

    code = "provider_silent"


class ProviderStepTimedOut(ProviderTimedOut):
    """The model's answer took too long: limit max_tokens, or raise Timeouts(step=…)."""

    code = "provider_step_timed_out"
    retryable = False


class ProviderUnreachable(ProviderError):
    """The model service cannot be reached: check its address and the network."""

    code = "provider_unreachable"
    retryable = True


class ProviderStreamBroken(ProviderError):
    """The model service's answer was cut off or could not be read."""

    code = "provider_stream_broken"
    retryable = True


class ProviderRejected(ProviderError):
    """The model service rejected the request: change it before you send it again."""

    code = "provider_rejected"


class ContextTooLong(ProviderRejected):
    """The messages are longer than the model's context: send less, or use a model with a larger one.

    ``tokens`` is the service's count for the request, and ``limit`` what the model accepts, if the service returned
    them. This error concerns the turn's own messages: the session's older messages are left out before it is raised.
    """

    code = "context_too_long"

    def __init__(
        self, message: str | None = None, *, tokens: int | None = None, limit: int | None = None, **more: Any
    ) -> None:
        super().__init__(message, **more)
        self.tokens = tokens
        self.limit = limit


class ProviderUnauthorized(ProviderError):
    """The model service does not accept the key: check the API key."""

    code = "provider_unauthorized"


class StepFailed(AgentError):
    """A durable step failed."""

    code = "step_failed"


class EventTimeout(AgentError, TimeoutError):
    """No event of this name came within the time."""

    code = "event_timeout"


class ToolError(AgentError):
    """A tool call failed."""

    code = "tool"


class ToolRaised(ToolError):
    """The tool raised an exception."""

    code = "tool_raised"


class ToolTimedOut(ToolError):
    """The tool did not return in time."""

    code = "tool_timed_out"


class ToolNotFound(ToolError):
    """The model called a tool that does not exist."""

    code = "tool_not_found"


class ToolArgumentsInvalid(ToolError):
    """The model's arguments do not match the tool's signature."""

    code = "tool_arguments_invalid"


class StoreError(AgentError):
    """Redis or a session store failed."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store cannot be reached."""

    code = "store_unavailable"
    retryable = True


class NotReplicated(StoreUnavailable):
    """No replica has confirmed the write in time: a failover may lose it. Repeat the call, with the same ``key``."""

    code = "not_replicated"


class StoreFull(StoreError):
    """The store is full; nothing was written."""

    code = "store_full"
    retryable = True


class StoreReadOnly(StoreError):
    """The store is read-only: check that the URL points to the primary."""

    code = "store_read_only"
    retryable = True


class StoreUnsupported(StoreError):
    """The store is too old, or its configuration can lose data."""

    code = "store_unsupported"


class CorruptRecord(StoreError):
    """A stored record cannot be decoded."""

    code = "corrupt_record"


class KeyMissing(CorruptRecord):
    """The record is encrypted with a key that this process does not have: add the key to ANTIPHON_ENCRYPTION_KEYS."""

    code = "key_missing"


class SealBroken(CorruptRecord):
    """Decryption failed: the record was modified, truncated or copied from elsewhere."""

    code = "seal_broken"


class NotEncrypted(SealBroken):
    """A value is not encrypted although this process has keys: it was forged, or written by a process without keys."""

    code = "not_encrypted"


def _codes(kind: type[AgentError]) -> set[str]:
    return {str(kind.code), *(code for one in kind.__subclasses__() for code in _codes(one))}


CODES = sorted(_codes(AgentError) | USER_MESSAGES.keys() | {"internal_error", "turn_function"})
"""All codes of turns, calls and gateways, except those of an application's own errors."""
