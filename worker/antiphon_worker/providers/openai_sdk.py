"""Connects with the openai SDK: creates its client, and adds the key to its requests."""

from __future__ import annotations

import os
from typing import Any

from antiphon.errors import MissingPackage, ProviderUnauthorized
from antiphon_worker.providers.http.connection import NO_KEY, Call, Connection, HttpClient
from antiphon_worker.providers.http.failures import RawResponse

try:
    import openai
except ImportError as exc:
    raise MissingPackage("This provider needs the openai package: pip install 'antiphon[worker]'.") from exc

_NO_KEY = "There is no API key for OpenAI: set OPENAI_API_KEY in the environment of the process that runs the turns."


def is_openai(base_url: str | None) -> bool:
    """Return whether the address is OpenAI's or Azure's. Other services refuse some of their fields."""
    url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
    return "openai.com" in url or "openai.azure.com" in url


class OpenAIConnection(Connection):
    """Sends requests with ``openai.AsyncOpenAI``. Key and base URL come from the options, or from OPENAI_*."""

    sdk = openai
    request_id_header = b"x-request-id"

    def make_client(self, http_client: HttpClient) -> openai.AsyncOpenAI:
        settings = self.client_settings(http_client)
        try:
            return openai.AsyncOpenAI(api_key=self.fixed_key(), **settings)
        except openai.OpenAIError as exc:
            if self.options.base_url is None:
                raise ProviderUnauthorized(_NO_KEY) from exc
            return openai.AsyncOpenAI(api_key=NO_KEY, **settings)

    async def post(self, client: Any, call: Call, headers: dict[str, str]) -> RawResponse:
        return await super().post(client, call, {"Authorization": f"Bearer {client.api_key}", **headers})
