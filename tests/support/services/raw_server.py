"""A server that sends exactly the bytes of a test: a coroutine plays each connection."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TypeAlias

import httpx2
from support.services.server import Server

from antiphon_worker.providers.http.http1 import Exchange
from antiphon_worker.providers.http.transport import DirectTransport, exchange_of


class RawConnection:
    """The server's side of one connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.requests: list[tuple[bytes, bytes]] = []

    async def request(self) -> tuple[bytes, bytes]:
        """Return the head and body of the next request."""
        head = await self.head()
        length = next(
            (line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0"
        )
        body = await self.reader.readexactly(int(length))
        self.requests.append((head, body))
        return head, body

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def send(self, *pieces: bytes) -> None:
        """Send each piece separately: the loop reads it before the next one is sent."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def closed(self) -> None:
        """Return when the client has closed, or cut, the connection."""
        try:
            while await self.reader.read(65536):
                continue
        except ConnectionError:
            pass

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close the connection so that the other side sees a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Play: TypeAlias = Callable[[RawConnection], Awaitable[None]]


class RawServer(Server):
    """``async with RawServer(play) as server``: ``play`` runs for each connection, then closes it."""

    def __init__(
        self, play: Play, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, limit: int = 1 << 26
    ) -> None:
        super().__init__(host, tls)
        self._play = play
        self.limit = limit
        self.connections: list[RawConnection] = []

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}/"

    @property
    def requests(self) -> list[tuple[int, bytes, bytes]]:
        """The received requests, each with the number of its connection."""
        return [(one.number, *request) for one in self.connections for request in one.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = RawConnection(len(self.connections) + 1, reader, writer)
        self.connections.append(connection)
        await self._play(connection)


@contextmanager
def deaf() -> Generator[int]:
    """Yield a port that accepts no connections, with a full backlog."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def answering(*pieces: bytes, then_close: bool = False) -> Play:
    """Return a play that answers every request with these pieces."""

    async def play(connection: RawConnection) -> None:
        while True:
            await connection.request()
            await connection.send(*pieces)
            if then_close:
                return

    return play


def chunked(*pieces: bytes, head: bytes = b"") -> bytes:
    """Return a whole response in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\n" + head + b"transfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


@asynccontextmanager
async def direct(
    *, most: int = 8, keepalive: float = 30.0, timeout: float | None = 5.0, pool: float | None = 5.0
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Open a client over the tested transport."""
    transport = DirectTransport(max_connections=most, keepalive=keepalive)
    async with httpx2.AsyncClient(
        transport=transport, timeout=httpx2.Timeout(timeout, pool=pool), trust_env=False
    ) as client:
        yield client


async def begun(
    client: httpx2.AsyncClient, url: str, body: bytes = b"{}"
) -> tuple[httpx2.Response, Exchange]:
    """Return a response with an unread body, and its exchange."""
    response = await client.send(client.build_request("POST", url, content=body), stream=True)
    exchange = exchange_of(response)
    assert exchange is not None
    return response, exchange
