"""Connects with the openai SDK: creates its client, sends requests and converts its exceptions.

No other module imports the SDK.
"""

from __future__ import annotations

from typing import Any, cast

from antiphon.errors import MissingPackage, ProviderError, ProviderRejected, ProviderUnauthorized
from antiphon_worker.providers.http.connection import NO_KEY, Call, Connection, HttpClient
from antiphon_worker.providers.http.failures import RawResponse, map_sdk_error
from antiphon_worker.providers.secrets import without_keys

try:
    import openai
except ImportError as exc:
    raise MissingPackage("This provider needs the openai package: pip install 'antiphon[worker]'.") from exc


class OpenAIConnection(Connection):
    """Sends requests with ``openai.AsyncOpenAI``. Key and base URL come from the options, or from OPENAI_*."""

    request_id_header = "x-request-id"

    def make_http_client(self, **settings: Any) -> HttpClient:
        return openai.DefaultAsyncHttpxClient(**settings)

    def make_client(self, http_client: HttpClient) -> openai.AsyncOpenAI:
        options = self.options
        settings: dict[str, Any] = {
            "base_url": options.base_url,
            "default_headers": options.headers,
            "max_retries": options.max_retries,
            "http_client": http_client,
        }
        try:
            return openai.AsyncOpenAI(api_key=self.fixed_key(), **settings)
        except openai.OpenAIError as exc:
            if options.base_url is None:
                raise ProviderUnauthorized(
                    "There is no API key for OpenAI: set OPENAI_API_KEY in the environment of the process that runs "
                    "the turns."
                ) from exc
            return openai.AsyncOpenAI(api_key=NO_KEY, **settings)

    async def post(self, client: openai.AsyncOpenAI, call: Call, headers: dict[str, str]) -> RawResponse:
        if "Authorization" not in headers:
            headers = {"Authorization": f"Bearer {client.api_key}", **headers}
        response = await client.post(
            call.path,
            cast_to=RawResponse,
            content=call.body,
            options={"headers": headers, "params": call.query, "timeout": self.httpx_timeout(call)},
            stream=True,
            stream_cls=openai.AsyncStream[Any],
        )
        return cast(RawResponse, cast(object, response))

    def map_error(self, provider: str, error: Exception) -> ProviderError | None:
        return map_openai_error(provider, error)


def map_openai_error(provider: str, error: Exception) -> ProviderError | None:
    """Return the error for an exception of the openai SDK, or None for other exceptions."""
    known = map_sdk_error(openai, provider, error)
    if known is not None:
        return known
    if isinstance(error, openai.OpenAIError | openai.InvalidWebhookSignatureError):
        return ProviderRejected(f"{provider}: {without_keys(str(error))}")
    return None
