"""Errors for A2A clients, in the form of JSON-RPC or of HTTP+JSON (AIP-193)."""

from __future__ import annotations

from typing import Any

import msgspec
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE, build_error_details
from a2a.utils.errors import (
    A2A_ERROR_MAPPING,
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.responses import Response

from antiphon.errors import NotFound, NotSuspended
from antiphon_gateway.problems import Problem, Refused, problem_of, retry_header

OUTSIDE = (403, 413, 429, 503)
"""Statuses that JSON-RPC responses also have as their HTTP status, for clients and load balancers."""
_WORDS = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 500: "INTERNAL",
}  # fmt: skip


class ErrorBody:
    """An error in the form of the protocol, whatever raised it."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.status, self.word, self.headers = 400, "INVALID_ARGUMENT", dict[str, str]()
        if isinstance(error, A2AError):
            self.message, self.details = error.message, build_error_details(error)
            self.code = JSON_RPC_ERROR_CODE_MAP.get(type(error), JSON_RPC_ERROR_CODE_MAP[InternalError])
            if known := A2A_ERROR_MAPPING.get(type(error)):
                self.status, self.word, _ = known
            return
        problem = problem_of(error)
        self.message, self.status = problem.detail or problem.title, problem.status
        self.word = _WORDS.get(problem.status, self.word)
        kind = _kind(error, problem.status)
        self.code, self.details = JSON_RPC_ERROR_CODE_MAP[kind], [_reason(problem, kind)]
        self.headers = retry_header(error, problem)

    def rpc(self, request_id: Any) -> dict[str, Any]:
        """Return the body of a JSON-RPC response."""
        error = {"code": self.code, "message": self.message, "data": self.details}
        return {"jsonrpc": "2.0", "id": request_id, "error": error}

    def rest(self) -> dict[str, Any]:
        """Return the body of an HTTP+JSON response."""
        error = {"code": self.status, "status": self.word, "message": self.message, "details": self.details}
        return {"error": error}


def rpc_error(error: Exception, request_id: Any = None) -> Response:
    """Return the JSON-RPC response for an error."""
    body = ErrorBody(error)
    outside = isinstance(error, Refused) or (body.status in OUTSIDE and not isinstance(error, A2AError))
    status = body.status if outside else 200
    return Response(
        msgspec.json.encode(body.rpc(request_id)), status, body.headers, media_type="application/json"
    )


def rest_error(error: Exception) -> Response:
    """Return the HTTP+JSON response for an error."""
    body = ErrorBody(error)
    return Response(
        msgspec.json.encode(body.rest()), body.status, body.headers, media_type="application/json"
    )


def _kind(error: Exception, status: int) -> type[A2AError]:
    if isinstance(error, NotFound):
        return TaskNotFoundError
    if isinstance(error, NotSuspended):
        return UnsupportedOperationError
    return InternalError if status == 429 or status >= 500 else InvalidParamsError


def _reason(problem: Problem, kind: type[A2AError]) -> dict[str, Any]:
    own = kind in (TaskNotFoundError, UnsupportedOperationError)
    return {
        "@type": ERROR_INFO_TYPE, "reason": A2A_ERROR_MAPPING[kind].reason if own else problem.code.upper(),
        "domain": A2A_DOMAIN, "metadata": {"code": problem.code},
    }  # fmt: skip
