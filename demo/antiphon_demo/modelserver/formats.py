"""The common parts of the three wire formats: reading requests, and writing answers and errors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

import msgspec

from antiphon_demo.modelserver.answers import Ask, Reply

_encoder = msgspec.json.Encoder()
encode = _encoder.encode


class Format(Protocol):
    """One wire format."""

    @property
    def path(self) -> str: ...

    def key(self, headers: Mapping[str, str]) -> str | None:
        """Return the client's key."""
        ...

    def read(self, body: dict[str, Any]) -> Ask: ...

    def whole(self, reply: Reply) -> dict[str, Any]:
        """Return the answer to a request without streaming."""
        ...

    def stream(self, reply: Reply, ask: Ask, stamp: bool) -> Iterator[bytes]:
        """Iterate over the events of an answer: its beginning, one for each piece, made on demand, and its end."""
        ...

    def error(self, status: int, message: str) -> dict[str, Any]: ...

    def stream_error(self) -> bytes:
        """Return an error for the middle of a stream whose status was 200."""
        ...


def event(name: str, data: dict[str, Any]) -> bytes:
    """Encode a named server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def at(value: Any, *names: str) -> Any:
    """Return the value at this path of nested names, or None."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text_of(content: Any) -> str:
    """Return the text of a content that is a string, nothing, or a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in cast("list[Any]", content) if hasattr(part, "get"))
    return content if isinstance(content, str) else ""
