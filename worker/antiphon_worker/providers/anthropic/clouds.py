"""Anthropic's models on Amazon Bedrock and Google Vertex AI: the same requests, authenticated by the SDK's clients."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Unpack
from urllib.parse import quote

import msgspec
from anthropic import AnthropicError
from anthropic.lib.bedrock import AsyncAnthropicBedrockMantle
from anthropic.lib.vertex import AsyncAnthropicVertex

from antiphon.errors import MissingPackage, ProviderError, ProviderUnauthorized, SettingsError
from antiphon_worker.providers.anthropic.provider import AnthropicConnection, anthropic_call
from antiphon_worker.providers.anthropic.stream import AnthropicDecoder
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.http.connection import HttpClient, Options
from antiphon_worker.providers.secrets import without_keys
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream

VERTEX_VERSION = "vertex-2023-10-16"
_OF_CLOUDS = ("google", "boto3", "botocore")


class _CloudConnection(AnthropicConnection):
    """Authenticates with the credentials of the machine. ``region`` and ``profile`` are the provider's."""

    where = ""
    signs = True

    def __init__(self, options: Options, region: str | None, profile: str | None = None) -> None:
        super().__init__(options)
        self.region, self.profile = region, profile

    def check_client(self, client: Any) -> None:
        """Do nothing, because the machine's credentials are looked up at the first request."""

    def map_error(self, provider: str, error: Exception) -> ProviderError | None:
        """Return the error for exceptions of the authentication packages and of the SDK."""
        package = type(error).__module__.partition(".")[0]
        if package in _OF_CLOUDS or type(error) is RuntimeError:
            return ProviderUnauthorized(
                f"{provider}: there are no credentials for {self.where} ({without_keys(str(error))})."
            )
        return super().map_error(provider, error)


class BedrockConnection(_CloudConnection):
    """Sends requests with ``anthropic.AsyncAnthropicBedrockMantle``."""

    where = "Bedrock"

    def make_client(self, http_client: HttpClient) -> Any:
        settings = self.client_settings(http_client)
        try:
            return AsyncAnthropicBedrockMantle(
                api_key=self.fixed_key(), aws_region=self.region, aws_profile=self.profile, **settings
            )
        except AnthropicError as exc:
            raise ProviderUnauthorized(f"Bedrock cannot be used: {without_keys(str(exc))}") from exc


class VertexConnection(_CloudConnection):
    """Sends requests with ``anthropic.AsyncAnthropicVertex``."""

    where = "Vertex AI"

    def make_client(self, http_client: HttpClient) -> Any:
        settings, region = self.client_settings(http_client), self.region or ""
        return AsyncAnthropicVertex(region=region, access_token=self.fixed_key(), **settings)


class AnthropicBedrock(ModelService):
    """Anthropic's models on Amazon Bedrock, with its Messages API (``bedrock-mantle``). Needs ``antiphon[bedrock]``.

    boto3 finds the credentials: in the environment, a ``profile``, or the role of the machine or the pod. ``api_key``
    or ``AWS_BEARER_TOKEN_BEDROCK`` is a Bedrock API key to use instead. ``region`` defaults to ``AWS_REGION``.
    """

    default_name = "bedrock"

    def __init__(
        self, *, name: str | None = None, max_tokens: int = 8192, region: str | None = None,
        profile: str | None = None, **options: Unpack[OptionFields],
    ) -> None:  # fmt: skip
        if find_spec("boto3") is None:
            raise MissingPackage("AnthropicBedrock needs boto3: pip install 'antiphon[bedrock]'.")
        self._max_tokens, self._region, self._profile = max_tokens, region, profile
        super().__init__(name, options)

    def connected(self) -> BedrockConnection:
        return BedrockConnection(self.options, self._region, self._profile)

    def stream(self, request: ModelRequest) -> AnswerStream:
        call = anthropic_call(request, self.name, max_tokens=self._max_tokens)
        return self.send(request, call, AnthropicDecoder(self.name, request.model))


class AnthropicVertex(ModelService):
    """Anthropic's models on Google Vertex AI. Needs ``antiphon[vertex]``.

    google-auth finds the credentials (Application Default Credentials). ``api_key`` is an access token to use instead,
    or a function that returns one. ``region`` defaults to ``CLOUD_ML_REGION``, and ``project`` to
    ``ANTHROPIC_VERTEX_PROJECT_ID``. Raises ``SettingsError`` without them.
    """

    default_name = "vertex"

    def __init__(
        self, *, name: str | None = None, max_tokens: int = 8192, region: str | None = None,
        project: str | None = None, **options: Unpack[OptionFields],
    ) -> None:  # fmt: skip
        if not options.get("api_key") and not (find_spec("google") and find_spec("google.auth")):
            raise MissingPackage("AnthropicVertex needs google-auth: pip install 'antiphon[vertex]'.")
        region = region or os.environ.get("CLOUD_ML_REGION")
        self._project = project or os.environ.get("ANTHROPIC_VERTEX_PROJECT_ID")
        if not region or not self._project:
            raise SettingsError("AnthropicVertex needs region= and project=.")
        self._region, self._max_tokens = region, max_tokens
        super().__init__(name, options)

    def connected(self) -> VertexConnection:
        return VertexConnection(self.options, self._region)

    def stream(self, request: ModelRequest) -> AnswerStream:
        call = anthropic_call(request, self.name, max_tokens=self._max_tokens)
        body = msgspec.json.decode(call.body, type=dict[str, msgspec.Raw])
        model = quote(msgspec.json.decode(body.pop("model"), type=str), safe="@")
        version = msgspec.Raw(msgspec.json.encode(VERTEX_VERSION))
        place = f"/projects/{self._project}/locations/{self._region}/publishers/anthropic/models"
        path = f"{place}/{model}:streamRawPredict"
        content = msgspec.json.encode({"anthropic_version": version, **body})
        call = msgspec.structs.replace(call, path=path, body=content)
        return self.send(request, call, AnthropicDecoder(self.name, request.model))
