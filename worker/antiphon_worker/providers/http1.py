"""One connection to a model service and the requests that go over it, one after the other, by HTTP/1.1.

What comes is handed on where it is read: no task is woken for a piece of an answer. llhttp reads the protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import cast

import httptools
import httpx2

__all__ = ["Exchange", "Http1Connection"]

HIGH_WATER_BYTES = 256 * 1024
_FRAMED = (b"content-length", b"transfer-encoding")


class Http1Connection(asyncio.Protocol):
    """A connection. ``ended`` is told when an exchange is over, and whether the next may follow; ``lost`` when it is
    gone."""

    def __init__(
        self, ended: Callable[[Http1Connection, bool], None], lost: Callable[[Http1Connection], None]
    ) -> None:
        self._ended = ended
        self._lost = lost
        self._exchange: Exchange | None = None
        self._rest: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        return not self.transport.is_closing()

    def begin(self, request: bytes, timeout: float | None) -> Exchange:
        """Send a request. ``timeout`` is the longest silence in seconds until its answer is over."""
        self._stop_rest()
        self._exchange = exchange = Exchange(self, timeout)
        self.transport.write(request)
        return exchange

    def end(self, *, reusable: bool) -> None:
        """The exchange is over."""
        reusable = reusable and self.open and not self.transport.get_write_buffer_size()
        if not reusable:
            self.abort()
        elif self._exchange is not None:
            self._exchange = None
            self.transport.resume_reading()
            self._ended(self, True)

    def abort(self) -> None:
        """Close it now, whatever is under way."""
        self.transport.abort()
        if self._exchange is not None:
            self._exchange = None
            self._ended(self, False)

    def rest(self, seconds: float) -> None:
        """Close it, unless it is used within this time."""
        self._rest = asyncio.get_running_loop().call_later(seconds, self.transport.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.feed(data)
        else:
            self.transport.abort()  # nobody has asked

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_rest()
        self._lost(self)
        if self._exchange is not None:
            self._exchange.broken(exc)

    def _stop_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None


class Exchange(httpx2.AsyncByteStream):
    """A request that was sent, and its answer: ``head``, then the body by ``into`` or by iteration."""

    def __init__(self, connection: Http1Connection, timeout: float | None) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # As browsers and other clients have it: services are not all strict.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._take: Callable[[bytes], bool] | None = None
        self._pieces: deque[bytes] = deque()
        self._held = 0  # bytes in them
        self._paused = False
        self._over = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timeout = timeout
        self._heard = self._loop.time()
        self._unsent = 0
        self._watchdog = self._loop.call_later(timeout, self._watch) if timeout else None

    async def head(self) -> None:
        """Return when status and headers are there."""
        while not self.status and self._error is None:
            await self._news()
        if self._error is not None:
            raise self._error

    async def into(self, take: Callable[[bytes], bool]) -> bool:
        """Hand each piece of the body to ``take`` as it comes, until that says False or the body ends.

        True at the end of the body. After False, the next call goes on. Raises what ``take`` raises, and the
        errors of httpx.
        """
        while self._pieces:
            if not take(self._next()):
                return False
        if not self._over and self._error is None:
            self._take = take
            self._resume()
            try:
                await self._news()
            finally:
                self._take = None
        if self._error is not None:
            raise self._error
        return self._over and not self._pieces

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        while True:
            while self._pieces:
                yield self._next()
            if self._error is not None:
                raise self._error
            if self._over:
                return
            self._resume()
            await self._news()

    async def aclose(self) -> None:
        """Give the connection up, where the answer is not over."""
        if not self._over and self._error is None:
            self.fail(httpx2.ReadError("The answer was closed."))

    def feed(self, data: bytes) -> None:
        """What has come over the connection."""
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(httpx2.RemoteProtocolError("The server asks for another protocol."))
        except httptools.HttpParserError as exc:
            self.fail(httpx2.RemoteProtocolError(f"This is not HTTP: {exc}"))

    def broken(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._over:
            return
        if exc is not None:
            self.fail(httpx2.ReadError(str(exc) or type(exc).__name__))
        elif not self.status:
            self.fail(httpx2.RemoteProtocolError("The server closed the connection without an answer."))
        elif self._framed():
            self.fail(httpx2.RemoteProtocolError("The server closed the connection before the answer's end."))
        else:
            self._end(reusable=False)

    def fail(self, error: Exception) -> None:
        """End with an error; the connection is of no use any more."""
        if not self._over and self._error is None:
            self._error = error
            self._stop_watch()
            self._connection.abort()
            self._tell()

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:  # another head follows
            self.headers, self.reason = [], b""
        else:
            self.status = status
            self._tell()

    def on_body(self, data: bytes) -> None:
        take = self._take
        if take is None:
            self._hold(data)
            return
        try:
            if take(data):
                return
        except Exception as exc:  # noqa: BLE001 - whoever waits in ``into`` gets it
            self.fail(exc)
        self._take = None
        self._pause()
        self._tell()

    def on_message_complete(self) -> None:
        if self.status and not self._over and self._error is None:
            self._end(reusable=self._parser.should_keep_alive())

    def on_message_begin(self) -> None:
        if self._over:  # more than was asked for
            self._connection.abort()

    def _end(self, *, reusable: bool) -> None:
        self._over = True
        self._stop_watch()
        self._connection.end(reusable=reusable)
        self._tell()

    def _hold(self, data: bytes) -> None:
        """Keep a piece until somebody reads it."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held > HIGH_WATER_BYTES:
            self._pause()
        self._tell()

    def _next(self) -> bytes:
        piece = self._pieces.popleft()
        self._held -= len(piece)
        return piece

    def _pause(self) -> None:
        if not self._paused and self._connection.open:
            self._paused = True
            self._connection.transport.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._heard = self._loop.time()
            self._connection.transport.resume_reading()

    async def _news(self) -> None:
        """Wait for what is told next."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _framed(self) -> bool:
        """Whether the headers say where the body ends; else the connection's end is its end."""
        return any(name.lower() in _FRAMED for name, _ in self.headers)

    def _watch(self) -> None:
        """Look whether the service has been silent for too long; what it still takes of the request counts too."""
        assert self._timeout is not None
        now, unsent = self._loop.time(), self._connection.transport.get_write_buffer_size()
        if self._paused or unsent < self._unsent:
            self._heard = now
        self._unsent = unsent
        left = self._heard + self._timeout - now
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
        else:
            self.fail(httpx2.ReadTimeout(f"Nothing came for {self._timeout:g} s."))

    def _stop_watch(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
