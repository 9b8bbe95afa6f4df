"""One connection for all scripts of a process: commands leave as they come, answers come in the same order.

A pool gives each command a connection of its own, and takes three times as long for it. Blocking commands, pipelines
and subscriptions stay with the pool.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

try:
    from hiredis import pack_command  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
except ImportError:  # the client does without
    pack_command = None

__all__ = ["ScriptLine", "ScriptRedis"]


class ScriptRedis(Redis):
    """A redis-py client whose scripts share one connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._line = ScriptLine(self.connection_pool)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] in ("EVALSHA", "EVAL"):
            return await self._line.call(*args)
        return await super().execute_command(*args, **options)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._line.aclose()
        await super().aclose(close_connection_pool)


class ScriptLine:
    """Sends commands over a connection that is opened with the first of them, and again when it is lost.

    A command whose answer was lost, or took longer than ``socket_timeout``, is sent again as often as the pool's
    ``retry`` says: for commands that bear it, as all scripts here do.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        settings = pool.connection_kwargs
        self._pool = pool
        self._timeout: float | None = settings.get("socket_timeout")
        self._retries: int = settings["retry"].get_retries() if settings.get("retry") else 0
        self._closings = 0
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[_Wire] | None = None

    async def call(self, *command: Any) -> Any:
        """The answer to a command. Raises what redis-py raises."""
        lost, era = 0, self._closings
        while True:
            wire = self._wire
            if wire is None or not wire.usable:
                wire = await self._open()  # tries often enough itself
            try:
                return await self._answer(wire, command)
            except (RedisConnectionError, RedisTimeoutError):
                lost += 1
                if lost > self._retries or era != self._closings:
                    raise

    async def aclose(self) -> None:
        """Close the connection; commands under way fail, and open no other one."""
        self._closings += 1
        opening, self._opening = self._opening, None
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        wire, self._wire = self._wire, None
        if wire is not None and wire.here:
            await wire.aclose()

    async def _answer(self, wire: _Wire, command: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                return await wire.send(command)
        except TimeoutError:
            error = RedisTimeoutError("Timeout reading from socket")
            wire.close(error)
            raise error from None

    async def _open(self) -> _Wire:
        """One new connection, however many wait for it; whoever gives up waiting leaves it to the others."""
        opening = self._opening
        if opening is None or opening.done() or opening.get_loop() is not asyncio.get_running_loop():
            opening = self._opening = asyncio.create_task(self._opened(), name="antiphon script line")
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if not opening.cancelled() or _cancelled():
                raise
            raise RedisConnectionError("The connection was closed.") from None

    async def _opened(self) -> _Wire:
        self._wire = wire = await _Wire.open(self._pool)
        return wire


class _Wire:
    """One connection, and those who wait for its answers."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._broken = False
        self._reader = asyncio.create_task(self._read(), name="antiphon script answers")

    @classmethod
    async def open(cls, pool: ConnectionPool) -> _Wire:
        connection: Any = pool.make_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return cls(connection)

    @property
    def here(self) -> bool:
        """Made on the running loop: another one's, or one inherited through a fork, is neither used nor closed."""
        return self._loop is asyncio.get_running_loop()

    @property
    def usable(self) -> bool:
        return not self._broken and self.here and not self._connection.stale

    async def send(self, command: tuple[Any, ...]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._broken:
            raise RedisConnectionError("The connection was closed.")
        packed = self._packed(command)  # may refuse an argument: before anybody waits
        self._waiting.append(answer)
        self._connection.write_soon(packed)
        return await answer

    def _packed(self, command: tuple[Any, ...]) -> list[bytes]:
        if pack_command is None:
            return self._connection.pack_command(*command)
        try:
            return [pack_command(command)]
        except TypeError as exc:
            raise DataError(f"A command takes bytes, text and numbers: {exc}.") from exc

    def close(self, error: Exception) -> None:
        """Fail what is under way; nobody takes this connection again."""
        if not self._broken:
            self._broken = True
            self._reader.cancel()
            waiting, self._waiting = self._waiting, deque()
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(type(error)(str(error)))

    async def aclose(self) -> None:
        self.close(RedisConnectionError("The connection was closed."))
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                self._hand_out(await self._next())
        except (RedisError, OSError) as exc:
            self.close(RedisConnectionError(f"The connection was lost: {exc}"))
        finally:
            self._broken = True
            await self._connection.disconnect(nowait=True)

    async def _next(self) -> Any:
        try:
            return await self._connection.read_response(timeout=math.inf, disconnect_on_error=False)
        except ResponseError as exc:
            return exc

    def _hand_out(self, reply: Any) -> None:
        answer = self._waiting.popleft()
        if answer.done():  # cancelled
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)


def _cancelled() -> bool:
    """Whether it is the running task that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
