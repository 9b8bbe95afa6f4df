"""Live channels: one pub/sub connection carries all that a process listens to.

A listener gets the messages of its channel and, when its subscription is confirmed, after every lost connection and
after it fell behind, ``RESYNC``: from here on nothing is missed that is published, and what came before must be read
from the log. A lost connection is opened again without end; the log says when it went and when it came back. Listeners
of a feed that is closed are told so: ``ClientClosed``; those of a channel that the server refuses get its reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from antiphon.errors import AgentError, ClientClosed
from antiphon.wire.connection.reader import DirectConnection
from antiphon.wire.errors import store_error

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
        self._reader: asyncio.Future[None] | None = None  # set while the reader waits
        self._end: AgentError | None = None

    def close(self, reason: AgentError) -> None:
        """Called by the feed when it is closed, or may not listen to the channel."""
        self._end = reason
        self._wake()

    def push(self, message: bytes) -> None:
        """Called by the feed. A reader that fell too far behind starts again from the log."""
        if len(self._messages) >= BACKLOG:
            self._messages.clear()
            message = RESYNC
        self._messages.append(message)
        self._wake()

    async def get(self, timeout: float) -> bytes:
        """The next message. Raises ``TimeoutError`` after ``timeout`` seconds of silence, ``ClientClosed``, and
        ``StoreError`` where the server refuses the channel."""
        if not self._messages and self._end is None:
            await self._something(timeout)
        if self._end is not None:
            raise self._end
        return self._messages.popleft()

    async def _something(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        reader = self._reader = loop.create_future()
        timer = loop.call_later(timeout, _give_up, reader)
        try:
            await reader
        finally:
            timer.cancel()
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class LiveFeed:
    """All listeners of one process on one Redis, over one connection that is opened with the first of them."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._listeners: dict[bytes, list[Listener]] = {}
        self._connection: DirectConnection | None = None
        self._expected: deque[tuple[str, bytes]] = deque()  # commands whose answers have not come, in order
        self._asked: set[bytes] = set()  # channels that this connection was told to subscribe to
        self._confirmed: set[bytes] = set()
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
            self._begin(name, listener)
            yield listener
        finally:
            known.remove(listener)
            if not known and self._listeners.get(name) is known:
                del self._listeners[name]
                self._asked.discard(name)
                self._confirmed.discard(name)
                self._send("UNSUBSCRIBE", name)

    def reconnect(self) -> None:
        """Open the connection anew: it is silent though events were published."""
        if self._connection is not None:
            self._connection.close(RedisConnectionError("It was silent."))

    def check_open(self) -> None:
        """Raise ``ClientClosed`` where this feed is closed."""
        if self._closed:
            raise ClientClosed

    async def aclose(self) -> None:
        """Close the connection; those that still listen are told."""
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
            listener.push(RESYNC)  # the others of the channel have missed nothing
        else:
            self._subscribe(name)

    def _subscribe(self, name: bytes) -> None:
        """Each channel with a command of its own: the server refuses a command as a whole."""
        if name not in self._asked and self._connection is not None:
            self._asked.add(name)
            self._send("SUBSCRIBE", name)

    def _send(self, command: str, *names: bytes) -> None:
        """A connection that fails here is opened anew, and subscribes to everything again."""
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
                for known in (self._expected, self._asked, self._confirmed):
                    known.clear()
                for name in list(self._listeners):
                    self._subscribe(name)
                if lost_at:
                    log.info("live channels are back after %.1f s", time.monotonic() - lost_at)
                lost_at, delay = 0.0, 0.05
                raise await self._until_lost(lost)
            except (RedisError, OSError, TimeoutError) as exc:
                if not lost_at:
                    lost_at = time.monotonic()
                    log.warning("live channels are cut off (%s); trying again", exc)
            finally:
                if self._connection is not None:
                    self._connection.close(RedisConnectionError("It is no longer needed."))
                    self._connection = None
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    def _open(self, lost: asyncio.Future[Exception]) -> Awaitable[DirectConnection]:
        def on_lost(error: Exception) -> None:
            if not lost.done():
                lost.set_result(error)

        return DirectConnection.open(self._redis.connection_pool, self._dispatch, on_lost)

    async def _until_lost(self, lost: asyncio.Future[Exception]) -> Exception:
        """Why the connection was lost. A server that is gone without a word answers no PING either."""
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
        if not isinstance(reply, Exception) and reply[0] == b"message":
            for listener in self._listeners.get(reply[1], ()):
                listener.push(reply[2])
            return
        command, name = self._expected.popleft() if self._expected else ("", b"")
        if command == "UNSUBSCRIBE":
            self._confirmed.discard(name)
        elif command == "SUBSCRIBE" and isinstance(reply, Exception):
            self._refused(name, reply)
        elif command == "SUBSCRIBE":
            self._confirmed.add(name)
            for listener in self._listeners.get(name, ()):
                listener.push(RESYNC)

    def _refused(self, name: bytes, error: Exception) -> None:
        """The readers of this channel end; all others go on."""
        self._asked.discard(name)
        for listener in self._listeners.get(name, ()):
            listener.close(store_error(error))


def _give_up(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_exception(TimeoutError())
