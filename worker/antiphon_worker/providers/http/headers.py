"""Checks which headers a request may contain, and which ones only the transport sets.

The submitter of a turn is not the operator of the worker. Headers of a turn are sent with the worker's key, over
connections that it shares between turns. Therefore they must be in a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from antiphon.errors import ProviderRejected, SettingsError
from antiphon.input.parameters import is_header_name, is_transport_header

ALLOWED = (
    "anthropic-beta", "anthropic-version", "openai-beta", "idempotency-key",
    "traceparent", "tracestate", "baggage", "b3", "x-b3-*", "x-datadog-*", "x-cloud-trace-context", "x-amzn-trace-id",
    "x-trace", "x-trace-id", "x-request-id", "x-client-request-id", "x-correlation-id", "x-session-id",
    "http-referer", "x-title",
)  # fmt: skip
"""Headers that ``extra_headers`` may bring to any provider; ``*`` at the end stands for any ending."""


def check_allowed(provider: str, headers: Mapping[str, str], more: Sequence[str]) -> None:
    """Raise ``ProviderRejected`` for a header that is neither in the list nor in the provider's ``allowed_headers``."""
    for name in headers:
        if not _matches(name.lower(), (*ALLOWED, *more)):
            raise ProviderRejected(
                f"extra_headers contains {name!r}, which {provider} does not allow: create the provider with "
                f"allowed_headers=[{name!r}], or set the header for all requests with headers={{…}}."
            )


def check_own_headers(headers: Mapping[str, str]) -> None:
    """Raise ``SettingsError`` for headers of a provider that would change the framing or routing of its requests."""
    for name in headers:
        if not is_header_name(name):
            raise SettingsError(f"headers= contains {name!r}, which is not a valid header name.")
        if is_transport_header(name):
            raise SettingsError(
                f"headers= contains {name!r}, which only the transport can set. Leave it out."
            )


def framed(host: bytes, headers: Iterable[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
    """Return the headers to send. The transport sets host, length and connection, whatever was given.

    Raises ``ValueError`` for a header that would not stay on its line.
    """
    lines = [(b"Host", host)]
    for name, value in headers:
        if _LINE_END.search(value):
            raise ValueError(
                f"the value of the header {name[:80]!r} contains a line break or a null character"
            )
        if _is_sent(name):
            lines.append((name, value))
    return [*lines, (b"Content-Length", b"%d" % size)]


_LINE_END = re.compile(rb"[\r\n\0]")


@lru_cache(maxsize=1024)
def _is_sent(name: bytes) -> bool:
    """Return True if the transport sends this header as it was given. Raises ``ValueError`` for an invalid name."""
    text = name.decode("latin-1")
    if not is_header_name(text):
        raise ValueError(f"{text[:80]!r} is not a valid name of a header")
    return not is_transport_header(text) or text.lower() in _SAYS_WHAT_IT_HOLDS


# What the SDKs write about the body and the answer; nobody else gets as far as the transport.
_SAYS_WHAT_IT_HOLDS = frozenset({"accept", "accept-encoding", "content-type"})


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in map(str.lower, patterns)
    )
