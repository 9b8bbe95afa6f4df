"""Converts failures of model services to errors of Antiphon.

This module uses no outside library: its input is a status, headers and a decoded body. ``retryable`` follows the
service's ``x-should-retry`` header if there is one. Messages of services are shortened, and texts that look like keys
are removed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

from antiphon.errors import (
    ContextTooLong,
    ProviderError,
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimedOut,
    ProviderUnauthorized,
)
from antiphon_worker.providers.secrets import without_keys

_LONGEST_MESSAGE = 600
_LONGEST_KIND = 100
_MOST_READ = 16 * _LONGEST_MESSAGE  # of a service's message, before it is cleaned
_BY_STATUS: dict[int, type[ProviderError]] = {
    401: ProviderUnauthorized,
    403: ProviderUnauthorized,
    408: ProviderTimedOut,
    409: ProviderOverloaded,
    425: ProviderOverloaded,
    429: ProviderRateLimited,
    499: ProviderOverloaded,
    501: ProviderRejected,
    504: ProviderTimedOut,
    522: ProviderTimedOut,
    524: ProviderTimedOut,
}
# Parts of the names that services use for kinds of errors. The first match decides.
_BY_WORD: tuple[tuple[str, type[ProviderError]], ...] = (
    ("insufficient_quota", ProviderRateLimited),
    ("rate_limit", ProviderRateLimited),
    ("too_many_requests", ProviderRateLimited),
    ("resource_exhausted", ProviderRateLimited),
    ("overloaded", ProviderOverloaded),
    ("unavailable", ProviderOverloaded),
    ("timeout", ProviderTimedOut),
    ("deadline", ProviderTimedOut),
    ("authentication", ProviderUnauthorized),
    ("unauthorized", ProviderUnauthorized),
    ("permission", ProviderUnauthorized),
    ("api_key", ProviderUnauthorized),
    ("billing", ProviderRejected),
    ("not_found", ProviderRejected),
    ("bad_request", ProviderRejected),
    ("badrequest", ProviderRejected),
    ("invalid", ProviderRejected),
    ("too_large", ProviderRejected),
    ("too_small", ProviderRejected),
    ("unsupported", ProviderRejected),
    ("context_length", ProviderRejected),
    ("content_filter", ProviderRejected),
    ("policy", ProviderRejected),
    ("image", ProviderRejected),
    ("residency", ProviderRejected),
)
_ADVICE: dict[type[ProviderError], str] = {
    ProviderUnauthorized: "Check the key in the environment of the process that runs the turns, and its permissions.",
    ProviderRateLimited: "Wait, or ask the service for a higher limit.",
    ProviderOverloaded: "Try again later.",
    ProviderTimedOut: "Try again, or raise the provider's timeout.",
    ProviderRejected: "Change the request: model, parameters or messages.",
    ContextTooLong: "Send less, or use a model with a larger context.",
}
_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|max(imum)? (context|prompt|model) length|(prompt|input) is too long"
    r"|(input|prompt) token count|too many (input |prompt )?tokens|exceeded model token limit|tokens_limit_reached"
    r"|prompt exceeds max length|range of input length|`inputs` tokens|request exceeds the maximum size",
    re.IGNORECASE,
)
_TOO_LONG_ANSWER = re.compile(r"max_(completion_|output_)?tokens\W.{0,40}too large", re.IGNORECASE)
# A rate limit that the request alone exceeds: waiting does not help.
_NEVER_FITS = re.compile(r"request too large.{0,200}?limit:? ([\d,]+), requested:? ([\d,]+)", re.IGNORECASE)
# "199,000 + 8,192 > 200,000": the request, what it reserves for the answer, and the limit.
_COMPARED = re.compile(r"([\d,]{3,12})(?: tokens)?(?: \+ ([\d,]{1,12}))? > ([\d,]{3,12})")
_MOST = re.compile(
    r"(?:\b(?:max|maximum|limit|context (?:length|window|size)|cannot exceed)\b|must be <=|should be \[1)"
    r"[^.\d]{0,60}?(?<!by )([\d,]{3,12})|([\d,]{3,12}) max",
    re.IGNORECASE,
)
_FOR_ANSWER = re.compile(
    r"([\d,]{1,12}) (?:(?:tokens )?(?:in|for) the completion|output tokens|`max_new_tokens`)"
)
_FOR_INPUT = re.compile(
    r"([\d,]{1,12}) (?:(?:input|`inputs`) tokens|(?:tokens )?(?:in|from) (?:the|your) (?:input )?(?:messages|prompt))"
)
_NUMBERS = re.compile(r"\d[\d,]{2,11}")
_NO_QUOTA = "The account has no quota left: check its plan and billing."


class Failure:
    """A failure as a service reported it: its name for the error, a message, and the status and request id if known."""

    __slots__ = ("kind", "message", "request_id", "status")

    def __init__(self, kind: str, message: str, status: int | None, request_id: str | None = None) -> None:
        self.kind = kind
        self.message = message
        self.status = status
        self.request_id = request_id

    @property
    def summary(self) -> str:
        """The failure in one sentence, without keys."""
        said = str(self.status or "an error") + (f" ({self.kind})" if self.kind else "")
        message = without_keys(" ".join(self.message[:_MOST_READ].split()))[:_LONGEST_MESSAGE]
        if not message:
            return f"{said}."
        return f"{said}: {message}" + ("" if message[-1] in ".!?" else ".")

    @property
    def is_about_length(self) -> bool:
        """Whether the messages are longer than the model's context, or than the service accepts in one request."""
        text = f"{self.kind} {self.message[:_MOST_READ]}"
        if self.status == 413:
            return True
        return _TOO_LONG.search(text) is not None and _TOO_LONG_ANSWER.search(text) is None

    @property
    def never_fits(self) -> bool:
        """Whether the request alone exceeds a rate limit."""
        found = _NEVER_FITS.search(self.message[:_MOST_READ])
        return found is not None and _number(found[2]) > _number(found[1])

    @classmethod
    def read(cls, body: object) -> Failure:
        """Read the error from the body that a service sent."""
        outer = cast("Mapping[str, object]", body) if isinstance(body, Mapping) else {}
        request_id = outer.get("request_id")
        error = outer.get("error") or outer.get("detail") or outer.get("errors") or body
        if isinstance(error, list) and error:
            error = cast("list[object]", error)[0]
        if not isinstance(error, Mapping):
            return cls("", _text(error), None)
        fields = cast("Mapping[str, object]", error)
        words = [fields.get(name) for name in ("type", "code", "status")]
        kind = " ".join(word for word in words if isinstance(word, str) and word != "error")[:_LONGEST_KIND]
        message = fields.get("message") or fields.get("msg") or fields.get("error_description") or fields
        request_id = request_id if isinstance(request_id, str) else None
        return cls(kind, _text(message), _status(fields.get("code"), fields.get("status")), request_id)


def error_of_status(
    provider: str,
    status: int,
    body: object,
    headers: Mapping[str, str],
    request_id: str | None = None,
) -> ProviderError:
    """Return the error for an answer with this HTTP status."""
    failure = Failure.read(body)
    failure.status = status
    return _error(provider, failure, _class_of_status(status), headers, request_id)


def error_of_body(
    provider: str,
    body: object,
    request_id: str | None = None,
    default: type[ProviderError] = ProviderOverloaded,
) -> ProviderError:
    """Return the error for a failure that a service sent inside a streamed answer."""
    failure = Failure.read(body)
    kind = "_".join(failure.kind.lower().replace("-", " ").split())
    found = next((error for word, error in _BY_WORD if word in kind), None)
    if found is None and failure.status is not None:
        found = _class_of_status(failure.status)
    if found is None and failure.is_about_length:
        found = ProviderRejected
    return _error(provider, failure, found or default, {}, request_id)


def error_of_exception(provider: str, exc: BaseException) -> ProviderError | None:
    """Return the error for an exception of another library's model client, or for one of its causes.

    Such exceptions have a ``status_code`` or a known class name. Returns None for all others.
    """
    found: BaseException | None = exc
    while found is not None:
        status = _status(getattr(found, "status_code", None))
        if status is not None:
            answer = getattr(found, "response", None)
            headers = {
                str(name).lower(): str(value) for name, value in getattr(answer, "headers", {}).items()
            }
            request_id = getattr(found, "request_id", None)
            return error_of_status(provider, status, getattr(found, "body", None), headers, request_id)
        names = {one.__name__ for one in type(found).__mro__}
        if "APITimeoutError" in names:
            return ProviderTimedOut(f"{provider} did not answer in time. {_ADVICE[ProviderTimedOut]}")
        if "APIConnectionError" in names:
            return ProviderOverloaded(f"{provider} cannot be reached. {_ADVICE[ProviderOverloaded]}")
        found = found.__cause__
    return None


def _class_of_status(status: int) -> type[ProviderError]:
    return _BY_STATUS.get(status) or (ProviderOverloaded if status >= 500 else ProviderRejected)


def _error(
    provider: str,
    failure: Failure,
    error: type[ProviderError],
    headers: Mapping[str, str],
    request_id: str | None,
) -> ProviderError:
    advice = _ADVICE.get(error, "Try again later.")
    request_id = request_id or failure.request_id
    retryable = {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())
    lengths: dict[str, int | None] = {}
    if (error is ProviderRejected and failure.is_about_length) or failure.never_fits:
        tokens, limit = _lengths(failure.message)
        error, lengths = ContextTooLong, {"tokens": tokens, "limit": limit}
        advice, retryable = _ADVICE[error], False
    if error is ProviderRateLimited and "insufficient_quota" in failure.kind:
        advice, retryable = _NO_QUOTA, False
    return error(
        f"{provider} answered {failure.summary}{f' Request id: {request_id}.' if request_id else ''} {advice}",
        retryable=retryable,
        retry_after=retry_after(headers),
        status=failure.status,
        request_id=request_id,
        **lengths,
    )


def _lengths(message: str) -> tuple[int | None, int | None]:
    """Return how many input tokens a service counted, and how many it accepts, if its message contains them.

    >>> _lengths("prompt is too long: 213462 tokens > 200000 maximum")
    (213462, 200000)
    >>> _lengths("The maximum is 8,192 tokens. You requested 9,500 (7,500 in the messages, 2,000 in the completion).")
    (7500, 6192)
    """
    message = message[:_MOST_READ]
    if compared := _COMPARED.search(message):
        counted, answer, limit = (_number(text) for text in compared.groups())
        return counted, max(limit - answer, 0) or None
    most = _MOST.search(message)
    if most is None:
        return None, None
    limit = _number(most[1] or most[2])
    reserved = _FOR_ANSWER.search(message)
    answer = _number(reserved[1]) if reserved else 0
    if asked := _FOR_INPUT.search(message):
        return _number(asked[1]), max(limit - answer, 0) or None
    counted = max(map(_number, _NUMBERS.findall(message)), default=0)
    return counted - answer if counted > limit else None, max(limit - answer, 0) or None


def _number(text: str | None) -> int:
    return int((text or "").replace(",", "") or 0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the service asks to wait: 0 only if no other header has a longer time."""
    found = None
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _seconds(value, unit)
        if seconds is not None and 0 <= seconds < 86_400 and not found:
            found = seconds
    return found


def _seconds(value: str, unit: float) -> float | None:
    try:
        return float(value) / unit
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, OverflowError):
            return None


def _status(*values: object) -> int | None:
    for value in values:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
