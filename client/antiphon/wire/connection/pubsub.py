"""Live channels: one pub/sub connection carries all channels of a process.

A listener gets the messages of its channel. When its subscription is confirmed, after each lost connection and after it
fell behind, it gets ``RESYNC``: no later message is missed, and earlier ones must be read from the log of events. A
lost connection is always opened again, and logged when it is lost and when it is back. Listeners of a closed feed get
``ClientClosed``; those of a channel that the server refuses get its reason.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from antiphon.errors import ClientClosed
from antiphon.text import text_of
from antiphon.wire.connection.moved import CellMoved
from antiphon.wire.connection.open import CellPool
from antiphon.wire.connection.resp import DirectConnection
from antiphon.wire.errors import store_error
from antiphon.wire.keys import Key

log = logging.getLogger("antiphon.live")

RESYNC: Final = b""
"""Given to a listener instead of a message: read the log from the last event seen."""

BACKLOG = 10_000
PING_SECONDS = 15.0
CLOCK_SECONDS = 0.001
"""How early a timer may be."""


class Listener:
    """The messages of one channel, for one reader. A slow reader does not delay others."""

    __slots__ = ("_end", "_messages", "_reader", "_timer", "_until")

    def __init__(self) -> None:
        self._messages: list[bytes] = []  # an empty deque takes more memory than the rest of an idle reader
        self._reader: asyncio.Future[None] | None = None  # set while the reader waits
        self._until = 0.0  # until when it waits at most, in the loop's time
        self._timer: asyncio.TimerHandle | None = None  # it is left to run, so that a message costs no timer
        self._end: Exception | None = None

    def close(self, reason: Exception) -> None:
        """End this listener with the first given reason.

        The feed calls it when it is closed or may not listen, and the reader when it leaves.
        """
        self._end = self._end or reason
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def push(self, message: bytes) -> None:
        """Add a message. The feed calls it. A reader that falls too far behind starts again from the log."""
        if len(self._messages) >= BACKLOG:
            self._messages.clear()
            message = RESYNC
        self._messages.append(message)
        if self._reader is not None and not self._reader.done():  # as in _wake, which each message would call
            self._reader.set_result(None)

    @property
    def behind(self) -> bool:
        """Whether messages wait for the reader."""
        return bool(self._messages)

    @property
    def ended(self) -> bool:
        """Whether no more messages are given."""
        return self._end is not None

    async def get(self, timeout: float = math.inf) -> bytes:
        """Return the next message.

        Raises ``TimeoutError`` after ``timeout`` seconds without one, ``ClientClosed``, and ``StoreError`` if the
        server refuses the channel.
        """
        if not self._messages and self._end is None:
            loop = asyncio.get_running_loop()
            self._reader = loop.create_future()
            self._until = math.inf if timeout == math.inf else loop.time() + timeout
            if self._until < math.inf and (self._timer is None or self._timer.when() > self._until):
                self._look_at(self._until)
            try:
                await self._reader
            finally:
                self._reader = None
        if self._end is not None:
            raise self._end
        return self._messages.pop(0)

    def take(self) -> bytes | None:
        """Return the next message if one waits and the listener has not ended."""
        return self._messages.pop(0) if self._messages and self._end is None else None

    def clear(self) -> None:
        """Drop the messages that wait, before their log is read."""
        self._messages.clear()

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        """End the wait if its time is over, or look again when it will be."""
        self._timer = None
        if self._reader is None or self._reader.done() or self._until == math.inf:
            return
        if asyncio.get_running_loop().time() + CLOCK_SECONDS < self._until:
            self._look_at(self._until)
        else:
            self._reader.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class LiveFeed:
    """All listeners of one process on one Redis, over one connection, which is opened for the first listener."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis
        self._choose_commands()
        self._listeners: dict[bytes, list[Listener]] = {}
        self._connection: DirectConnection | None = None
        self._expected: deque[tuple[str, bytes]] = deque()  # commands without an answer yet, in order
        self._asked: set[bytes] = set()  # channels that this connection has subscribed to
        self._confirmed: set[bytes] = set()
        self._heard_at = 0.0  # the time of the last answer of any kind
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.reached = False  # whether it was ever connected
        getattr(redis, "on_follow", []).append(self._rename)

    def _choose_commands(self) -> None:
        sharded = "S" if isinstance(self._redis.connection_pool, CellPool) else ""
        self._subscribing, self._leaving = f"{sharded}SUBSCRIBE", f"{sharded}UNSUBSCRIBE"
        self._message = f"{sharded}message".lower().encode()

    def _rename(self) -> None:
        """Continue at the new place of the cell, where channels have other names."""
        self._choose_commands()
        self._listeners = {self._name(Key(text_of(name))): known for name, known in self._listeners.items()}
        self.reconnect()

    def _name(self, channel: str) -> bytes:
        names = getattr(self._redis, "names", None)
        return (names.name(channel) if names is not None and isinstance(channel, Key) else channel).encode()

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Listener]:
        """Listen to a channel. ``RESYNC`` comes first, when the subscription is confirmed."""
        self.check_open()
        name, listener = self._name(channel), Listener()
        known = self._listeners.setdefault(name, [])
        known.append(listener)
        try:
            self._begin(name, listener)
            yield listener
        finally:
            listener.close(ClientClosed())
            known.remove(listener)
            name = self._name(channel)
            if not known and self._listeners.get(name) is known:
                del self._listeners[name]
                self._asked.discard(name)
                self._confirmed.discard(name)
                self._send(self._leaving, name)

    def reconnect(self) -> None:
        """Open the connection again, because it receives nothing although events are published."""
        if self._connection is not None:
            self._connection.close(RedisConnectionError("It receives nothing."))

    def check_open(self) -> None:
        """Raise ``ClientClosed`` if this feed is closed."""
        if self._closed:
            raise ClientClosed

    async def aclose(self) -> None:
        """Close the connection and end its listeners."""
        self._closed = True
        for listener in [one for known in self._listeners.values() for one in known]:
            listener.close(ClientClosed())
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def _begin(self, name: bytes, listener: Listener) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="antiphon live feed")
        elif name in self._confirmed:
            listener.push(RESYNC)  # the channel's other listeners have missed nothing
        else:
            self._subscribe(name)

    def _subscribe(self, name: bytes) -> None:
        """Subscribe to each channel with a command of its own, because the server refuses a command as a whole."""
        if name not in self._asked and self._connection is not None:
            self._asked.add(name)
            self._send(self._subscribing, name)

    def _send(self, command: str, *names: bytes) -> None:
        """Send a command. A connection that fails here is opened again, with all its subscriptions."""
        connection = self._connection
        if connection is None:
            return
        if connection.usable:
            self._expected.append((command, b"".join(names)))
            connection.send(command, *names)
        else:
            connection.close(RedisConnectionError("Another server is the primary."))

    async def _run(self) -> None:
        lost_at, delay = 0.0, 0.05
        while True:
            lost: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
            try:
                self._connection = await self._open(lost)
                self.reached = True
                for known in (self._expected, self._asked, self._confirmed):
                    known.clear()
                for name in list(self._listeners):
                    self._subscribe(name)
                if lost_at:
                    log.info(
                        "live channels are back after %.1f s",
                        time.monotonic() - lost_at,
                        extra={"action": "outage_ended"},
                    )
                lost_at, delay = 0.0, 0.05
                raise await self._until_lost(lost)
            except (RedisError, OSError, TimeoutError) as exc:
                if not lost_at:
                    lost_at = time.monotonic()
                    log.warning(
                        "live channels are cut off (%s); trying again", exc, extra={"action": "outage_began"}
                    )
            finally:
                if self._connection is not None:
                    self._connection.close(RedisConnectionError("It is no longer needed."))
                    self._connection = None
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def _open(self, lost: asyncio.Future[Exception]) -> DirectConnection:
        def on_lost(error: Exception) -> None:
            if not lost.done():
                lost.set_result(error)

        while True:
            names = getattr(self._redis, "names", None)
            try:
                return await DirectConnection.open(self._redis.connection_pool, self._dispatch, on_lost)
            except CellMoved as moved:
                await self._redis.follow(moved, names)

    async def _until_lost(self, lost: asyncio.Future[Exception]) -> Exception:
        """Return why the connection was lost. A PING finds a server that is gone without closing the connection."""
        asked_at = 0.0
        while True:
            done, _ = await asyncio.wait([lost], timeout=PING_SECONDS)
            if done:
                return lost.result()
            if self._heard_at < asked_at:
                return RedisTimeoutError(f"no answer within {PING_SECONDS:g} s")
            asked_at = time.monotonic()
            self._send("PING")

    def _dispatch(self, reply: Any) -> None:
        self._heard_at = time.monotonic()
        if reply.__class__ is list and reply[0] == self._message:
            for listener in self._listeners.get(reply[1], ()):
                listener.push(reply[2])
            return
        expected = self._expected[0][0] if self._expected else ""
        if expected != self._leaving and not isinstance(reply, Exception) and reply[0] == b"sunsubscribe":
            self.reconnect()  # the slot has moved to another node
            return
        command, name = self._expected.popleft() if self._expected else ("", b"")
        if command == self._leaving:
            self._confirmed.discard(name)
        elif command == self._subscribing and isinstance(reply, Exception):
            self._refused(name, reply)
        elif command == self._subscribing:
            self._confirmed.add(name)
            for listener in self._listeners.get(name, ()):
                listener.push(RESYNC)

    def _refused(self, name: bytes, error: Exception) -> None:
        """End the readers of this channel; all others continue."""
        self._asked.discard(name)
        for listener in self._listeners.get(name, ()):
            listener.close(store_error(error))
