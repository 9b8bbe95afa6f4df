"""One connection of a client. The head of a request must be small and arrive in time.

uvicorn limits the pause between two requests, and the gateway limits the time of a body. Without a limit for heads, one
that arrives byte by byte would hold its connection forever.

Most connections of a gateway are idle streams, so each should take little memory: an empty ``deque`` takes 760 bytes,
an ``asyncio.Event`` has one, and an object with more than 30 attributes needs a dictionary of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
LEAVING = "antiphon.leaving"
"""The key in a request's scope of the function that registers what to call when the client leaves."""


class Signal:
    """The part of ``asyncio.Event`` that uvicorn uses."""

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: tuple[asyncio.Future[None], ...] = ()

    def set(self) -> None:
        self._set = True
        for one in self._waiting:
            if not one.done():
                one.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if self._set:
            return
        one = asyncio.get_running_loop().create_future()
        self._waiting += (one,)
        try:
            await one
        finally:
            self._waiting = tuple(waiting for waiting in self._waiting if waiting is not one)


class _Flow(FlowControl):
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._is_writable_event: Any = Signal()
        self._is_writable_event.set()


class _Pipeline(list[Any]):
    """Requests that wait for the previous one."""

    __slots__ = ()

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)


class Connection(HttpToolsProtocol):
    """Closes a connection whose head takes longer than ``HEAD_SECONDS``, or has more than ``HEAD_BYTES``.

    Chunk extensions and trailers count as well. Trailers, which may follow a chunked body, are dropped: as headers,
    some programs would read them and others would not. White space after a value is removed: the parser keeps it.
    """

    __slots__ = ("_framing_bytes", "_head", "_leaving", "_trailers")

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.pipeline: Any = _Pipeline()
        self._leaving: Callable[[], None] | None = None
        self._head: asyncio.TimerHandle | None = None
        self._framing_bytes = 0  # since the last piece of a body
        self._trailers = False  # whether headers are trailers from now on

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        _send_at_once(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)
        if self._leaving is not None:
            self._leaving()

    def data_received(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._trailers = False
        self._begin()
        super().on_message_begin()
        self.scope["asgi"] = _asgi.setdefault(self.asgi_version, self.scope["asgi"])

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._trailers:
            super().on_header(name, value.strip(b" \t"))

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._trailers = True
        self._end()
        self.scope[LEAVING] = self._on_leaving  # type: ignore[typeddict-unknown-key]
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.message_event = Signal()  # type: ignore[assignment]

    def _on_leaving(self, call: Callable[[], None] | None) -> None:
        self._leaving = call
        self.flow.resume_reading()  # or its end would not be read
        if call is not None and self.transport.is_closing():
            call()

    def _begin(self) -> None:
        """Start the time limit of a head: when the connection begins, or at the first byte of a further request."""
        if self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self._late)

    def _late(self) -> None:
        self._head = None
        self.transport.close()

    def _end(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head, self._framing_bytes = None, 0


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket. A handshake refused with a response is marked as complete: uvicorn would log it as an error."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True


_asgi: dict[str, Any] = {}
"""The ``asgi`` entries of scopes, by version, shared by all requests."""


def _send_at_once(transport: asyncio.Transport) -> None:
    """Do not delay a piece of an answer until the client acknowledges the previous one, which takes 40 ms.

    asyncio sets this option for sockets that name their protocol. Those of ``socket.create_server`` do not.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family != getattr(socket, "AF_UNIX", None):
        with suppress(OSError):  # it has ended
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
