"""The connection to a server over streamable HTTP.

All users of a server share its pool of network connections, and nothing above it: headers, cookies and the protocol
session belong to one user. A request that fails becomes an answer with its reason, because the library would
otherwise end the connection with all of its calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import msgspec
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from antiphon.input.limits import LIMITS
from antiphon.mcp import MCP
from antiphon_worker.mcp.credentials import Credentials

LEAVE_SECONDS = 2.0
MOST_CONNECTIONS = 100
IDLE_SECONDS = 3.0
"""A network connection is reused within this time: many servers close theirs after 5 s, perhaps during a call."""
REFUSED, UNREACHABLE = -32603, -32050
"""The error codes for a refused request, and for a server that cannot be reached."""
_STATUS = {
    401: "it refused the credentials (401)",
    403: "it refused access (403)",
    407: "a proxy refused access (407)",
    429: "it received too many requests (429)",
}
_AWAY = {502, 503, 504}
"""The statuses that a load balancer returns while a server is briefly unavailable."""


class TooLarge(httpx2.StreamError):
    """An answer exceeds its limit."""


def network_pool() -> httpx2.AsyncHTTPTransport:
    """Return the network connections to one server. Reads certificates, which takes a moment."""
    limits = httpx2.Limits(max_connections=MOST_CONNECTIONS, keepalive_expiry=IDLE_SECONDS)
    return httpx2.AsyncHTTPTransport(limits=limits)


def http_transport(server: MCP, pool: httpx2.AsyncBaseTransport, credentials: Credentials) -> Transport:
    """Return a transport for one user of a server."""

    @asynccontextmanager
    async def transport() -> AsyncGenerator[tuple[object, object]]:
        timeout = httpx2.Timeout(server.connect_timeout, read=None)
        own = _OfOneUser(server, pool, credentials)
        async with (
            httpx2.AsyncClient(transport=own, timeout=timeout) as client,
            streamable_http_client(
                server.url, http_client=client, max_sse_event_size=LIMITS.mcp_bytes
            ) as streams,
        ):
            yield streams

    return transport()  # type: ignore[return-value]


class _OfOneUser(httpx2.AsyncBaseTransport):
    """Sends requests with the credentials of one user, through a shared pool."""

    def __init__(self, server: MCP, pool: httpx2.AsyncBaseTransport, credentials: Credentials) -> None:
        self._server, self._pool, self._credentials = server, pool, credentials
        self._origin = _origin(httpx2.URL(server.url))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "last-event-id" not in request.headers:
            return httpx2.Response(405, request=request)  # a stream of messages that belong to no call
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(LEAVE_SECONDS).as_dict()
        if _origin(request.url) == self._origin:  # and not where it may redirect to
            request.headers.update({**self._server.headers, **self._credentials.headers})
        request.headers["accept-encoding"] = "identity"  # small compressed answers may be huge when unpacked
        try:
            response = await self._pool.handle_async_request(request)
        except (httpx2.HTTPError, OSError) as exc:
            return _failed(request, f"it cannot be reached ({type(exc).__name__})", UNREACHABLE, 503)
        if response.status_code in _STATUS:
            await response.aclose()
            return _failed(request, _STATUS[response.status_code], REFUSED, response.status_code)
        if response.status_code in _AWAY:
            await response.aclose()
            return _failed(request, f"it is away ({response.status_code})", UNREACHABLE, response.status_code)
        if not _is_plain(response):
            await response.aclose()
            return _failed(request, "it sent a compressed answer", REFUSED, 502)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Bounded(response.stream, LIMITS.mcp_bytes)
        return response

    async def aclose(self) -> None:
        """Leave the pool open for others."""


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _is_plain(response: httpx2.Response) -> bool:
    return {*response.headers.get_list("content-encoding", split_commas=True)} <= {"", "identity"}


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to a number of bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream, self._most = stream, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > self._most:
                raise TooLarge(f"the answer has more than {self._most} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _failed(request: httpx2.Request, reason: str, code: int, status: int) -> httpx2.Response:
    """Return an answer with an error, which the library passes to the call of this request."""
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": reason}})
    return httpx2.Response(
        status, headers={"content-type": "application/json"}, content=body, request=request
    )
