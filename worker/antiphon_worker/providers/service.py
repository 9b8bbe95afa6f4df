"""``ModelService``: the base class of providers that call a model service over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict

import msgspec

from antiphon.errors import ProviderError
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.http.connection import ApiKey, Call, Connection, Options
from antiphon_worker.providers.http.headers import check_allowed, check_own_headers
from antiphon_worker.providers.stream.increments import AnswerStream, Decoder


class OptionFields(TypedDict, total=False):
    """The fields of ``Options`` as keywords of all providers."""

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

    def __init__(self, name: str | None, options: OptionFields) -> None:
        self._name = name
        self.options = Options(**options)
        check_own_headers(self.options.headers)

    @property
    def name(self) -> str:
        return self._name or self.default_name

    def registered_as(self, name: str) -> None:
        """Use the name from the App, unless the provider already has one."""
        self._name = self._name or name

    @property
    @abstractmethod
    def connection(self) -> Connection: ...

    @abstractmethod
    def stream(self, request: ModelRequest) -> AnswerStream:
        """Send a request. Yields increments and then the ``StepResult``. Raises ``ProviderError``."""

    def send(self, request: ModelRequest, call: Call, decoder: Decoder) -> AnswerStream:
        check_allowed(self.name, call.headers, self.options.allowed_headers)
        if request.gate is not None:
            call = msgspec.structs.replace(call, model=request.model, gate=request.gate)
        return AnswerStream(self.connection, self.name, call, decoder)

    def check_key(self) -> None:
        """Raise ``ProviderError`` if the service's key is missing. Connects to nothing."""
        try:
            self.connection.check_client(self.connection.client_of_this_loop())
        except Exception as exc:
            error = exc if isinstance(exc, ProviderError) else self.connection.map_error(self.name, exc)
            if error is None:
                raise
            raise self.connection.publishable(error) from None

    async def aclose(self) -> None:
        """Close all connections."""
        await self.connection.aclose()

    def __repr__(self) -> str:
        base_url = self.options.base_url and self.connection.publishable_text(self.options.base_url)
        settings: dict[str, Any] = {"name": self.name, "base_url": base_url}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items() if v)})"
