"""A connection that passes on each reply within the call that reads it from the socket.

redis-py only opens it (address, password, database, TLS, Sentinel). With redis-py, each command would take a connection
from a pool, and each reply would go through a stream and wake a task first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ReadOnlyError, RedisError

from antiphon.wire.connection.resp import NOTHING, pack_command, reply_reader

__all__ = ["DirectConnection"]


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

    def close(self, reason: Exception) -> None:
        """Close it; ``on_lost`` gets the reason before this returns."""
        if self._lost is None:
            self._lost = reason
            self._connection.leave()
            self._on_lost(reason)

    def data_received(self, data: bytes) -> None:
        if self._connection.stale:  # a server that stood still may say what the new primary never did
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
