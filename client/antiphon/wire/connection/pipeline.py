"""One connection for all scripts of a process: commands are sent at once, and answers arrive in the same order.

A pool gives each command its own connection, which takes three times as long, and opening one for each of many
simultaneous commands takes a hundred times as long. So short reads whose answers redis-py does not convert use this
connection as well. Pipelines use the pool; a blocking command that is repeated has its own connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from antiphon.wire.connection.following import SCRIPTS, Following
from antiphon.wire.connection.moved import CellMoved, Followed
from antiphon.wire.connection.resp import DirectConnection

SHARED = frozenset({"EVALSHA", "EVAL", "HGET", "HMGET"})


class ScriptRedis(Following):
    """A redis-py client whose scripts and short reads share one connection."""

    _blocking: frozenset[str] = frozenset()

    reached = False
    """Whether the server has ever answered."""

    replicated: Line | None = None
    """The line for scripts whose writes must not be lost in a failover, if the URL asks for that."""

    def __init__(self, *args: Any, patience: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience = patience
        self._line = Line(self.connection_pool, patience=patience)

    async def execute_command(self, *args: Any, promises: bool = False, **options: Any) -> Any:
        """Send a command. ``promises``: its answer promises that its writes are kept.

        Raises ``Followed`` for a script if the cell has moved.
        """
        while True:
            names = self.names
            sent = args if names is None else names.of(args)
            try:
                if args[0] in SHARED or args[0] in self._blocking:
                    line = self.replicated if promises and self.replicated is not None else self._line
                    answer = await line.call(*sent)
                else:
                    answer = await super().execute_command(*sent, **options)
            except CellMoved as moved:
                await self.follow(moved, names)
                if args[0] in SCRIPTS:
                    raise Followed from None
            else:
                self.reached = True
                return answer if names is None else names.answer(args, answer)

    async def read_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send short reads at once, without retries. The answer of a failed one is the exception."""
        names = self.names
        return await self._line.call_many([one if names is None else names.of(one) for one in commands])

    def use(self, there: ScriptRedis) -> None:
        super().use(there)
        self._line, self.replicated = Line(there.connection_pool, patience=self._patience), there.replicated

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await self._line.aclose()
        if self.replicated is not None:
            await self.replicated.aclose()
        await super().aclose(close_connection_pool)


class WaitingRedis(ScriptRedis):
    """A client for blocking commands on the pool of another one, whose scripts would otherwise wait for a BLPOP."""

    _blocking = frozenset({"BLPOP"})


class Line:
    """Sends commands over one connection, which is opened at the first command and again after a loss.

    A command whose answer is lost, or takes longer than ``socket_timeout``, is sent again as often as the pool's
    ``retry`` allows. Use it only for commands that can be repeated, as all scripts here can. ``patience`` is how many
    seconds a command may block on the server.
    """

    def __init__(self, pool: ConnectionPool, *, patience: float = 0.0) -> None:
        settings = pool.connection_kwargs
        timeout: float | None = settings.get("socket_timeout")
        self._pool = pool
        self._timeout = timeout + patience if timeout is not None else None
        self._retries: int = settings["retry"].get_retries() if settings.get("retry") else 0
        self._closings = 0
        self._wire: Wire | None = None
        self._opening: asyncio.Task[Wire] | None = None

    async def call(self, *command: Any) -> Any:
        """Send a command and return its answer. Raises the errors of redis-py."""
        lost, era = 0, self._closings
        while True:
            wire = self._wire
            if wire is None or not wire.usable:
                wire = await self._open()  # repeats by itself
            try:
                return await wire.ask(command)
            except (RedisConnectionError, RedisTimeoutError):
                lost += 1
                if lost > self._retries or era != self._closings:
                    raise

    async def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands at once and return their answers, exceptions among them. Nothing is sent again."""
        wire = self._wire
        if wire is None or not wire.usable:
            wire = await self._open()
        return await asyncio.gather(*wire.ask_many(commands), return_exceptions=True)

    async def aclose(self) -> None:
        """Close the connection. Commands under way fail and do not open a new one."""
        self._closings += 1
        opening, self._opening = self._opening, None
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        wire, self._wire = self._wire, None
        if wire is not None and wire.here:
            wire.close(RedisConnectionError("The connection was closed."))

    async def _open(self) -> Wire:
        """Open one new connection for all commands that wait for it, even if some of them are cancelled."""
        opening = self._opening
        if opening is None or opening.done() or opening.get_loop() is not asyncio.get_running_loop():
            opening = self._opening = asyncio.create_task(self._opened(), name="antiphon script line")
            opening.add_done_callback(_heard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if not opening.cancelled() or _cancelled():
                raise
            raise RedisConnectionError("The connection was closed.") from None

    async def _opened(self) -> Wire:
        self._wire = wire = await self._make()
        return wire

    async def _make(self) -> Wire:
        return await Wire.open(self._pool, self._timeout)


class Wire:
    """One connection and the commands that wait for its answers, each for at most ``timeout`` seconds."""

    _connection: DirectConnection

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = (
            deque()
        )  # each waiting command, and since when
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, pool: ConnectionPool, timeout: float | None) -> Self:
        wire = cls(timeout)
        wire._connection = await DirectConnection.open(pool, wire._hand_out, wire._lost)
        return wire

    @property
    def here(self) -> bool:
        return self._connection.here

    @property
    def usable(self) -> bool:
        return self._connection.usable

    def ask(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a command and return the future of its answer. Raises ``ConnectionError``, ``DataError``."""
        self._connection.send(*command)  # may refuse an argument, so it comes first
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((answer, self._loop.time()))
        if self._watch is None and self._timeout is not None:
            self._watch = self._loop.call_later(self._timeout, self._look, self._timeout)
        return answer

    def ask_many(self, commands: Sequence[Sequence[Any]]) -> list[asyncio.Future[Any]]:
        """Send commands in one write and return the futures of their answers. Raises as ``ask`` does."""
        self._connection.send_many(commands)
        answers: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in commands]
        now = self._loop.time()
        self._waiting.extend((answer, now) for answer in answers)
        if self._watch is None and self._timeout is not None:
            self._watch = self._loop.call_later(self._timeout, self._look, self._timeout)
        return answers

    def close(self, error: Exception) -> None:
        """Fail the commands under way. This connection is not used again."""
        self._connection.close(error)

    def _look(self, timeout: float) -> None:
        """Watch all waiting commands with one timer: the first one sent has waited longest."""
        self._watch = None
        if self._waiting:
            left = self._waiting[0][1] + timeout - self._loop.time()
            if left > 0:
                self._watch = self._loop.call_later(left, self._look, timeout)
            else:
                self.close(RedisTimeoutError("Timeout reading from socket"))

    def _hand_out(self, reply: Any) -> None:
        answer, _ = self._waiting.popleft()
        if answer.done():  # cancelled
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)

    def _lost(self, error: Exception) -> None:
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, deque()
        for answer, _ in waiting:
            if not answer.done():
                answer.set_exception(type(error)(str(error)))


def _cancelled() -> bool:
    """Return whether the running task was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _heard(opening: asyncio.Task[Wire]) -> None:
    """Retrieve a failure, because all tasks that waited for the connection may have been cancelled."""
    if not opening.cancelled():
        opening.exception()
