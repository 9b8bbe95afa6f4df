"""Live channels: one pub/sub connection carries all that a process listens to.

A listener gets the messages of its channel and, at every confirmed (re)subscription or after it fell behind,
``RESYNC``: from here on nothing is missed that is published, and what came before must be read from the log. A lost
connection is opened again without end; the log says when it went and when it came back. Listeners of a feed that is
closed are told so: ``ClientClosed``.
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

__all__ = ["RESYNC", "Listener", "LiveFeed"]

log = logging.getLogger("antiphon.live")

RESYNC: Final = b""
"""Handed to a listener instead of a message: read the log from what was last seen."""

BACKLOG = 10_000
PING_SECONDS = 15.0


class Listener:
    """The messages of one channel, for one reader. It never holds up another one."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Called by the feed when it is closed."""
        self._closed = True
        self._ready.set()

    def push(self, message: bytes) -> None:
        """Called by the feed. A reader that fell too far behind starts again from the log."""
        if len(self._messages) >= BACKLOG:
            self._messages.clear()
            message = RESYNC
        self._messages.append(message)
        self._ready.set()

    async def get(self, timeout: float) -> bytes:
        """The next message. Raises ``TimeoutError`` after ``timeout`` seconds of silence, ``ClientClosed``."""
        while not self._messages and not self._closed:
            self._ready.clear()
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        if self._closed:
            raise ClientClosed
        return self._messages.popleft()


class LiveFeed:
    """All listeners of one process on one Redis, over one connection that is opened with the first of them."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._listeners: dict[bytes, list[Listener]] = {}
        self._connection: Any = None
        self._heard_at = 0.0  # the last answer of any kind
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Listener]:
        """Listen to a channel. The first thing to come is ``RESYNC``, when the subscription is confirmed."""
        self.check_open()
        name, listener = channel.encode(), Listener()
        known = self._listeners.setdefault(name, [])
        known.append(listener)
        try:
            await self._begin(name)
            yield listener
        finally:
            known.remove(listener)
            if not known and self._listeners.get(name) is known:
                del self._listeners[name]
                await self._send("UNSUBSCRIBE", name)

    async def reconnect(self) -> None:
        """Open the connection anew: it is silent though events were published."""
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    def check_open(self) -> None:
        """Raise ``ClientClosed`` where this feed is closed."""
        if self._closed:
            raise ClientClosed

    async def aclose(self) -> None:
        """Close the connection; those that still listen are told."""
        self._closed = True
        for listener in [one for known in self._listeners.values() for one in known]:
            listener.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _begin(self, name: bytes) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="antiphon live feed")
        else:
            await self._send("SUBSCRIBE", name)

    async def _send(self, command: str, *names: bytes) -> None:
        """A failure here is the reader's to notice: it subscribes to everything again."""
        connection = self._connection
        if connection is None:
            return
        try:
            await _send(connection, command, *names)
        except (RedisError, OSError):
            await connection.disconnect(nowait=True)

    async def _run(self) -> None:
        lost_at, delay = 0.0, 0.05
        while True:
            connection: Any = self._redis.connection_pool.make_connection()
            try:
                await connection.connect()
                self._connection = connection
                if self._listeners:
                    await _send(connection, "SUBSCRIBE", *self._listeners)
                if lost_at:
                    log.info("live channels are back after %.1f s", time.monotonic() - lost_at)
                lost_at, delay = 0.0, 0.05
                await self._read(connection)
            except (RedisError, OSError, TimeoutError) as exc:
                if not lost_at:
                    lost_at = time.monotonic()
                    log.warning("live channels are cut off (%s); trying again", exc)
            finally:
                self._connection = None
                await connection.disconnect(nowait=True)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    async def _read(self, connection: Any) -> None:
        """Until the connection is lost. A server that is gone without a word answers no PING either."""
        reader, asked_at = asyncio.ensure_future(self._dispatch(connection)), 0.0
        try:
            while True:
                done, _ = await asyncio.wait([reader], timeout=PING_SECONDS)
                if done:
                    return reader.result()
                if self._heard_at < asked_at:
                    raise RedisTimeoutError(f"no answer within {PING_SECONDS:g} s")
                asked_at = time.monotonic()
                await _send(connection, "PING")
        finally:
            reader.cancel()
            with suppress(asyncio.CancelledError, RedisError, OSError):
                await reader

    async def _dispatch(self, connection: Any) -> None:
        listeners = self._listeners
        while True:
            reply = await connection.read_response(timeout=math.inf, disconnect_on_error=False)
            self._heard_at = time.monotonic()
            if reply[0] == b"message":
                for listener in listeners.get(reply[1], ()):
                    listener.push(reply[2])
            elif reply[0] == b"subscribe":
                for listener in listeners.get(reply[1], ()):
                    listener.push(RESYNC)


async def _send(connection: Any, command: str, *names: bytes) -> None:
    """Send on the connection as it is: redis-py would open one that is lost again, and nobody would close that."""
    if connection.stale:
        raise RedisConnectionError("Another server is the primary.")
    if not connection.is_connected:
        raise RedisConnectionError("The connection is lost.")
    await connection.send_command(command, *names, check_health=False)
