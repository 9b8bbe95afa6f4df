"""A connection whose replies are handed out as they come, within the call that reads them from the socket.

redis-py opens it (address, password, database, TLS, Sentinel) and is then left out: each of its commands takes a
connection from a pool, and each of its replies passes a stream and wakes a task before anybody reads it.
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
    """One connection. ``on_reply`` gets every reply, errors as exceptions; ``on_lost`` hears once why it has ended."""

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
        """A new connection to where the pool's lead. Raises what redis-py raises."""
        connection: Any = pool.make_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return cls(connection, on_reply, on_lost)

    @property
    def here(self) -> bool:
        """Made on the running loop: another one's, or one inherited through a fork, is neither used nor closed."""
        return self._loop is asyncio.get_running_loop()

    @property
    def usable(self) -> bool:
        """Not lost, of this loop, and of the server that is the primary now, as far as this process knows."""
        return self._lost is None and not self._connection.stale and self.here

    def send(self, *command: Any) -> None:
        """Write a command, without waiting. Raises ``ConnectionError`` and ``DataError``: nothing is written then."""
        if self._lost is not None:
            raise RedisConnectionError(str(self._lost))
        self._transport.write(self._packed(command))

    def close(self, reason: Exception) -> None:
        """Close it; ``on_lost`` hears the reason before this returns."""
        if self._lost is None:
            self._lost = reason
            self._connection.leave()
            self._on_lost(reason)

    def data_received(self, data: bytes) -> None:
        replies, on_reply = self._replies, self._on_reply
        try:
            replies.feed(data)
            while (reply := replies.gets()) is not NOTHING and self._lost is None:
                if isinstance(reply, Exception) and self._ends_with(reply):
                    self.close(RedisConnectionError(f"The connection was lost: {reply}"))
                else:
                    on_reply(reply)
        except RedisError as exc:  # what has come is no reply
            self.close(RedisConnectionError(f"The connection was lost: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(RedisConnectionError(f"The connection was lost: {exc or 'the server has closed it'}"))

    def _ends_with(self, error: Exception) -> bool:
        """Whether an error is about the whole connection: the server is loading, or no longer the primary."""
        demoted = isinstance(error, ReadOnlyError) and self._connection.follows_primary
        return demoted or isinstance(error, RedisConnectionError)

    def _packed(self, command: tuple[Any, ...]) -> bytes:
        if pack_command is None:
            return b"".join(self._connection.pack_command(*command))
        try:
            return pack_command(command)
        except TypeError as exc:
            raise DataError(f"A command takes bytes, text and numbers: {exc}.") from exc
