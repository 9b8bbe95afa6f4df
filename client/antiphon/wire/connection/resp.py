"""Reads and writes Redis' protocol RESP2, with hiredis or, if that is not installed, in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from redis.exceptions import InvalidResponse

try:
    from hiredis import Reader, pack_command  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
except ImportError:  # the client works without it
    Reader = pack_command = None

__all__ = ["NOTHING", "PlainReader", "pack_command", "reply_reader"]

NOTHING: Final = False
"""What a reader returns when no whole reply is left. None and 0 are replies."""


class ReplyReader(Protocol):
    """Takes bytes as they arrive and returns whole replies."""

    def feed(self, data: bytes, /) -> None: ...

    def gets(self) -> Any: ...


def reply_reader(error_of: Callable[[str], Exception]) -> ReplyReader:
    """Make a reader, which raises ``InvalidResponse``; ``error_of`` makes the exception for an error's text."""
    if Reader is None:
        return PlainReader(error_of)
    return Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=NOTHING)  # pyright: ignore[reportArgumentType]


class _Unfinished(Exception):
    """The end of a reply has not arrived yet."""


class PlainReader:
    """A reader in Python. A reply that arrives in many pieces is read from its beginning with each piece."""

    def __init__(self, error_of: Callable[[str], Exception]) -> None:
        self._error_of = error_of
        self._left = b""

    def feed(self, data: bytes, /) -> None:
        self._left += data

    def gets(self) -> Any:
        try:
            reply, end = self._reply(0)
        except _Unfinished:
            return NOTHING
        self._left = self._left[end:]
        return reply

    def _reply(self, begin: int) -> tuple[Any, int]:
        """Return the reply that begins there, and where it ends."""
        line_end = self._left.find(b"\r\n", begin)
        if line_end < 0:
            raise _Unfinished
        kind, said, end = self._left[begin : begin + 1], self._left[begin + 1 : line_end], line_end + 2
        match kind:
            case b"+":
                return said, end
            case b"-":
                return self._error_of(said.decode(errors="replace")), end
            case b":":
                return int(said), end
            case b"$":
                return self._bulk(int(said), end)
            case b"*":
                return self._array(int(said), end)
            case _:
                raise InvalidResponse(f"A reply begins with {kind!r}.")

    def _bulk(self, length: int, begin: int) -> tuple[bytes | None, int]:
        if length < 0:
            return None, begin
        if len(self._left) < begin + length + 2:
            raise _Unfinished
        return self._left[begin : begin + length], begin + length + 2

    def _array(self, length: int, begin: int) -> tuple[list[Any] | None, int]:
        if length < 0:
            return None, begin
        replies, end = [], begin
        for _ in range(length):
            reply, end = self._reply(end)
            replies.append(reply)
        return replies, end
