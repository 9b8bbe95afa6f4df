"""Converts failures of requests, and exceptions that both SDKs have, to errors of Antiphon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import httpx2

from antiphon.errors import (
    ProviderError,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderTimedOut,
    ProviderUnreachable,
)
from antiphon_worker.providers.errors import error_of_body, error_of_status
from antiphon_worker.providers.secrets import without_keys

RawResponse: TypeAlias = httpx2.Response

SHOULD_RETRY = "x-should-retry"
OURS = "antiphon_should_retry"
"""An extension of a response: this process set the header, not the service."""
_LONGEST_REASON = 300
TransportErrors = (
    httpx2.HTTPError,
    httpx2.InvalidURL,
    httpx2.StreamError,
    OSError,
    EOFError,
)


def headers_of_error(error: Exception) -> Mapping[str, str]:
    """Return the headers of the response of an SDK's exception, or none."""
    response: RawResponse | None = getattr(error, "response", None)
    return {} if response is None else headers_of(response)


def headers_of(response: RawResponse) -> Mapping[str, str]:
    """Return the headers of a response as the service sent them."""
    headers = dict(response.headers)
    if response.extensions.get(OURS):
        del headers[SHOULD_RETRY]
    return headers


def map_sdk_error(sdk: Any, provider: str, error: Any) -> ProviderError | None:
    """Return the error for an exception class that both SDKs have, because one generator makes them, or None."""
    if isinstance(error, sdk.APIStatusError):
        return error_of_status(
            provider, error.status_code, error.body, headers_of(error.response), error.request_id
        )
    if isinstance(error, sdk.APIConnectionError):
        # An SDK may convert all errors of sending to this class, including our own refusals.
        if isinstance(error.__cause__, ProviderError):
            return error.__cause__
        return map_transport_error(provider, error)
    if isinstance(error, sdk.APIResponseValidationError):
        return error_of_status(provider, error.status_code, error.body, headers_of(error.response))
    if isinstance(error, sdk.APIError):
        return error_of_body(provider, error.body or error.message)
    return None


def map_transport_error(provider: str, error: BaseException, *, begun: bool = False) -> ProviderError:
    """Return the error for a failed connection; ``begun`` means that a part of the answer had arrived."""
    causes = list(_causes(error))
    if any(isinstance(cause, httpx2.InvalidURL | httpx2.UnsupportedProtocol) for cause in causes):
        return ProviderRejected(
            f"The base URL of {provider} is not valid: write http:// or https://, a host, and a path if the service "
            "has one. Correct base_url."
        )
    if any(isinstance(cause, ValueError | TypeError) and not isinstance(cause, OSError) for cause in causes):
        return ProviderRejected(
            f"The request to {provider} cannot be sent: {_said(causes)}. Correct key and headers."
        )
    if any(isinstance(cause, httpx2.TimeoutException | TimeoutError) for cause in causes):
        return ProviderTimedOut(f"{provider} sent nothing before the timeout. Try again later.")
    if begun:
        return ProviderStreamBroken(f"The answer of {provider} was cut off: {_said(causes)}.")
    return ProviderUnreachable(
        f"No connection to {provider}: {_said(causes)}. Check base_url, the network and the proxy."
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return causes


def _said(causes: list[BaseException]) -> str:
    last = causes[-1]
    return without_keys(" ".join((str(last) or type(last).__name__).split())[:_LONGEST_REASON]).rstrip(".")
