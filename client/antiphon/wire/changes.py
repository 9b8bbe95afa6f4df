"""The names of a cell's changed keys, as its server sends them: only these keys are copied again.

``CLIENT TRACKING`` in broadcasting mode needs no server setting. With RESP2, the tracking connection cannot receive the
names itself: a second connection subscribes to them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError

from antiphon.wire.cell import Cell
from antiphon.wire.connection.resp import DirectConnection

CHANNEL = "__redis__:invalidate"
PATIENCE_SECONDS = 10.0


class Changes:
    """The keys of a cell that change from ``begin`` on."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._names: set[bytes] | None = None  # None if some are missing
        self._lines: list[_Line] = []

    async def begin(self) -> None:
        """Collect the names of keys that change from now on, if the server allows that."""
        self.close()
        self._names = set()
        keys, pool = self._cell.keys, self._cell.redis.connection_pool
        prefixes = [word for stem in (keys.prefix, keys.rq) for word in ("PREFIX", f"{stem}:")]
        try:
            for _ in ("hears", "tracks"):
                self._lines.append(await _Line.open(pool, self._hear, self._lose))
            hears, tracks = self._lines
            number = await hears.ask("CLIENT", "ID")
            await hears.ask("SUBSCRIBE", CHANNEL)
            await tracks.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", *prefixes)
        except (RedisError, OSError, TimeoutError):
            self._lose()

    async def taken(self) -> set[bytes] | None:
        """Return the keys that have changed since the last call; None if some are unknown."""
        try:
            for line in reversed(self._lines):  # the server writes names before its answers to later commands
                await line.ask("PING")
        except (RedisError, OSError, TimeoutError):
            self._lose()
        taken, self._names = self._names, None if self._names is None else set()
        return taken

    def close(self) -> None:
        """Stop collecting."""
        for line in self._lines:
            line.close()
        self._lines = []

    def _hear(self, names: list[bytes] | None) -> None:
        if names is None:  # the database was emptied
            self._lose()
        elif self._names is not None:
            self._names.update(names)

    def _lose(self) -> None:
        self._names = None


class _Line:
    """A connection for commands, answered in order, and for messages."""

    _connection: DirectConnection

    def __init__(self, on_message: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._waiting: deque[asyncio.Future[Any]] = deque()

    @classmethod
    async def open(
        cls, pool: ConnectionPool, on_message: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> Self:
        line = cls(on_message, on_lost)
        line._connection = await DirectConnection.open(pool, line._hear, line._lost)
        return line

    async def ask(self, *command: Any) -> Any:
        """Return the answer. Raises the errors of redis-py, and ``TimeoutError``."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._connection.send(*command)
        self._waiting.append(answer)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await answer

    def close(self) -> None:
        self._connection.close(ConnectionError("It is no longer needed."))

    def _hear(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[:1] == [b"message"]:
            self._on_message(reply[2])
        elif self._waiting and not (answer := self._waiting.popleft()).done():
            if isinstance(reply, Exception):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

    def _lost(self, error: Exception) -> None:
        self._on_lost()
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(error)
