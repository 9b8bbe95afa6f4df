"""Checks ``extra_headers``, ``extra_query`` and ``extra_body`` of a request to a model service.

The submitter of a turn chooses these values. The worker sends them with its own API key, over connections that it
shares between turns. Therefore they must not change the framing or the host of a request, or contain a secret. The
client checks them when a turn is submitted. The worker checks them again, because turns can come from other clients.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["is_credential", "is_header_name", "is_transport_header", "misplaced"]

_TRANSPORT_HEADERS = frozenset((
    "accept", "connection", "expect", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "via",
))  # fmt: skip
_TRANSPORT_KINDS = ("accept-", "content-", "proxy-")
"""Headers that only the transport may set: the length, end, destination and type of a request."""

_CREDENTIAL_WORDS = frozenset((
    "apikey", "auth", "authenticate", "authentication", "authorization", "cookie", "cookie2", "credential",
    "credentials", "key", "passwd", "password", "secret", "signature", "token",
))  # fmt: skip
_NO_SECRETS = ("idempotency-key",)
_NAME_SIGNS = string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~"

_WRITTEN = {
    "model": "model=…", "messages": "the turn's input", "input": "the turn's input",
    "system": "Agent(system=…)", "instructions": "Agent(system=…)",
    "tools": "tools=…", "stream": "session.stream(…)", "stream_options": "stream_options=…",
}  # fmt: skip
"""Fields of a request that the provider sets, and what to use instead."""
_NEVER_PARAMETERS = ("messages", "input", "system", "instructions", "stream")


def misplaced(params: Mapping[str, Any]) -> str | None:
    """Return a sentence that says why these parameters cannot be sent, or None if they can."""
    if not params:
        return None
    return (
        _wrong_shape(params)
        or _wrong_headers(params.get("extra_headers") or {})
        or _wrong_query(params.get("extra_query") or {})
        or _wrong_body(params.get("extra_body") or {})
        or _wrong_parameter(params)
    )


def is_transport_header(name: str) -> bool:
    """Return True if only the transport may set this header. ``_`` counts as ``-``, as on some servers."""
    name = _plain(name)
    return name in _TRANSPORT_HEADERS or name.startswith(_TRANSPORT_KINDS)


def is_credential(name: str) -> bool:
    """Return True if the name of a header or a query field is that of a secret."""
    name = _plain(name)
    return name not in _NO_SECRETS and not _CREDENTIAL_WORDS.isdisjoint(name.split("-"))


def is_header_name(name: object) -> bool:
    """Return True if this is a valid name of an HTTP header: ASCII letters, digits and a few signs."""
    return isinstance(name, str) and bool(name) and not name.strip(_NAME_SIGNS)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _wrong_shape(params: Mapping[str, Any]) -> str | None:
    for name in ("extra_headers", "extra_query", "extra_body"):
        if params.get(name) is not None and not isinstance(params[name], Mapping):
            return f"{name}= must be a dictionary, not {type(params[name]).__name__}."
    return None


def _wrong_headers(headers: Mapping[Any, Any]) -> str | None:
    for name, value in headers.items():
        if not is_header_name(name):
            return f"extra_headers contains {str(name)[:80]!r}, which is not a valid header name."
        if is_transport_header(name):
            return f"extra_headers contains {name!r}, which only the transport can set. Leave it out."
        if is_credential(name):
            return (
                f"extra_headers contains {name!r}, which looks like a secret and would be saved with the turn. Set "
                "keys in the environment of the process that runs the turn, or in a provider in App(providers={…})."
            )
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            return f"The value of {name!r} in extra_headers must be printable ASCII text."
    return None


def _wrong_query(query: Mapping[Any, Any]) -> str | None:
    for name, value in query.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            return f"extra_query contains {str(name)[:80]!r}: names must be text, values text or numbers."
        if is_credential(name):
            return (
                f"extra_query contains {name[:80]!r}, which looks like a secret and would be saved with the turn. Set "
                "keys in the environment of the process that runs the turn, or in a provider in App(providers={…})."
            )
    return None


def _wrong_body(body: Mapping[Any, Any]) -> str | None:
    for name in body:
        if name in _WRITTEN:
            return f"extra_body contains {name!r}, which the provider sets: use {_WRITTEN[cast(str, name)]}."
    return None


def _wrong_parameter(params: Mapping[str, Any]) -> str | None:
    for name in _NEVER_PARAMETERS:
        if params.get(name) is not None:
            return f"{name}= is not a model parameter: use {_WRITTEN[name]}."
    return None
