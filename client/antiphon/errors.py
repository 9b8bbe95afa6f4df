"""Everything this library raises on purpose.

    AgentError                      the root; carries ``code``, ``session_id``, ``turn_id`` where known
    ├─ UsageError                   the caller's mistake, never retried
    │  ├─ SettingsError             a setting is missing or wrong; names the variable and the fix
    │  ├─ MissingPackage            an optional package is not installed
    │  ├─ InvalidId, InvalidMessage what cannot be an id; a message that is malformed or too large
    │  ├─ InvalidTool               a tool whose signature cannot be offered to a model
    │  ├─ InvalidOutput             structured output that does not fit its schema; carries ``raw``
    │  ├─ UnknownAgent, UnknownProvider, UnknownTool
    │  ├─ NotAllowed                the worker's App does not take this from a turn
    │  ├─ LimitReached              something is larger or longer than it may be; ``limit`` names the limit
    │  ├─ KeyReused                 the same idempotency key came with another request
    │  ├─ SessionExists             the session already has a history
    │  └─ ClientClosed
    ├─ NotFound                     SessionNotFound, TurnNotFound
    ├─ SessionBusy                  the session runs a turn, or its inbox is full
    ├─ TurnError                    TurnFailed, TurnCancelled, StepLimitReached, ResultTimeout (also a TimeoutError)
    ├─ StreamError                  StreamGap: events after the cursor are no longer kept
    ├─ ProviderError                what a model service did; ``retryable``, ``retry_after``, ``status``, ``request_id``
    │  └─ ProviderRateLimited, ProviderOverloaded, ProviderTimedOut, ProviderUnreachable,
    │     ProviderRejected, ProviderUnauthorized, ProviderStreamBroken
    ├─ ToolError                    told to the model: ToolRaised, ToolTimedOut, ToolNotFound, ToolArgumentsInvalid
    └─ StoreError                   what Redis or a session store did; ``retryable``: StoreUnavailable, StoreFull,
                                    StoreReadOnly, StoreUnsupported, CorruptRecord

``code`` is a stable word that travels; the classes are for Python. Without a message an error says its docstring.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

__all__ = [
    "AgentError", "ClientClosed", "CorruptRecord", "InvalidId", "InvalidMessage", "InvalidOutput",
    "InvalidTool", "KeyReused", "LimitReached", "MissingPackage", "NotAllowed", "NotFound", "ProviderError",
    "ProviderOverloaded",
    "ProviderRateLimited", "ProviderRejected", "ProviderStreamBroken", "ProviderTimedOut",
    "ProviderUnauthorized", "ProviderUnreachable", "ResultTimeout", "SessionBusy", "SessionExists",
    "SessionNotFound", "SettingsError", "StepLimitReached", "StoreError", "StoreFull", "StoreReadOnly",
    "StoreUnavailable", "StoreUnsupported", "StreamError", "StreamGap", "ToolArgumentsInvalid", "ToolError",
    "ToolNotFound", "ToolRaised", "ToolTimedOut", "TurnCancelled", "TurnError", "TurnFailed",
    "TurnNotFound", "UnknownAgent", "UnknownProvider", "UnknownTool", "UsageError",
]  # fmt: skip

_LIMIT = re.compile(r"is over the limit (\w+), which is |\(limit (\w+)\)")


class AgentError(Exception):
    """Something went wrong in a session.

    >>> from antiphon import Agent
    >>> from antiphon.testing import script
    >>> session = Agent(provider=script(ProviderRateLimited(retry_after=2.0)), model="any").session()
    >>> try:
    ...     session.run("Hello")
    ... except AgentError as error:
    ...     print(error.code, error.retryable, error)
    provider_rate_limited True The model service asks to slow down.
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
        """What went wrong, in one sentence with the way out.

        >>> ClientClosed().message
        'The client is closed: open a new one.'
        """
        return str(self.args[0])


class UsageError(AgentError):
    """The call cannot be carried out as it stands."""

    code = "usage"


class SettingsError(UsageError):
    """A setting is missing or wrong."""

    code = "settings"


class MissingPackage(UsageError):
    """An optional package is not installed: pip install 'antiphon[worker]'."""

    code = "missing_package"


class InvalidId(UsageError):
    """An id is empty, too long or holds characters that it may not."""

    code = "invalid_id"


class InvalidMessage(UsageError):
    """A message is malformed or too large."""

    code = "invalid_message"


class InvalidTool(UsageError):
    """A tool cannot be offered to a model."""

    code = "invalid_tool"


class InvalidOutput(UsageError):
    """The model's structured output does not fit the schema."""

    code = "invalid_output"

    def __init__(self, message: str | None = None, *, raw: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.raw = raw


class UnknownAgent(UsageError):
    """No agent of this name is registered in the worker's App."""

    code = "unknown_agent"


class UnknownProvider(UsageError):
    """No provider of this name is registered."""

    code = "unknown_provider"


class UnknownTool(UsageError):
    """No tool of this name is registered in the worker's App."""

    code = "unknown_tool"


class NotAllowed(UsageError):
    """The worker's App does not allow this to come with a turn."""

    code = "not_allowed"


class LimitReached(UsageError):
    """Something is larger or longer than it may be; ``limit`` is the name of the limit.

    The message holds the name too: code and message are what travels from a worker.

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


class KeyReused(UsageError):
    """This idempotency key was already used in this session with another request."""

    code = "key_reused"


class SessionExists(UsageError):
    """The session already has a history."""

    code = "session_exists"


class ClientClosed(UsageError):
    """The client is closed: open a new one."""

    code = "client_closed"


class NotFound(AgentError):
    """There is nothing under this id."""

    code = "not_found"


class SessionNotFound(NotFound):
    """There is no session with this id, or it has expired."""

    code = "session_not_found"


class TurnNotFound(NotFound):
    """There is no turn with this id, or it has expired."""

    code = "turn_not_found"


class SessionBusy(AgentError):
    """The session runs a turn or its inbox is full: try again later.

    >>> SessionBusy(retry_after=2.0).retry_after
    2.0
    """

    code = "session_busy"
    retryable = True

    def __init__(self, message: str | None = None, *, retry_after: float = 1.0, **where: Any) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after


class TurnError(AgentError):
    """A turn did not end as asked.

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
    """The turn used all its steps without an answer."""

    code = "step_limit"


class ResultTimeout(TurnError, TimeoutError):
    """The turn has not ended yet; it goes on."""

    code = "result_timeout"
    retryable = True


class StreamError(AgentError):
    """A stream of events cannot go on.

    >>> gap = StreamGap(cursor=7, oldest=90)  # 8 to 89 are lost: take a snapshot
    >>> gap.oldest - gap.cursor
    83
    """

    code = "stream"


class StreamGap(StreamError):
    """Events after the cursor are no longer kept: take a snapshot and go on from its cursor."""

    code = "stream_gap"

    def __init__(
        self, message: str | None = None, *, cursor: int = 0, oldest: int | None = None, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.cursor = cursor
        self.oldest = oldest


class ProviderError(AgentError):
    """The model service failed.

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
    """The model service asks to slow down."""

    code = "provider_rate_limited"
    retryable = True


class ProviderOverloaded(ProviderError):
    """The model service is overloaded or broken on its side."""

    code = "provider_overloaded"
    retryable = True


class ProviderTimedOut(ProviderError):
    """The model service did not answer in time."""

    code = "provider_timed_out"
    retryable = True


class ProviderUnreachable(ProviderError):
    """No connection to the model service."""

    code = "provider_unreachable"
    retryable = True


class ProviderStreamBroken(ProviderError):
    """The model service's answer broke off or could not be read."""

    code = "provider_stream_broken"
    retryable = True


class ProviderRejected(ProviderError):
    """The model service refused the request: it must be changed before it is sent again."""

    code = "provider_rejected"


class ProviderUnauthorized(ProviderError):
    """The model service does not accept the key."""

    code = "provider_unauthorized"


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
    """The model asked for a tool that does not exist."""

    code = "tool_not_found"


class ToolArgumentsInvalid(ToolError):
    """The model's arguments do not fit the tool's signature."""

    code = "tool_arguments_invalid"


class StoreError(AgentError):
    """Redis or a session store failed."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store cannot be reached."""

    code = "store_unavailable"
    retryable = True


class StoreFull(StoreError):
    """The store has no memory left; nothing was written."""

    code = "store_full"
    retryable = True


class StoreReadOnly(StoreError):
    """The store takes no writes (a replica?)."""

    code = "store_read_only"
    retryable = True


class StoreUnsupported(StoreError):
    """The store is too old or set up in a way that would lose data."""

    code = "store_unsupported"


class CorruptRecord(StoreError):
    """A stored record cannot be read."""

    code = "corrupt_record"
