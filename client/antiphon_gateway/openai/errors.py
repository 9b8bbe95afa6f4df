"""Errors in the format of OpenAI's clients."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from antiphon_gateway.problems import Problem, Refused, problem_of, retry_header

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found", 429: "too_many_requests"}
# The failures of a turn that the caller can do something about. All others are 500.
FAILURES = {
    "model_not_found": 404, "unknown_tool": 400, "not_allowed": 403, "provider_rejected": 400,
    "context_length_exceeded": 400,
    "provider_rate_limited": 429, "invalid_tool": 400, "usage": 400,
}  # fmt: skip
NO_MODEL = ("unknown_agent", "unknown_provider")
NO_RETRY = {"x-should-retry": "false"}
"""Keeps OpenAI's clients from retrying: the same request would run a second turn, with the same outcome."""


class RefusedField(Refused):
    """A field of a request is not supported here, or its value is not valid. ``param`` is its name."""

    def __init__(self, param: str, detail: str, *, status: int = 400, code: str = "") -> None:
        super().__init__(status, code or f"unsupported_{param}", detail, headers=NO_RETRY, param=param)


def refused(param: str, detail: str) -> RefusedField:
    """Return the error for an unsupported value of a field."""
    return RefusedField(param, detail)


def turn_failure(code: str, message: str, model: str) -> Refused:
    """Return the error for a turn that failed or was cancelled. ``model`` is the one that the request named."""
    code = "context_length_exceeded" if code == "context_too_long" else code
    if code in NO_MODEL:
        code = "model_not_found"
        named = f"The model {model[:100]!r} does not exist" if model else "The request names no model"
        message = f"{named}: GET /v1/models lists the available ones."
    return Refused(
        FAILURES.get(code, 500), code or "turn_failed", message or "The turn failed.", headers=NO_RETRY
    )


def openai_error(error: Exception) -> Response:
    """Return the error response, with the code of our error."""
    problem = problem_of(error)
    headers = retry_header(error, problem)
    body = msgspec.json.encode({"error": _told(error, problem)})
    return Response(body, problem.status, headers, media_type="application/json")


def error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error, for the reader of a stream."""
    problem = problem_of(error)
    return problem.status, _told(error, problem)


def _told(error: Exception, problem: Problem) -> dict[str, Any]:
    kind = TYPES.get(problem.status, "invalid_request" if problem.status < 500 else "server_error")
    return {
        "message": problem.detail or problem.title,
        "type": kind,
        "code": problem.code,
        "param": error.param if isinstance(error, Refused) else None,
    }
