"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from antiphon_gateway.problems import Problem, Refused, problem_of, retry_header

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found", 429: "too_many_requests"}
# What a turn failed with, where it is the caller who can do something about it. All else is 500.
FAILURES = {
    "model_not_found": 404, "unknown_tool": 400, "not_allowed": 403, "provider_rejected": 400,
    "context_length_exceeded": 400,
    "provider_rate_limited": 429, "invalid_tool": 400, "usage": 400,
}  # fmt: skip
NO_MODEL = ("unknown_agent", "unknown_provider")
NO_RETRY = {"x-should-retry": "false"}
"""Tells OpenAI's clients that the same request would run a second turn, and fare no better."""


class RefusedField(Refused):
    """A field of a request means nothing here, or something else than the caller thinks. ``param`` is its name."""

    def __init__(self, param: str, detail: str, *, status: int = 400, code: str = "") -> None:
        super().__init__(status, code or f"unsupported_{param}", detail, headers=NO_RETRY, param=param)


def refused(param: str, detail: str) -> RefusedField:
    """Return the error for an unsupported value of a field."""
    return RefusedField(param, detail)


def turn_failure(code: str, message: str, model: str) -> Refused:
    """Return the error for a turn that has failed or was cancelled. ``model`` is what the request named."""
    code = "context_length_exceeded" if code == "context_too_long" else code
    if code in NO_MODEL:
        code = "model_not_found"
        named = f"The model {model[:100]!r} does not exist" if model else "The request names no model"
        message = f"{named}: GET /v1/models lists the available ones."
    return Refused(
        FAILURES.get(code, 500), code or "turn_failed", message or "The turn failed.", headers=NO_RETRY
    )


def openai_error(error: Exception) -> Response:
    """Return the error response. Its code is that of ours."""
    problem = problem_of(error)
    headers = retry_header(error, problem)
    body = msgspec.json.encode({"error": _told(error, problem)})
    return Response(body, problem.status, headers, media_type="application/json")


def error_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an error, for a reader that gets it in a stream."""
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
