"""Problems: why a request was refused, as ``application/problem+json`` (RFC 9457) with the codes of our errors."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from antiphon.errors import (
    AgentError,
    AlreadyDecided,
    ClientClosed,
    KeyReused,
    LimitReached,
    NotAllowed,
    NotFound,
    NotSuspended,
    SessionBusy,
    SessionChanged,
    SessionExists,
    StoreError,
    StreamGap,
    TurnError,
    UsageError,
    WrongTenant,
    user_message,
)
from antiphon.telemetry import log_fault

log = logging.getLogger("antiphon.gateway")

# The first class that matches decides. ``LimitReached`` and ``StoreError`` are handled before these.
STATUSES: list[tuple[type[AgentError], int]] = [
    (WrongTenant, 403), (NotAllowed, 403), (NotFound, 404), (SessionBusy, 409),
    (SessionChanged, 409), (SessionExists, 409), (KeyReused, 409), (AlreadyDecided, 409), (NotSuspended, 409),
    (StreamGap, 410), (ClientClosed, 503), (UsageError, 400), (TurnError, 409),
]  # fmt: skip
TOO_MANY = {"waiting_turns", "tenant_turns", "tenant_schedules", "sessions", "delayed_turns"}
STORE_RETRY_SECONDS = 1.0


class Problem(Struct, omit_defaults=True, kw_only=True):
    """Why a request was refused.

    ``code`` is stable; ``detail`` explains what to do, and ``user_message`` is for end users. ``retry_after`` is
    in seconds. ``cursor`` and ``oldest`` belong to the code ``stream_gap``: events between them are no longer kept.
    """

    title: str
    status: int
    code: str
    detail: str = ""
    user_message: str = ""
    retry_after: float | None = None
    session_id: str | None = None
    turn_id: str | None = None
    limit: str | None = None
    cursor: int | None = None
    oldest: int | None = None

    def __post_init__(self) -> None:
        self.user_message = self.user_message or user_message(self.code)


class Refused(Exception):
    """The gateway refuses a request, with a status, a code and a message that explains what to do.

    ``param`` is the field of the body that is wrong.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retry_after: float | None = None,
        limit: str | None = None,
        headers: dict[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.param = param
        self.status, self.code, self.detail = status, code, detail
        self.retry_after, self.limit, self.headers = retry_after, limit, headers or {}


class Draining(Refused):
    """This process is stopping: the work that the request waits for continues, and another gateway can return it."""

    def __init__(self, detail: str = "", *, headers: dict[str, str] | None = None) -> None:
        detail = detail or "This gateway is draining: send the same request again."
        super().__init__(503, "draining", detail, retry_after=1, headers=headers)


def problem_of(error: Exception) -> Problem:
    """Return the problem for an error. Details that only the server may know are logged instead."""
    if isinstance(error, Refused):
        if error.status == 500:
            log.warning("A request failed with %s.", error.code, extra={"action": "request_failed"})
        return Problem(
            title=_title(error.status), status=error.status, code=error.code, detail=error.detail,
            retry_after=error.retry_after, limit=error.limit,
        )  # fmt: skip
    if not isinstance(error, AgentError):
        log_fault(log, error, "A request failed", action="request_failed")
        return Problem(
            title=_title(500), status=500, code="internal", detail="The gateway failed: see its log."
        )
    status = _status(error)
    detail = error.message
    if status >= 500 and not isinstance(error, ClientClosed):
        action = "outage" if status == 503 else "request_failed"
        log.warning("A request failed with %s: %s", error.code, error, extra={"action": action})
        detail = (type(error).__doc__ or "").partition("\n")[0]
    return Problem(
        title=_title(status), status=status, code=str(error.code), detail=detail,
        retry_after=_retry_after(error, status), session_id=error.session_id, turn_id=error.turn_id,
        limit=error.limit or None if isinstance(error, LimitReached) else None,
        cursor=error.cursor if isinstance(error, StreamGap) else None,
        oldest=error.oldest if isinstance(error, StreamGap) else None,
    )  # fmt: skip


def problem_response(error: Exception) -> Response:
    """Return the error response, with ``Retry-After`` if a retry may help."""
    problem = problem_of(error)
    headers = retry_header(error, problem)
    return Response(
        msgspec.json.encode(problem), problem.status, headers, media_type="application/problem+json"
    )


def retry_header(error: Exception, problem: Problem) -> dict[str, str]:
    """Return the headers that go with an error."""
    headers = dict(error.headers) if isinstance(error, Refused) else {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(problem.retry_after)))
    return headers


def _status(error: AgentError) -> int:
    if isinstance(error, LimitReached):
        return 429 if error.limit in TOO_MANY else 413 if error.limit.endswith("_bytes") else 400
    if isinstance(error, StoreError):
        return 503 if error.retryable else 500
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def _retry_after(error: AgentError, status: int) -> float | None:
    known: Any = getattr(error, "retry_after", None)
    return known if known is not None else STORE_RETRY_SECONDS if status in (429, 503) else None


def _title(status: int) -> str:
    return HTTPStatus(status).phrase
