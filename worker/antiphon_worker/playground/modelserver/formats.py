"""The common parts of the three wire formats: reading requests, and writing answers and errors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from antiphon_worker.playground.modelserver.answers import Ask, Reply

__all__ = ["Format", "encode", "event", "new_id", "text_of"]

_encoder = msgspec.json.Encoder()
encode = _encoder.encode


class Format(Protocol):
    """One wire format."""

    @property
    def path(self) -> str: ...

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key that the client has shown."""
        ...

    def read(self, body: dict[str, Any]) -> Ask: ...

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        ...

    def stream(self, reply: Reply, ask: Ask, stamp: bool) -> Iterator[bytes]:
        """The events of an answer: the opening, one for each piece made when it is asked for, the end."""
        ...

    def error(self, status: int, message: str) -> dict[str, Any]: ...

    def stream_error(self) -> bytes:
        """An error in the middle of a stream whose status was 200."""
        ...


def event(name: str, data: dict[str, Any]) -> bytes:
    """A named server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def text_of(content: Any) -> str:
    """The text of a content that is a string, nothing, or a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
