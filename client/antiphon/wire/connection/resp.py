"""Reads and writes Redis's RESP2 protocol on a connection.

redis-py only opens it (address, password, database, TLS, Sentinel). With redis-py, each command would take a connection
from a pool, and each reply would go through a stream and wake a task first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, Self

from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, InvalidResponse, ReadOnlyError, RedisError

from antiphon.text import text_of

try:
    from hiredis import Reader, pack_command  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
except ImportError:  # the client works without it
    Reader = pack_command = None


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
                return self._error_of(text_of(said)), end
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


class DirectConnection(asyncio.Protocol):
    """One connection. ``on_reply`` gets each reply, an error as an exception; ``on_lost`` gets why it ended."""

    def __init__(
        self, connection: Any, on_reply: Callable[[Any], None], on_lost: Callable[[Exception], None]
    ) -> None:
        self._connection = connection
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._replies = reply_reader(connection.error_of)
        self._lost: Exception | None = None
        self._transport: asyncio.Transport = connection.hand_over(self)

    @classmethod
    async def open(
        cls, pool: ConnectionPool, on_reply: Callable[[Any], None], on_lost: Callable[[Exception], None]
    ) -> Self:
        """Open a connection to the pool's server. Raises the errors of redis-py."""
        connection: Any = pool.make_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return cls(connection, on_reply, on_lost)

    @property
    def here(self) -> bool:
        """Whether it was made on the running loop. Connections of another loop or process are left alone."""
        return self._loop is asyncio.get_running_loop()

    @property
    def usable(self) -> bool:
        """Whether it is open, belongs to this loop and leads to the primary, as far as this process knows."""
        return self._lost is None and not self._connection.stale and self.here

    def send(self, *command: Any) -> None:
        """Write a command without waiting. If it raises ``ConnectionError`` or ``DataError``, nothing was written."""
        if self._lost is not None:
            raise RedisConnectionError(str(self._lost))
        self._transport.write(self._packed(command))

    def send_many(self, commands: Sequence[Sequence[Any]]) -> None:
        """Write commands together, as ``send`` does."""
        if self._lost is not None:
            raise RedisConnectionError(str(self._lost))
        self._transport.write(b"".join([self._packed(tuple(command)) for command in commands]))

    def close(self, reason: Exception) -> None:
        """Close it; ``on_lost`` gets the reason before this returns."""
        if self._lost is None:
            self._lost = reason
            self._connection.leave()
            self._on_lost(reason)

    def data_received(self, data: bytes) -> None:
        if self._connection.stale:  # a stalled server may send what the new primary never had
            self.close(RedisConnectionError("Another server is the primary."))
            return
        replies, on_reply = self._replies, self._on_reply
        try:
            replies.feed(data)
            while (reply := replies.gets()) is not NOTHING and self._lost is None:
                if isinstance(reply, Exception) and self._ends_with(reply):
                    self.close(RedisConnectionError(f"The connection was lost: {reply}"))
                else:
                    on_reply(reply)
        except RedisError as exc:  # the bytes are not a reply
            self.close(RedisConnectionError(f"The connection was lost: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(RedisConnectionError(f"The connection was lost: {exc or 'the server has closed it'}"))

    def _ends_with(self, error: Exception) -> bool:
        """Return whether an error concerns the whole connection: the server is loading, or no longer the primary."""
        demoted = isinstance(error, ReadOnlyError) and self._connection.follows_primary
        return demoted or isinstance(error, RedisConnectionError)

    def _packed(self, command: tuple[Any, ...]) -> bytes:
        if pack_command is None:
            return b"".join(self._connection.pack_command(*command))
        try:
            return pack_command(command)
        except TypeError as exc:
            raise DataError(f"A command takes only bytes, text and numbers: {exc}.") from exc
