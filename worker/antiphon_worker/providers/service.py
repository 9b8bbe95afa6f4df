"""What all model services are: a name, options, a connection, and requests that stream their answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict

from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.http.connection import ApiKey, Call, Connection, Options
from antiphon_worker.providers.http.headers import check_allowed, check_own_headers
from antiphon_worker.providers.stream.increments import AnswerStream, Decoder

__all__ = ["ModelService", "OptionFields"]


class OptionFields(TypedDict, total=False):
    """The fields of ``Options``, as keywords of every provider."""

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
    """A provider over HTTP. Making one connects to nothing. Raises ``SettingsError`` for headers it may not send."""

    default_name: ClassVar[str]

    def __init__(self, name: str | None, options: OptionFields) -> None:
        self._name = name
        self.options = Options(**options)
        check_own_headers(self.options.headers)

    @property
    def name(self) -> str:
        return self._name or self.default_name

    def registered_as(self, name: str) -> None:
        """Take the name under which an App knows this provider, unless it was given one of its own."""
        self._name = self._name or name

    @property
    @abstractmethod
    def connection(self) -> Connection: ...

    @abstractmethod
    def stream(self, request: ModelRequest) -> AnswerStream:
        """Send a request; yields increments and, last, the ``StepResult``. Raises ``ProviderError``."""

    def send(self, call: Call, decoder: Decoder) -> AnswerStream:
        check_allowed(self.name, call.headers, self.options.allowed_headers)
        return AnswerStream(self.connection, self.name, call, decoder)

    async def aclose(self) -> None:
        """Close every connection."""
        await self.connection.aclose()

    def __repr__(self) -> str:
        base_url = self.options.base_url and self.connection.publishable_text(self.options.base_url)
        settings: dict[str, Any] = {"name": self.name, "base_url": base_url}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items() if v)})"
