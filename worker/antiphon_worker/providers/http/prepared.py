"""Builds the requests of an SDK: the address and the headers once for all requests that share them.

The SDK builds both from its settings for each request, which takes longer than everything else it does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx2

MOST_KINDS = 64


@cache
def options_of(sdk: Any, method: str) -> Any:
    """Return options of a request to copy, because the SDK takes longer to create them."""
    return sdk._models.FinalRequestOptions.construct(method=method.lower(), url="")


def prepare_requests(client: Any) -> None:
    """Let an SDK's client build the address and the headers of its requests once for each kind."""
    client._build_request = _PreparedRequests(client)


class _PreparedRequests:
    """Replaces the SDK's method, and leaves requests of unknown kinds to it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._build = client._build_request
        self._kinds: dict[tuple[object, ...], httpx2.Request] = {}

    def __call__(self, options: Any, *, retries_taken: int = 0) -> httpx2.Request:
        kind = self._kind(options, retries_taken)
        if kind is None:
            return self._build(options, retries_taken=retries_taken)
        like = self._kinds.get(kind)
        if like is not None:
            return _with_body(like, options.content)
        request: httpx2.Request = self._build(options, retries_taken=retries_taken)
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = like = _with_body(request, b"")
        del like.headers["Content-Length"]
        return request

    def _kind(self, options: Any, retries_taken: int) -> tuple[object, ...] | None:
        """Return everything that the address and the headers depend on; None if they may depend on more."""
        if not isinstance(options.content, bytes) or not isinstance(options.timeout, httpx2.Timeout):
            return None
        if not isinstance(options.headers, dict) or options.params or options.files or options.extra_json:
            return None
        keys = getattr(self._client, "api_key", None), getattr(self._client, "auth_token", None)
        return (
            options.method,
            options.url,
            retries_taken,
            *keys,
            *options.headers.items(),
            *options.timeout.as_dict().values(),
        )


def _with_body(like: httpx2.Request, body: bytes) -> httpx2.Request:
    """Return the same request with another body, as a stream: httpx2 would search the headers for other bodies."""
    stream = httpx2.ByteStream(body)
    request = httpx2.Request(
        like.method, like.url, headers=like.headers, stream=stream, extensions=like.extensions
    )
    request.headers.encoding = like.headers.encoding  # else each request looks for it in all its headers
    request.headers["Content-Length"] = str(len(body))
    return request
