"""The part of HTTP/1.1 that this server needs, as an asyncio protocol.

Connections are kept alive. Requests that arrive while one is being answered wait in the buffer, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, cast

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\nx-request-id: %b\r\nrequest-id: %b\r\n%b\r\n"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request; the names of ``headers`` are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    query: str = ""


class Server(Protocol):
    """Serves requests. ``answer`` ends with ``respond``, ``end_stream`` or ``close``, now or later."""

    def opened(self, connection: Connection) -> None: ...

    def answer(self, connection: Connection, request: Request) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: Request | None = None
        self._body_length = 0
        self._busy = False
        self.writable = True
        # Called when the client can take more, and when it has disconnected.
        self.on_writable: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._buffer.clear()
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer. Then the connection is free for the next request."""
        lines = [
            f"HTTP/1.1 {status} {_reason(status)}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self._free()

    def begin_stream(self, request_id: str, headers: Mapping[str, str] | None = None) -> None:
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self.write(_STREAM_HEAD % (request_id.encode(), request_id.encode(), more.encode()))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def end_stream(self) -> None:
        self.write(b"0\r\n\r\n")
        self._free()

    def close(self) -> None:
        """Send what is written, then close in the middle of the answer."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, without sending the rest."""
        if self._transport is not None:
            self._transport.abort()

    def _free(self) -> None:
        self.on_writable = self.on_gone = None
        self._busy = False
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Serve the next request if it is whole and no other is being served."""
        if self._busy or self._transport is None:
            return
        if self._head is None and not self._read_head():
            return
        if self._head is None or len(self._buffer) < self._body_length:
            return
        head, self._head = self._head, None
        body = bytes(self._buffer[: self._body_length])
        del self._buffer[: self._body_length]
        self._busy = True
        self._server.answer(self, Request(head.method, head.path, head.headers, body, head.query))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431, "The head of the request is too large.")
            return False
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        request = first.split(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        length = headers.get("content-length", "0")
        if len(request) != 3 or not length.isdigit() or int(length) > MAX_BODY:
            self._refuse(400, "The request is not valid HTTP.")
        elif "transfer-encoding" in headers:
            self._refuse(411, "Send the request with its content-length.")
        else:
            path, _, query = request[1].partition("?")
            self._head = Request(request[0], path, headers, b"", query)
            self._body_length = int(length)
            if headers.get("expect", "").lower() == "100-continue":
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._head is not None

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close, because the beginning of the next request in the buffer is unknown."""
        self._busy = True
        self._buffer.clear()
        self.respond(status, b'{"error":{"message":"%b"}}' % message.encode(), {"connection": "close"})
        self.close()


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded"
