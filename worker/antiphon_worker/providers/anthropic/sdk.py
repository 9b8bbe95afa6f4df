"""Connects with the anthropic SDK: creates its client, sends requests and converts its exceptions."""

from __future__ import annotations

from typing import Any, cast

from antiphon.errors import MissingPackage, ProviderError, ProviderRejected, ProviderUnauthorized
from antiphon.input.parameters import is_credential
from antiphon_worker.providers.http.connection import Call, Connection, HttpClient
from antiphon_worker.providers.http.failures import RawResponse, map_sdk_error
from antiphon_worker.providers.secrets import without_keys

try:
    import anthropic
except ImportError as exc:
    raise MissingPackage(
        "This provider needs the anthropic package: pip install 'antiphon[worker]'."
    ) from exc

_NO_KEY = "There is no key for Anthropic: set ANTHROPIC_API_KEY in the environment of the process that runs the turns."


class AnthropicConnection(Connection):
    """Sends requests with ``anthropic.AsyncAnthropic``. Key and base URL come from the options, or from ANTHROPIC_*."""

    request_id_header = "request-id"

    def make_http_client(self, **settings: Any) -> HttpClient:
        return anthropic.DefaultAsyncHttpxClient(**settings)

    def make_client(self, http_client: HttpClient) -> anthropic.AsyncAnthropic:
        options = self.options
        return anthropic.AsyncAnthropic(
            api_key=self.fixed_key(),
            base_url=options.base_url,
            default_headers=options.headers,
            max_retries=options.max_retries,
            http_client=http_client,
        )

    def check_client(self, client: anthropic.AsyncAnthropic) -> None:
        given = client.api_key or client.auth_token or client.credentials
        if not given and not any(is_credential(name) for name in self.options.headers):
            raise ProviderUnauthorized(_NO_KEY)

    async def post(
        self, client: anthropic.AsyncAnthropic, call: Call, headers: dict[str, str]
    ) -> RawResponse:
        try:
            response = await client.post(
                call.path,
                cast_to=RawResponse,
                content=call.body,
                options={"headers": headers, "params": call.query, "timeout": self.httpx_timeout(call)},
                stream=True,
                stream_cls=anthropic.AsyncStream[Any],
            )
        except TypeError as exc:
            if "authentication" not in str(exc):
                raise
            raise ProviderUnauthorized(_NO_KEY) from exc
        return cast(RawResponse, cast(object, response))

    def map_error(self, provider: str, error: Exception) -> ProviderError | None:
        return map_anthropic_error(provider, error)


def map_anthropic_error(provider: str, error: Exception) -> ProviderError | None:
    """Return the error for an exception of the anthropic SDK, or None for other exceptions."""
    known = map_sdk_error(anthropic, provider, error)
    if known is not None:
        return known
    if isinstance(error, anthropic.CredentialsError):
        return ProviderUnauthorized(f"{provider}: {_NO_KEY} ({without_keys(str(error))})")
    if isinstance(error, anthropic.AnthropicError):
        return ProviderRejected(f"{provider}: {without_keys(str(error))}")
    return None
