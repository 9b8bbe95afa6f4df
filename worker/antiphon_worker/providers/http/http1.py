"""One HTTP/1.1 connection to a model service, which sends requests one after the other.

Data is processed where it is read, without waking a task for each piece. llhttp parses the protocol.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from typing import cast

import httptools
import httpx2

HIGH_WATER_BYTES = 256 * 1024
MOST_HEAD_BYTES = 1024 * 1024
MOST_ERROR_BYTES = 1024 * 1024
PIECE_BYTES = 64 * 1024  # a request is passed to the transport in pieces, so that its rest shows progress
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_NOTHING = memoryview(b"")


class Http1Connection(asyncio.Protocol):
    """A connection.

    It calls ``ended`` after an exchange, with whether another one may follow, and ``lost`` when it is closed.
    """

    __slots__ = ("_ended", "_exchange", "_full", "_lost", "_request", "_rest", "transport")

    def __init__(
        self, ended: Callable[[Http1Connection, bool], None], lost: Callable[[Http1Connection], None]
    ) -> None:
        self._ended = ended
        self._lost = lost
        self._exchange: Exchange | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._request = _NOTHING  # not passed to the transport yet
        self._full = False  # the transport is full for now

    @property
    def open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def unsent(self) -> int:
        """Return how many bytes of the request are not sent yet."""
        return len(self._request) + self.transport.get_write_buffer_size()

    def begin(self, request: bytes, timeout: float | None) -> Exchange:
        """Send a request. ``timeout`` is the longest silence in seconds until its answer is over."""
        self._stop_rest()
        self._request = memoryview(request)
        self._write()
        self._exchange = exchange = Exchange(self, timeout)
        return exchange

    def end(self, *, reusable: bool) -> None:
        """End the exchange."""
        reusable = reusable and self.open and not self.unsent
        if not reusable:
            self._request = _NOTHING
            self.transport.abort()
        else:
            self.transport.resume_reading()
        self._exchange = None
        self._ended(self, reusable)

    def abort(self) -> None:
        """Close it now. An exchange under way ends with an error."""
        if self._exchange is not None:
            self._exchange.fail(httpx2.ReadError("The connections were closed."))
        else:
            self.transport.abort()

    def rest(self, seconds: float) -> None:
        """Close it, unless it is used within this time."""
        self._rest = asyncio.get_running_loop().call_later(seconds, self.transport.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.feed(data)
        else:
            self.transport.abort()  # the service sent it unasked

    def eof_received(self) -> None:
        if self._exchange is not None:
            self._exchange.broken(None)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_rest()
        self._lost(self)
        if self._exchange is not None:
            self._exchange.broken(exc)

    def _write(self) -> None:
        """Pass as much of the request to the transport as it takes."""
        while self._request and not self._full:
            piece, self._request = self._request[:PIECE_BYTES], self._request[PIECE_BYTES:] or _NOTHING
            self.transport.write(piece)

    def _stop_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None


class Exchange(httpx2.AsyncByteStream):
    """A request and its answer. Await ``head``, then read the body with ``into`` or by iteration."""

    __slots__ = (
        "_connection", "_error", "_framed", "_framing_bytes", "_heard", "_held", "_loop", "_odd", "_over", "_parser",
        "_paused", "_pieces", "_resting", "_take", "_timeout", "_unsent", "_waiter", "_watchdog", "_whole", "headers",
        "reason", "status",
    )  # fmt: skip

    def __init__(self, connection: Http1Connection, timeout: float | None) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as browsers, because not all services are strict.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._framing_bytes = 1  # since the last piece of the body; 0 right after a piece
        self._take: Callable[[bytes], bool] | None = None
        self._pieces: list[bytes] = []  # few: an empty deque takes as much memory as this whole exchange
        self._held = 0  # bytes in them
        self._paused = False  # because the reader has enough
        self._resting = False  # so that what arrives is read together
        self._over = False  # no more data is expected
        self._whole = False  # the answer is complete
        self._framed = False  # the headers define the end of the body: otherwise it ends with the connection
        self._odd = False  # the two sides may disagree about what was sent: no further request is sent
        self._error: BaseException | None = None  # why the exchange failed
        self._waiter: asyncio.Future[None] | None = None
        self._timeout = timeout
        self._heard = self._loop.time()
        self._unsent = connection.unsent
        self._watchdog = self._loop.call_later(timeout, self._watch) if timeout else None

    async def head(self) -> None:
        """Wait until the status and the headers have arrived."""
        while not (self.status or self._over):
            await self._news()
        if not self.status:
            raise self._failure()

    @property
    def encoded(self) -> bool:
        """Return whether the body is compressed."""
        return any(name.lower() == b"content-encoding" for name, _ in self.headers)

    async def into(self, take: Callable[[bytes], bool]) -> bool:
        """Pass each piece of the body to ``take`` as it arrives, until ``take`` returns False or the body ends.

        Returns True at the end of the body. After False, the next call continues. Raises the errors of ``take`` and of
        httpx; then the connection is closed.
        """
        try:
            while self._pieces:
                if not take(self._next()):
                    return False
        except BaseException:
            await self.aclose()
            raise
        if not self._over:
            self._take = take
            self._resume()
            try:
                await self._news()
            finally:
                self._take = None
        return self._ended()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Iterate over the pieces of the body. The body of an error is cut off at a limit."""
        left = MOST_ERROR_BYTES if self.status >= 300 else math.inf
        while True:
            while self._pieces:
                left -= len(self._pieces[0])
                yield self._next()
            if self._ended():
                return
            if left < 0:
                await self.aclose()
                return
            self._resume()
            await self._news()

    async def aclose(self) -> None:
        """Discard the rest of the answer, and close the connection if the answer is not over."""
        self._pieces.clear()
        self.fail(httpx2.ReadError("The answer was closed."))

    def pause(self) -> None:
        """Leave what arrives in the socket until ``resume``. Does nothing once the answer is over."""
        if not self._over and self._connection.open:
            self._resting = True
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        """Read again what ``pause`` has left in the socket."""
        if self._resting:
            self._resting = False
            if not self._over and not self._paused:
                self._connection.transport.resume_reading()

    def feed(self, data: bytes) -> None:
        """Take data from the connection."""
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.fail(httpx2.RemoteProtocolError(f"This is not HTTP: {exc}"))
        if self._framing_bytes:
            self._count_framing(len(data))
        else:
            self._framing_bytes = 1

    def broken(self, exc: Exception | None) -> None:
        """Record that the connection is closed or that the service sends no more."""
        if exc is not None:
            self.fail(httpx2.ReadError(str(exc) or type(exc).__name__))
        elif not self.status:
            self.fail(httpx2.RemoteProtocolError("The server closed the connection without an answer."))
        elif self._framed:
            self.fail(httpx2.RemoteProtocolError("The server closed the connection before the answer's end."))
        elif not self._over:
            self._whole = True
            self._end(reusable=False)

    def fail(self, error: BaseException) -> None:
        """End the exchange with an error and close the connection, unless the exchange is over."""
        if not self._over:
            self._error = error
            self._end(reusable=False)

    def on_message_begin(self) -> None:
        if self._over:
            self._connection.abort()
            raise ValueError("it sent more than requested")  # stops the parser

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it is a trailer
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:
            self.fail(httpx2.RemoteProtocolError("The server asks for another protocol."))
        elif status < 100:
            self.fail(httpx2.RemoteProtocolError(f"This is not HTTP: the status is {status}."))
        elif status < 200:  # another head follows
            self.headers, self.reason = [], b""
            self._odd = True  # it was not requested
        else:
            self.status = status
            self._note_framing()
            self._framing_bytes = 0
            self._tell()

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        take = self._take
        if take is None:
            self._hold(data)
            return
        try:
            if take(data):
                return
        except BaseException as exc:  # ``into`` raises it
            self.fail(exc)
            raise  # stops the parser
        self._take = None
        self._pause()
        self._tell()

    def on_message_complete(self) -> None:
        if self.status and not self._over:
            self._whole = True
            self._end(reusable=self._parser.should_keep_alive() and not self._odd)

    def _end(self, *, reusable: bool) -> None:
        self._over = True
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        del self._parser  # which holds this exchange
        self._connection.end(reusable=reusable)
        self._tell()

    def _ended(self) -> bool:
        """Return whether the body was read to its end. Raises the error of the exchange."""
        if self._over and not self._whole:
            raise self._failure()
        return self._over and not self._pieces

    def _failure(self) -> BaseException:
        """Return the error, and forget it: its frames refer to this exchange, which would be a cycle."""
        error, self._error = self._error, None
        return error or httpx2.ReadError("The answer has failed.")

    def _count_framing(self, size: int) -> None:
        """Headers, chunk extensions and trailers in a row may not exceed a limit."""
        self._framing_bytes += size
        if self._framing_bytes > MOST_HEAD_BYTES:
            self.fail(
                httpx2.RemoteProtocolError(
                    f"This is not HTTP: its headers are longer than {MOST_HEAD_BYTES} bytes"
                )
            )

    def _hold(self, data: bytes) -> None:
        """Keep a piece until it is read."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held > HIGH_WATER_BYTES:
            self._pause()
        if self._waiter is not None:
            self._tell()

    def _next(self) -> bytes:
        piece = self._pieces.pop(0)
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
            if not self._resting:
                self._connection.transport.resume_reading()

    async def _news(self) -> None:
        """Wait until the exchange changes."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _tell(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _note_framing(self) -> None:
        """Note whether the headers define the end of the body, and whether another reader could see it elsewhere."""
        framing = [(name.lower(), value.lower()) for name, value in self.headers if name.lower() in _FRAMING]
        encodings = [value for name, value in framing if name == b"transfer-encoding"]
        self._framed = len(encodings) < len(framing) or any(b"chunked" in one for one in encodings)
        old = self._parser.get_http_version() < "1.1" and bool(encodings)
        odd = old or len(framing) > 1 or (self.status == 204 and bool(framing))
        self._odd = self._odd or self._connection.unsent > 0 or odd

    def _watch(self) -> None:
        """Check whether the service has been silent for too long. Reading more of the request is not silence."""
        assert self._timeout is not None
        now, unsent = self._loop.time(), self._connection.unsent
        if self._paused or self._resting or unsent < self._unsent:
            self._heard = now
        self._unsent = unsent
        left = self._heard + self._timeout - now
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
        else:
            self.fail(httpx2.ReadTimeout(f"Nothing came for {self._timeout:g} s."))
