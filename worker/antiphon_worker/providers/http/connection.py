"""Sends requests over one pool of connections per provider and event loop, and converts transport errors.

The two modules that own an SDK derive from ``Connection``. They create its client and convert its exceptions.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field

from antiphon.errors import (
    MissingPackage,
    ProviderError,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderTimedOut,
    ProviderUnauthorized,
    ProviderUnreachable,
)
from antiphon.input.extras import is_credential
from antiphon_worker.providers.errors import retry_after
from antiphon_worker.providers.secrets import Secrets, UrlFilter, secrets_in_url, without_keys
from antiphon_worker.providers.stream.json_text import valid

try:
    import httpx2

    from antiphon_worker.providers.http.proxies import ProxyRoutes, proxies_of
    from antiphon_worker.providers.http.transport import DirectTransport, exchange_of
except ImportError as exc:
    raise MissingPackage(
        "Model services need the worker's packages: pip install 'antiphon[worker]'."
    ) from exc

__all__ = [
    "NO_KEY",
    "Answer",
    "ApiKey",
    "Call",
    "Connection",
    "HttpClient",
    "Options",
    "RawResponse",
    "TransportErrors",
    "headers_of",
    "map_transport_error",
]

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A key, or what brings one for each request (rotation)."""

HttpClient: TypeAlias = httpx2.AsyncClient
RawResponse: TypeAlias = httpx2.Response

NO_KEY = "unused"
"""What an SDK is given that asks for a key where there is none, or where each request brings its own."""
FORBID_NETWORK = "ANTIPHON_FORBID_NETWORK"
LONGEST_WAIT_SECONDS = 2.0
_LONGEST_REASON = 300
_SHOULD_RETRY = "x-should-retry"
_OURS = "antiphon_should_retry"
TransportErrors = (
    httpx2.HTTPError,
    httpx2.InvalidURL,
    httpx2.StreamError,
    OSError,
    EOFError,
)


class Options(Struct, frozen=True, kw_only=True):
    """The options for the connection to a model service.

    ``timeout`` is the longest time in seconds without data, before the first byte and between two bytes.
    ``max_retries`` applies to requests without a byte of an answer. Proxies come from ``proxy`` or
    the usual environment variables.
    ``allowed_headers`` are additional names that the ``extra_headers`` of a turn may contain.
    """

    base_url: str | None = None
    api_key: ApiKey | None = None
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = 120.0
    connect_timeout: float = 10.0
    pool_timeout: float = 60.0
    max_retries: int = 1
    max_connections: int = 1024
    keepalive: float = 30.0
    proxy: str | None = None
    max_event_bytes: int = 16 * 1024 * 1024
    max_answer_bytes: int = 128 * 1024 * 1024
    allowed_headers: Sequence[str] = ()

    def __repr__(self) -> str:
        """Leave out keys, headers and addresses, because a repr can end up in logs."""
        return f"Options(timeout={self.timeout:g}, max_retries={self.max_retries}, …)"


class Call(Struct, frozen=True):
    """One request: the path under the base URL, the JSON body, and the caller's additions."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None


class Answer:
    """A successful response whose body has not been read yet."""

    __slots__ = ("_pieces", "_response", "into")

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._pieces: AsyncIterator[bytes] | None = None
        exchange = exchange_of(response) if "content-encoding" not in response.headers else None
        self.into = exchange.into if exchange is not None else self._into
        """Hand each piece of the body to a function, until that says False or the body ends: then it is True."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def aclose(self) -> None:
        await self._response.aclose()

    async def _into(self, take: Callable[[bytes], bool]) -> bool:
        if self._pieces is None:
            self._pieces = self._response.aiter_bytes()
        async for piece in self._pieces:
            if not take(piece):
                return False
        return True


class Connection(ABC):
    """The connection to one model service. It connects on first use, and can be created before a fork."""

    request_id_header: str

    def __init__(self, options: Options) -> None:
        self.options = options
        self._process = os.getpid()
        self._secrets = _secrets_of(options)
        self._home: tuple[str, str, int | None] | None = None  # where the keys may go
        self._clients: dict[asyncio.AbstractEventLoop, Any] = {}

    @abstractmethod
    def make_client(self, http_client: HttpClient) -> Any:
        """A client of the SDK that uses this HTTP client. Raises ``ProviderUnauthorized`` where there is no key."""

    @abstractmethod
    def make_http_client(self, **settings: Any) -> HttpClient:
        """The SDK's HTTP client, as it comes but for these settings."""

    @abstractmethod
    async def post(self, client: Any, call: Call, headers: dict[str, str]) -> RawResponse:
        """Send a request and return the response without reading its body."""

    @abstractmethod
    def map_error(self, provider: str, error: Exception) -> ProviderError | None:
        """Return the error for an exception of the SDK, or None for other exceptions."""

    async def open(self, provider: str, call: Call) -> Answer:
        """Send a request and return its response. Raises ``ProviderError``."""
        try:
            headers = {"Accept-Encoding": "identity", **await self._key_headers(), **call.headers}
            return Answer(await self.post(self.client_of_this_loop(), call, headers))
        except ProviderError as error:
            raise self.publishable(error) from None
        except (*TransportErrors, ValueError, TypeError) as exc:
            raise self.publishable(map_transport_error(provider, exc)) from None
        except Exception as exc:
            error = self.map_error(provider, exc)
            if error is None:
                raise
            raise self.publishable(error) from None

    def publishable(self, error: ProviderError) -> ProviderError:
        """Return the error without the secrets of this connection, and with texts that can be encoded.

        It is raised without its cause: that one's text and fields are whatever a service or library put there.
        """
        error.args = (self.publishable_text(error.message),)
        error.request_id = None if error.request_id is None else self.publishable_text(error.request_id)
        return error

    def publishable_text(self, text: str) -> str:
        """The same for a text."""
        return self._secrets.out_of(valid(text))

    def httpx_timeout(self, call: Call) -> httpx2.Timeout:
        options = self.options
        return httpx2.Timeout(
            connect=options.connect_timeout,
            pool=options.pool_timeout,
            read=call.timeout or options.timeout,
            write=call.timeout or options.timeout,
        )

    async def aclose(self) -> None:
        """Close all connections, also those of other running loops. The next request opens new ones."""
        await self.aclose_here()
        clients, self._clients = self._clients, {}
        for loop, client in clients.items():
            if loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.close(), loop))

    async def aclose_here(self) -> None:
        """Close the connections of the running loop, as a loop that ends must."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def _key_headers(self) -> dict[str, str]:
        key = self.options.api_key
        if key is None or isinstance(key, str):
            return {}
        try:
            found = key()
            if inspect.isawaitable(found):
                found = await found
        except Exception as exc:
            raise ProviderUnauthorized(
                f"The function given as api_key failed with {type(exc).__name__}.", retryable=True
            ) from exc
        if not found:
            raise ProviderUnauthorized("The function given as api_key returned no key.")
        self._secrets.learn(found)
        return {"Authorization": f"Bearer {found}"}

    def client_of_this_loop(self) -> Any:
        """The SDK's client on the running loop, made when it is first asked for."""
        if self._process != os.getpid():
            # Sockets inherited through a fork belong to the parent: they are neither used nor closed here.
            _inherited.append(self._clients)
            self._process, self._clients = os.getpid(), {}
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for other in [other for other in self._clients if other.is_closed()]:
                del self._clients[other]
            client = self._clients[loop] = self.make_client(self._http_client())
            self._home = _place(httpx2.URL(str(client.base_url)))
            for name in ("api_key", "auth_token"):
                key = getattr(client, name, None)
                if isinstance(key, str) and key != NO_KEY:
                    self._secrets.learn(key)
        return client

    def _http_client(self) -> HttpClient:
        forbidden = os.environ.get(FORBID_NETWORK, "") not in ("", "0")
        hooks: dict[str, list[Any]] = {
            "request": [self._keep_keys_at_home],
            "response": [_leave_long_waits_to_the_caller],
        }
        if forbidden:
            hooks["request"].append(_refuse_other_machines)
        return self.make_http_client(
            transport=self._transport(environment=not forbidden), trust_env=not forbidden, event_hooks=hooks
        )

    async def _keep_keys_at_home(self, request: httpx2.Request) -> None:
        """Send no key where the service redirects to another host, port or scheme."""
        if _place(request.url) != self._home:
            for name in [name for name in request.headers if is_credential(name)]:
                del request.headers[name]

    def _transport(self, *, environment: bool) -> httpx2.AsyncBaseTransport:
        """The way out; proxies of the environment count unless only this machine may be reached."""
        options = self.options
        direct = DirectTransport(max_connections=options.max_connections, keepalive=options.keepalive)
        proxies = proxies_of(options.proxy, environment=environment)
        if not proxies:
            return direct
        limits = httpx2.Limits(
            max_connections=options.max_connections,
            max_keepalive_connections=options.max_connections,
            keepalive_expiry=options.keepalive,
        )
        return ProxyRoutes(direct, proxies, limits, given=options.proxy is not None)


logging.getLogger("httpx2").addFilter(UrlFilter())
_inherited: list[Any] = []


def _secrets_of(options: Options) -> Secrets:
    urls = [url for url in (options.base_url, options.proxy) if url]
    secrets = Secrets([*options.headers.values(), *(value for url in urls for value in secrets_in_url(url))])
    for name, value in options.headers.items():
        if is_credential(name):
            secrets.learn(value.rpartition(" ")[2])
    if isinstance(options.api_key, str):
        secrets.learn(options.api_key)
    return secrets


def _place(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _refuse_other_machines(request: httpx2.Request) -> None:
    host = request.url.host
    try:
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here:
        raise ProviderRejected(
            f"{FORBID_NETWORK} is set and forbids requests to {host}. Unset it, or use provider='scripted'."
        )


async def _leave_long_waits_to_the_caller(response: httpx2.Response) -> None:
    """Keep the SDK from waiting where the service asks for long: the worker can do something else meanwhile."""
    wait = retry_after(response.headers) if response.status_code >= 400 else None
    if wait is not None and wait > LONGEST_WAIT_SECONDS and _SHOULD_RETRY not in response.headers:
        response.headers[_SHOULD_RETRY] = "false"
        response.extensions[_OURS] = True


def headers_of(response: RawResponse) -> Mapping[str, str]:
    """The headers of a response as the service sent them."""
    headers = dict(response.headers)
    if response.extensions.get(_OURS):
        del headers[_SHOULD_RETRY]
    return headers


def map_transport_error(provider: str, error: BaseException, *, begun: bool = False) -> ProviderError:
    """Our error for a failed connection; ``begun`` when a part of the answer had already come."""
    causes = list(_causes(error))
    if any(isinstance(cause, httpx2.InvalidURL | httpx2.UnsupportedProtocol) for cause in causes):
        return ProviderRejected(
            f"The base URL of {provider} is not one: it is http:// or https://, a host, and a path where the service "
            "has one. Correct base_url."
        )
    if any(isinstance(cause, ValueError | TypeError) and not isinstance(cause, OSError) for cause in causes):
        return ProviderRejected(
            f"The request to {provider} cannot be sent: {_said(causes)}. Correct key and headers."
        )
    if any(isinstance(cause, httpx2.TimeoutException | TimeoutError) for cause in causes):
        return ProviderTimedOut(f"{provider} sent nothing before the timeout. Try again later.")
    if begun:
        return ProviderStreamBroken(f"The answer of {provider} was cut off: {_said(causes)}.")
    return ProviderUnreachable(
        f"No connection to {provider}: {_said(causes)}. Check base_url, the network and the proxy."
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return causes


def _said(causes: list[BaseException]) -> str:
    last = causes[-1]
    return without_keys(" ".join((str(last) or type(last).__name__).split())[:_LONGEST_REASON]).rstrip(".")
