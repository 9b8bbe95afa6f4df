"""What one request to a model service may add: ``extra_headers``, ``extra_query`` and ``extra_body``.

Whoever submits a turn chooses these, and the worker sends them with its own key over connections that other turns use
too. So they never frame a request, never name a host and never carry a secret. The client says so at once; the worker
checks again, because a turn may have been written by another client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["is_credential", "is_header_name", "is_transport_header", "misplaced"]

_TRANSPORT_HEADERS = frozenset((
    "accept", "connection", "expect", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "via",
))  # fmt: skip
_TRANSPORT_KINDS = ("accept-", "content-", "proxy-")
"""What the transport alone says: how long a request is, where it ends, where it goes and what it holds."""

_CREDENTIAL_WORDS = frozenset((
    "apikey", "auth", "authenticate", "authentication", "authorization", "cookie", "cookie2", "credential",
    "credentials", "key", "passwd", "password", "secret", "signature", "token",
))  # fmt: skip
_NO_SECRETS = ("idempotency-key",)
_NAME_SIGNS = frozenset("!#$%&'*+-.^_`|~")

_WRITTEN = {
    "model": "model=…", "messages": "the turn's input", "input": "the turn's input",
    "system": "Agent(system=…)", "instructions": "Agent(system=…)",
    "tools": "tools=…", "stream": "session.stream(…)", "stream_options": "stream_options=…",
}  # fmt: skip
"""Fields of a request that the provider writes, and what says them instead."""
_NEVER_PARAMETERS = ("messages", "input", "system", "instructions", "stream")


def misplaced(params: Mapping[str, Any]) -> str | None:
    """Why a request with these parameters cannot be sent, in one sentence; None where it can."""
    return (
        _wrong_shape(params)
        or _wrong_headers(params.get("extra_headers") or {})
        or _wrong_query(params.get("extra_query") or {})
        or _wrong_body(params.get("extra_body") or {})
        or _wrong_parameter(params)
    )


def is_transport_header(name: str) -> bool:
    """Whether the transport alone says this header; ``_`` counts as ``-``, because some servers read it so."""
    name = _plain(name)
    return name in _TRANSPORT_HEADERS or name.startswith(_TRANSPORT_KINDS)


def is_credential(name: str) -> bool:
    """Whether a header or a field of a query has the name of a secret."""
    name = _plain(name)
    return name not in _NO_SECRETS and not _CREDENTIAL_WORDS.isdisjoint(name.split("-"))


def is_header_name(name: object) -> bool:
    """Whether HTTP knows this as a name: letters, digits and a few signs, none of them outside ASCII."""
    return (
        isinstance(name, str)
        and bool(name)
        and name.isascii()
        and all(sign.isalnum() or sign in _NAME_SIGNS for sign in name)
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _wrong_shape(params: Mapping[str, Any]) -> str | None:
    for name in ("extra_headers", "extra_query", "extra_body"):
        if params.get(name) is not None and not isinstance(params[name], Mapping):
            return f"{name}= is a dictionary, not {type(params[name]).__name__}."
    return None


def _wrong_headers(headers: Mapping[Any, Any]) -> str | None:
    for name, value in headers.items():
        if not is_header_name(name):
            return f"extra_headers has {str(name)[:80]!r}, which is not the name of a header."
        if is_transport_header(name):
            return f"extra_headers has {name!r}: the transport alone sends it. Leave it out."
        if is_credential(name):
            return (
                f"extra_headers has {name!r}, which looks like a secret: it would be saved with the turn. Keys belong "
                "into the environment of the process that runs the turn, or to a provider in App(providers={…})."
            )
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            return f"extra_headers has a value of {name!r} that is not printable ASCII text."
    return None


def _wrong_query(query: Mapping[Any, Any]) -> str | None:
    for name, value in query.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            return f"extra_query has {str(name)[:80]!r}: names are text, values are text or numbers."
        if is_credential(name):
            return (
                f"extra_query has {name[:80]!r}, which looks like a secret: it would be saved with the turn. Keys "
                "belong into the environment of the process that runs the turn, or to a provider in App(providers={…})."
            )
    return None


def _wrong_body(body: Mapping[Any, Any]) -> str | None:
    for name in body:
        if name in _WRITTEN:
            return (
                f"extra_body has {name!r}, which the provider writes itself: use {_WRITTEN[cast(str, name)]}."
            )
    return None


def _wrong_parameter(params: Mapping[str, Any]) -> str | None:
    for name in _NEVER_PARAMETERS:
        if params.get(name) is not None:
            return f"{name}= is no parameter of a model: use {_WRITTEN[name]}."
    return None
