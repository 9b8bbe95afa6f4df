"""Sends requests over one pool of connections per provider and event loop, and converts transport errors.

The modules that use an SDK derive from ``Connection`` and create its client.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import ipaddress
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeAlias

from msgspec import Struct, field

from antiphon.errors import (
    MissingPackage,
    ProviderError,
    ProviderRejected,
    ProviderUnauthorized,
)
from antiphon.input.parameters import is_credential
from antiphon_worker.providers.base import Source
from antiphon_worker.providers.errors import retry_after
from antiphon_worker.providers.http.limits import Gate, pressure_of, pressure_of_error, scope_of
from antiphon_worker.providers.secrets import SHORTEST, Secrets, UrlFilter, secrets_in_url, without_keys
from antiphon_worker.providers.stream.json_text import valid

try:
    import httpx2

    from antiphon_worker.providers.http.failures import (
        OURS,
        SHOULD_RETRY,
        RawResponse,
        TransportErrors,
        headers_of_error,
        map_sdk_error,
        map_transport_error,
    )
    from antiphon_worker.providers.http.first_attempts import Attempt, Kinds
    from antiphon_worker.providers.http.http1 import Exchange
    from antiphon_worker.providers.http.prepared import options_of, prepare_requests
    from antiphon_worker.providers.http.transport import DirectTransport, ProxyRoutes, exchange_of, proxies_of
except ImportError as exc:
    raise MissingPackage(
        "Model services need the worker's packages: pip install 'antiphon[worker]'."
    ) from exc

ApiKey: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A key, or a function that returns the key of each request (for rotation)."""

HttpClient: TypeAlias = httpx2.AsyncClient

NO_KEY = "unused"
"""The key for an SDK that requires one, if there is none or each request has its own."""
FORBID_NETWORK = "ANTIPHON_FORBID_NETWORK"
LONGEST_WAIT_SECONDS = 2.0
MOST_SCOPES = 1_000


class Options(Struct, frozen=True, kw_only=True):
    """The options for the connection to a model service.

    ``timeout`` is the longest time in seconds without data, before the first byte and between two bytes.
    ``max_retries`` applies to requests that got no byte of an answer. Proxies come from ``proxy`` or
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


class Upload(Struct, frozen=True):
    """A file to send as a form, with the form's other fields."""

    name: str
    content: bytes
    fields: dict[str, Any] = field(default_factory=dict)


class Call(Struct, frozen=True):
    """One request: the path under the base URL, the JSON body or a file in its place, and the caller's additions.

    With a ``gate``, the request waits there for its model's rate limit, and reports the service's limits to it.
    """

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    model: str = ""
    gate: Gate | None = None
    method: Literal["GET", "POST", "DELETE"] = "POST"
    upload: Upload | None = None


class Answer:
    """A successful response whose body has not been read yet."""

    __slots__ = ("_pieces", "aclose", "headers", "into", "source")

    def __init__(
        self,
        headers: Sequence[tuple[bytes, bytes]],
        exchange: Exchange | None,
        response: httpx2.Response | None,
    ) -> None:
        self.headers = headers
        self.source: Source | None = exchange
        if exchange is not None:
            self.into, self.aclose = exchange.into, exchange.aclose
        else:
            assert response is not None
            self._pieces = response.aiter_bytes()
            self.into, self.aclose = self._into, response.aclose
        """``into`` passes each piece of the body to a function, and returns False if it does, True at the end."""

    @classmethod
    def of(cls, response: httpx2.Response) -> Self:
        """Return the answer in a response of an SDK."""
        exchange = exchange_of(response) if "content-encoding" not in response.headers else None
        return cls(response.headers.raw, exchange, response)

    def header(self, name: bytes) -> str:
        """Return the value of a header, or "". The name is in lower case."""
        for known, value in self.headers:
            if known.lower() == name:
                return value.decode("utf-8", "replace")
        return ""

    async def _into(self, take: Callable[[bytes], bool]) -> bool:
        async for piece in self._pieces:
            if not take(piece):
                return False
        return True


class Connection(ABC):
    """The connection to one model service. It connects on first use, and can be created before a fork."""

    sdk: ClassVar[Any]
    """The module of the SDK. Both SDKs have the same names, because one generator makes them."""
    request_id_header: ClassVar[bytes]
    signs: ClassVar[bool] = False
    """True if the SDK computes headers for each request."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._process = os.getpid()
        self._secrets = _secrets_of(options)
        self._home: tuple[str, str, int | None] | None = None  # where keys may be sent
        self._clients: dict[asyncio.AbstractEventLoop, Any] = {}
        self._kinds = Kinds()
        self._gated = False  # calls wait for rate limits
        self._scopes: dict[tuple[str, str], str] = {}  # by model and key

    def fixed_key(self) -> str | None:
        """Return the key for the SDK's client: the given one, ``NO_KEY`` if each request has its own, or None."""
        key = self.options.api_key
        return key if key is None or isinstance(key, str) else NO_KEY

    @abstractmethod
    def make_client(self, http_client: HttpClient) -> Any:
        """Make a client of the SDK that uses this HTTP client. Raises ``ProviderUnauthorized`` if there is no key."""

    def client_settings(self, http_client: HttpClient) -> dict[str, Any]:
        """Return the settings of the SDK's client, except its key."""
        return {
            "base_url": self.options.base_url,
            "default_headers": self.options.headers,
            "max_retries": self.options.max_retries,
            "http_client": http_client,
        }

    async def post(self, client: Any, call: Call, headers: dict[str, str]) -> RawResponse:
        """Send a request and return the response without reading its body."""
        given: dict[str, Any] = {
            "url": call.path,
            "headers": headers,
            "params": call.query,
            "timeout": self.httpx_timeout(call),
        }
        if call.upload is not None:
            given["json_data"] = call.upload.fields
            given["files"] = {"file": (call.upload.name, call.upload.content)}
            given["headers"] = {**headers, "Content-Type": "multipart/form-data"}
        elif call.method == "POST":
            given["content"] = call.body
        options = options_of(self.sdk, call.method).model_copy(update=given)
        return await client.request(RawResponse, options, stream=True, stream_cls=self.sdk.AsyncStream[Any])

    def map_error(self, provider: str, error: Exception) -> ProviderError | None:
        """Return the error for an exception of the SDK, or None for other exceptions."""
        known = map_sdk_error(self.sdk, provider, error)
        if known is None and type(error).__module__.partition(".")[0] == self.sdk.__name__:
            return ProviderRejected(f"{provider}: {without_keys(str(error))}")
        return known

    def check_client(self, client: Any) -> None:  # noqa: B027 - most raise when they are made
        """Raise ``ProviderUnauthorized`` if the SDK's client has no key."""

    async def open(self, provider: str, call: Call) -> Answer:
        """Send a request and return its response. Raises ``ProviderError``."""
        client: Any = None
        headers: dict[str, str] = {}
        try:
            headers = {"Accept-Encoding": "identity", **await self._key_headers(), **call.headers}
            client = self.client_of_this_loop()
            if call.gate is None:
                return await self._send(client, call, headers)
            self._gated = True
            if call.gate.known:
                await call.gate.enter(self._scope(provider, call, headers, client))
            answer = await self._send(client, call, headers)
            if (pressure := pressure_of(answer.headers)) is not None:
                try:
                    await call.gate.heard(self._scope(provider, call, headers, client), pressure)
                except BaseException:  # cancelled: the answer will not be read
                    await answer.aclose()
                    raise
            return answer
        except ProviderError as error:
            raise self.publishable(error) from None
        except (*TransportErrors, ValueError, TypeError) as exc:
            raise self.publishable(map_transport_error(provider, exc)) from None
        except Exception as exc:
            error = self.map_error(provider, exc)
            if error is None:
                raise
            if call.gate is not None and client is not None:
                pressure = pressure_of_error(error, headers_of_error(exc))
                if pressure is not None:
                    await call.gate.heard(self._scope(provider, call, headers, client), pressure)
            raise self.publishable(error) from None

    async def _send(self, client: Any, call: Call, headers: dict[str, str]) -> Answer:
        """Send a request: at first as one of its kind was sent before, and with the SDK unless that succeeds."""
        attempt, kind = Attempt(), self._kind(client, call, headers)
        like = None if kind is None else self._kinds.get(kind)
        if like is not None:
            exchange = await attempt.make(like, call.body)
            if exchange is not None:
                received, exchange.headers = exchange.headers, []
                return Answer(received, exchange, None)
        async with attempt.left_to_the_sdk():
            response = await self.post(client, call, headers)
        if kind is not None and attempt.like is not None and client.custom_auth is None:
            self._kinds.learn(kind, attempt.like)
        return Answer.of(response)

    def _kind(self, client: Any, call: Call, headers: dict[str, str]) -> tuple[object, ...] | None:
        """Return all that the head of a request depends on, or None if it may depend on more."""
        if call.method != "POST" or call.query or call.upload is not None or self.signs:
            return None
        if _http_log.isEnabledFor(logging.INFO):
            return None
        keys = client.api_key, getattr(client, "auth_token", None)
        return (client, call.path, call.timeout, *keys, *headers.items())

    def _scope(self, provider: str, call: Call, headers: Mapping[str, str], client: Any) -> str:
        key = (
            headers.get("Authorization")
            or getattr(client, "api_key", None)
            or getattr(client, "auth_token", None)
            or ""
        )
        scope = self._scopes.get((call.model, key))
        if scope is None:
            if len(self._scopes) >= MOST_SCOPES:
                self._scopes.clear()
            scope = self._scopes[call.model, key] = scope_of(provider, call.model, str(client.base_url), key)
        return scope

    def account(self) -> str:
        """Return a digest of the address, the key and other credentials, which differs between accounts.

        A key that changes with each request is left out.
        """
        client = self.client_of_this_loop()
        found = [getattr(client, name, None) for name in ("api_key", "auth_token", "organization", "project")]
        own = [str(client.base_url), *(one if isinstance(one, str) else "" for one in found)]
        own += [
            f"{name.lower()}: {value}"
            for name, value in sorted(self.options.headers.items())
            if is_credential(name)
        ]
        return hashlib.sha256("\0".join(own).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def publishable(self, error: ProviderError) -> ProviderError:
        """Return the error without the secrets of this connection, and with texts that can be encoded.

        It has no cause, because the cause's text and fields may hold secrets from a service or library.
        """
        error.args = (self.publishable_text(error.message),)
        error.request_id = None if error.request_id is None else self.publishable_text(error.request_id)
        return error

    def publishable_text(self, text: str) -> str:
        """Return a text without the secrets of this connection, in a form that can be encoded."""
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
        """Close all connections, including those of other running loops. The next request opens new ones."""
        await self.aclose_here()
        clients, self._clients = self._clients, {}
        self._kinds.forget()
        for loop, client in clients.items():
            if loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.close(), loop))

    async def aclose_here(self) -> None:
        """Close the connections of the running loop. Call it before the loop ends."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        self._kinds.forget()
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
        """Return the SDK's client of the running loop, created on first use."""
        if self._process != os.getpid():
            # Sockets inherited through a fork belong to the parent process and are neither used nor closed here.
            _inherited.append(self._clients)
            self._process, self._clients = os.getpid(), {}
            self._kinds.forget()
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for other in [other for other in self._clients if other.is_closed()]:
                del self._clients[other]
            client = self._clients[loop] = self.make_client(self._http_client())
            prepare_requests(client)
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
            "response": [self._leave_waits_to_the_caller],
        }
        if forbidden:
            hooks["request"].append(_refuse_other_machines)
        return self.sdk.DefaultAsyncHttpxClient(
            transport=self._transport(environment=not forbidden), trust_env=not forbidden, event_hooks=hooks
        )

    async def _keep_keys_at_home(self, request: httpx2.Request) -> None:
        """Remove the key if the service redirects to another host, port or scheme."""
        if _place(request.url) != self._home:
            for name in [name for name in request.headers if is_credential(name)]:
                del request.headers[name]

    async def _leave_waits_to_the_caller(self, response: httpx2.Response) -> None:
        """Prevent the SDK from waiting long when a service asks for it, because the worker can run other
        turns in the meantime.

        With a gate, a rate limit concerns all workers: the SDK does not retry such a request at all.
        """
        wait = retry_after(response.headers) if response.status_code >= 400 else None
        long = (wait is not None and wait > LONGEST_WAIT_SECONDS) or (
            self._gated and response.status_code == 429
        )
        if long and SHOULD_RETRY not in response.headers:
            response.headers[SHOULD_RETRY] = "false"
            response.extensions[OURS] = True

    def _transport(self, *, environment: bool) -> httpx2.AsyncBaseTransport:
        """Return the transport. It uses the environment's proxies unless only this machine may be reached."""
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


_http_log = logging.getLogger("httpx2")
_http_log.addFilter(UrlFilter())
_inherited: list[Any] = []


def _secrets_of(options: Options) -> Secrets:
    in_urls = [value for url in (options.base_url, options.proxy) if url for value in secrets_in_url(url)]
    secrets = Secrets([*options.headers.values(), *in_urls])
    for value in in_urls:
        if len(value) < SHORTEST:
            secrets.learn(value)
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
