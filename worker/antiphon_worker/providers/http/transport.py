"""Connections to model services: a pool of direct ones, and those through proxies."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.request import getproxies, proxy_bypass

import httpx2

from antiphon.errors import ProviderRejected
from antiphon.input.parameters import is_header_name, is_transport_header
from antiphon_worker.providers.http.addresses import reached
from antiphon_worker.providers.http.first_attempts import Like, Origin, current
from antiphon_worker.providers.http.http1 import Exchange, Http1Connection

_EXCHANGE = "antiphon.exchange"
_PORTS = {"http": 80, "https": 443}
# A model may think for minutes. Routers on the way must not take a silent connection for a dead one.
_KEEP_ALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60), ("TCP_KEEPCNT", 5))
    if hasattr(socket, name)
]


class DirectTransport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 over at most ``max_connections`` connections; an idle one is closed after ``keepalive`` seconds.

    ``allowed`` returns whether an IP address may be connected to.
    """

    def __init__(
        self, *, max_connections: int, keepalive: float, allowed: Callable[[str], bool] | None = None
    ) -> None:
        self._allowed = allowed
        self._room = asyncio.Semaphore(max_connections)
        self._most = max_connections
        self._busy = 0  # how many requests hold a place
        self._keepalive = keepalive
        self._origins: dict[Http1Connection, Origin] = {}
        self._idle: defaultdict[Origin, dict[Http1Connection, None]] = defaultdict(dict)
        self._tls: ssl.SSLContext | None = None
        self._closed = False
        self._last_gone = asyncio.Event()
        self._told = self._ended, self._lost  # shared by all connections: each bound method takes 64 bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        attempt = current()
        if attempt is not None and attempt.made:
            return _response(attempt.outcome())
        origin, body = _origin(request), await request.aread()
        server_name = request.extensions.get("sni_hostname") or origin[1]
        like = Like(self, origin, server_name, _head(request), request.extensions.get("timeout", {}))
        exchange = await self.send(like, body)
        if attempt is not None and 200 <= exchange.status < 300:
            attempt.like = like
        return _response(exchange)

    async def send(self, like: Like, body: bytes) -> Exchange:
        """Send a request, and return its exchange when the head of the answer has arrived. Raises httpx2's errors."""
        timeouts = like.timeouts
        await self._enter(timeouts.get("pool"))
        try:
            connection = self._rested(like.origin)
            if connection is None:
                connection = await self._connect(like.origin, like.server_name, timeouts.get("connect"))
        except BaseException:
            self._leave()
            raise
        message = b"%bContent-Length: %d\r\n\r\n%b" % (like.head, len(body), body)
        exchange = connection.begin(message, timeouts.get("read"))
        try:
            await exchange.head()
        except BaseException:
            await exchange.aclose()
            raise
        return exchange

    async def aclose(self) -> None:
        """Close all connections, and return when they are closed. Requests under way end with an error."""
        self._closed = True
        for connection in list(self._origins):
            connection.abort()
        self._last_gone.clear()
        if (
            self._origins
        ):  # the loop closes them in its next iterations, so run some now: there may be no later ones
            await self._last_gone.wait()

    async def _enter(self, timeout: float | None) -> None:
        """Wait until there is room for one more request."""
        if not self._room.locked():
            await self._room.acquire()
        else:
            try:
                async with asyncio.timeout(timeout):
                    await self._room.acquire()
            except TimeoutError:
                raise httpx2.PoolTimeout(f"No connection was free for {timeout:g} s.") from None
        self._busy += 1

    def _leave(self) -> None:
        self._busy -= 1
        self._room.release()

    def _rested(self, origin: Origin) -> Http1Connection | None:
        """Return the idle connection that was used last."""
        idle = self._idle[origin]
        while idle:
            connection, _ = idle.popitem()
            if connection.open and not _has_come(connection):
                return connection
        return None

    async def _connect(self, origin: Origin, name: str, timeout: float | None) -> Http1Connection:
        if self._closed:
            raise httpx2.ConnectError("The connections were closed.")
        self._make_way()
        scheme, host, port = origin
        tls = self._tls_context() if scheme == "https" else None
        try:
            async with asyncio.timeout(timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Http1Connection(*self._told),
                    sock=await reached(host, port, self._allowed), ssl=tls, server_hostname=name if tls else None,
                )  # fmt: skip
        except TimeoutError:
            raise httpx2.ConnectTimeout(f"{host}:{port} did not answer.") from None
        except OSError as exc:
            raise httpx2.ConnectError(str(exc)) from exc
        except UnicodeError as exc:
            raise httpx2.InvalidURL(f"{host} is not a valid host name: {exc}") from exc
        if self._closed or not connection.open:
            connection.abort()
            raise httpx2.ConnectError("The connection was closed as soon as it was open.")
        for option in _KEEP_ALIVE:
            _socket(connection).setsockopt(*option)
        self._origins[connection] = origin
        return connection

    def _make_way(self) -> None:
        """Close an idle connection to another host if one more would be too many."""
        idle = [connection for idle in self._idle.values() for connection in idle]
        if len(idle) + self._busy > self._most:
            self._lost(idle[0])
            idle[0].abort()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            try:
                self._tls = httpx2.create_ssl_context()
            except OSError as exc:
                raise httpx2.ConnectError(
                    f"the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {exc}"
                ) from None
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _ended(self, connection: Http1Connection, reusable: bool) -> None:
        self._leave()
        if reusable:
            self._idle[self._origins[connection]][connection] = None
            connection.rest(self._keepalive)

    def _lost(self, connection: Http1Connection) -> None:
        origin = self._origins.pop(connection, None)
        if origin is not None:
            self._idle[origin].pop(connection, None)
        if not self._origins:
            self._last_gone.set()


def _response(exchange: Exchange) -> httpx2.Response:
    extensions = {"http_version": b"HTTP/1.1", "reason_phrase": exchange.reason, _EXCHANGE: exchange}
    headers, exchange.headers = exchange.headers, []
    response = httpx2.Response(exchange.status, headers=headers, stream=exchange, extensions=extensions)
    if b"".join([value for _, value in headers]).isascii():
        response.headers.encoding = "ascii"  # else httpx2 looks for it in each header
    return response


def exchange_of(response: httpx2.Response) -> Exchange | None:
    """Return the exchange of a response, or None if it came over another transport."""
    return response.extensions.get(_EXCHANGE)


def _origin(request: httpx2.Request) -> Origin:
    url = request.url
    if url.scheme not in _PORTS:
        raise httpx2.UnsupportedProtocol(f"The URL {str(url)!r} must begin with http:// or https://.")
    if not url.host:
        raise httpx2.UnsupportedProtocol(f"The URL {str(url)!r} has no host.")
    return url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]


def _socket(connection: Http1Connection) -> socket.socket:
    return connection.transport.get_extra_info("socket")


def _has_come(connection: Http1Connection) -> bool:
    """Return whether an idle connection has data to read, such as its end, which this loop has not handled yet."""
    if not hasattr(select, "poll"):  # on Windows, the request notices it
        return False
    poll = select.poll()
    poll.register(_socket(connection).fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _head(request: httpx2.Request) -> bytes:
    """Return the head of a request up to the length of its body."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in framed(request.url.netloc, request.headers.raw)]
    return b"\r\n".join([*lines, b""])


def framed(host: bytes, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers to send, except the length. The transport sets host, length and connection itself.

    Raises ``ValueError`` for a header that would not stay on its line.
    """
    given = [*headers]
    if _LINE_END.search(b"".join([value for _, value in given])):
        name = next(name for name, value in given if _LINE_END.search(value))
        raise ValueError(f"the value of the header {name[:80]!r} contains a line break or a null character")
    return [(b"Host", host), *(header for header in given if _is_sent(header[0]))]


_LINE_END = re.compile(rb"[\r\n\0]")


@lru_cache(maxsize=1024)
def _is_sent(name: bytes) -> bool:
    """Return True if the transport sends this header as it was given. Raises ``ValueError`` for an invalid name."""
    text = name.decode("latin-1")
    if not is_header_name(text):
        raise ValueError(f"{text[:80]!r} is not a valid name of a header")
    return not is_transport_header(text) or text.lower() in _SAYS_WHAT_IT_HOLDS


# Headers with which the SDKs describe the body and the answer. Nothing else sets them.
_SAYS_WHAT_IT_HOLDS = frozenset({"accept", "accept-encoding", "content-type"})


_SCHEMES = ("http", "https", "socks5", "socks5h")


def proxies_of(given: str | None, *, environment: bool) -> dict[str, str]:
    """Return the proxies by the scheme of the URL: the given one for all, or those of the environment.

    A proxy without a scheme is an HTTP proxy.
    """
    found = {"all": given} if given else getproxies() if environment else {}
    return {
        scheme: proxy if "://" in proxy else f"http://{proxy}"
        for scheme, proxy in found.items()
        if scheme in ("http", "https", "all")
    }


class ProxyRoutes(httpx2.AsyncBaseTransport):
    """Sends through ``proxies``, or through ``direct`` if a URL has no proxy or ``NO_PROXY`` contains its host.

    A proxy that was ``given`` is used for every host. Raises ``ProviderRejected`` for an invalid proxy: at once if it
    was given, else on its first use.
    """

    def __init__(
        self,
        direct: httpx2.AsyncBaseTransport,
        proxies: dict[str, str],
        limits: httpx2.Limits,
        *,
        given: bool,
    ) -> None:
        self._direct = direct
        self._proxies = proxies
        self._limits = limits
        self._given = given
        self._routes: dict[str, httpx2.AsyncBaseTransport] = {}
        if given:
            self._through("all")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        scheme = url.scheme if url.scheme in self._proxies else "all"
        direct = scheme not in self._proxies or (not self._given and _bypasses(url))
        route = self._direct if direct else self._through(scheme)
        return await route.handle_async_request(request)

    async def aclose(self) -> None:
        for transport in (self._direct, *self._routes.values()):
            await transport.aclose()

    def _through(self, scheme: str) -> httpx2.AsyncBaseTransport:
        if scheme not in self._routes:
            name = "proxy" if self._given else f"{scheme.upper()}_PROXY"
            self._routes[scheme] = _transport(name, self._proxies[scheme], self._limits)
        return self._routes[scheme]


def _bypasses(url: httpx2.URL) -> bool:
    """Return whether ``NO_PROXY`` contains this host, with or without its port."""
    port = url.port or (443 if url.scheme == "https" else 80)
    return bool(proxy_bypass(url.host if ":" in url.host else f"{url.host}:{port}"))


def _transport(name: str, proxy: str, limits: httpx2.Limits) -> httpx2.AsyncBaseTransport:
    try:
        url = httpx2.URL(proxy)
        if url.scheme in _SCHEMES and url.host:
            return httpx2.AsyncHTTPTransport(proxy=url, limits=limits)
    except ImportError:
        raise ProviderRejected(
            f"The SOCKS proxy in {name} needs another package: pip install socksio."
        ) from None
    except httpx2.InvalidURL:
        pass  # its text may hold a password
    raise ProviderRejected(
        f"{name} is not the URL of a proxy: write http://, https:// or socks5:// and a host, as in "
        "http://proxy.example:3128."
    )
