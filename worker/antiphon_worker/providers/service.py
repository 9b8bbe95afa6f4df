"""``ModelService``: the base class of providers that call a model service over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import msgspec

from antiphon.errors import ProviderError, ProviderRejected, SettingsError
from antiphon.input.parameters import is_header_name, is_transport_header
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.batches import BatchEndpoint
from antiphon_worker.providers.http.connection import ApiKey, Call, Connection, Options
from antiphon_worker.providers.stream.decoder import Decoder
from antiphon_worker.providers.stream.increments import AnswerStream

ALLOWED = (
    "anthropic-beta", "anthropic-version", "openai-beta", "idempotency-key",
    "traceparent", "tracestate", "baggage", "b3", "x-b3-*", "x-datadog-*", "x-cloud-trace-context", "x-amzn-trace-id",
    "x-trace", "x-trace-id", "x-request-id", "x-client-request-id", "x-correlation-id", "x-session-id",
    "http-referer", "x-title",
)  # fmt: skip
"""Headers that ``extra_headers`` may set for any provider; a final ``*`` matches any ending."""


class OptionFields(TypedDict, total=False):
    """The fields of ``Options``, as keyword arguments of all providers."""

    base_url: str | None
    api_key: ApiKey | None
    headers: dict[str, str]
    timeout: float
    connect_timeout: float
    pool_timeout: float
    max_retries: int
    max_connections: int
    keepalive: float
    proxy: str | None
    max_event_bytes: int
    max_answer_bytes: int
    allowed_headers: Sequence[str]


class ModelService(ABC):
    """A provider over HTTP. It connects on first use. Raises ``SettingsError`` for headers that it must not send."""

    default_name: ClassVar[str]
    connect: ClassVar[type[Connection]]
    in_batches: ClassVar[type[BatchEndpoint] | None] = None
    """The class of its batch endpoint, or None if the service has no batches."""

    def __init__(self, name: str | None, options: OptionFields) -> None:
        self._name = name
        self.options = Options(**options)
        check_own_headers(self.options.headers)
        self.connection = self.connected()

    def connected(self) -> Connection:
        """Return the connection to the service, which connects on first use."""
        return self.connect(self.options)

    @property
    def name(self) -> str:
        return self._name or self.default_name

    def registered_as(self, name: str) -> None:
        """Use the name from the App, unless the provider already has one."""
        self._name = self._name or name

    @property
    def batches(self) -> BatchEndpoint | None:
        """The batches of the service, or None."""
        return self.in_batches and self.in_batches(self.connection, self.name)

    @abstractmethod
    def stream(self, request: ModelRequest) -> AnswerStream:
        """Send a request. Yields increments and then the ``StepResult``. Raises ``ProviderError``."""

    def send(self, request: ModelRequest, call: Call, decoder: Decoder) -> AnswerStream:
        return AnswerStream(self.connection, self.name, self.checked(request, call), decoder)

    def checked(self, request: ModelRequest, call: Call) -> Call:
        """Return the call with its gate. Raises ``ProviderRejected`` for headers that the provider must not send."""
        check_allowed(self.name, call.headers, self.options.allowed_headers)
        if request.gate is None:
            return call
        return msgspec.structs.replace(call, model=request.model, gate=request.gate)

    def check_key(self) -> None:
        """Raise ``ProviderError`` if the service's key is missing. Does not connect."""
        try:
            self.connection.check_client(self.connection.client_of_this_loop())
        except Exception as exc:
            error = exc if isinstance(exc, ProviderError) else self.connection.map_error(self.name, exc)
            if error is None:
                raise
            raise self.connection.publishable(error) from None

    def account(self) -> str:
        """Return a digest of the service's address and key. Raises ``ProviderError`` if the key is missing."""
        self.check_key()
        return self.connection.account()

    async def aclose(self) -> None:
        """Close all connections."""
        await self.connection.aclose()

    def __repr__(self) -> str:
        base_url = self.options.base_url and self.connection.publishable_text(self.options.base_url)
        settings: dict[str, Any] = {"name": self.name, "base_url": base_url}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items() if v)})"


def check_allowed(provider: str, headers: Mapping[str, str], more: Sequence[str]) -> None:
    """Raise ``ProviderRejected`` for a header that is neither in the list nor in the provider's ``allowed_headers``."""
    for name in headers:
        if not _matches(name.lower(), (*ALLOWED, *more)):
            raise ProviderRejected(
                f"extra_headers contains {name!r}, which {provider} does not allow: create the provider with "
                f"allowed_headers=[{name!r}], or set the header for all requests with headers={{…}}."
            )


def check_own_headers(headers: Mapping[str, str]) -> None:
    """Raise ``SettingsError`` for headers of a provider that would change the framing or routing of its requests."""
    for name in headers:
        if not is_header_name(name):
            raise SettingsError(f"headers= contains {name!r}, which is not a valid header name.")
        if is_transport_header(name):
            raise SettingsError(
                f"headers= contains {name!r}, which only the transport can set. Leave it out."
            )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in map(str.lower, patterns)
    )
