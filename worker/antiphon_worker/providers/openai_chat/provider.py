"""The provider for Chat Completions, of OpenAI and compatible servers."""

from __future__ import annotations

from typing import Unpack

from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.openai_chat.request import chat_call
from antiphon_worker.providers.openai_chat.stream import ChatDecoder
from antiphon_worker.providers.openai_sdk import OpenAIConnection
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream


class OpenAIChat(ModelService):
    """A server of Chat Completions: ``OpenAIChat(base_url="https://api.groq.com/openai/v1", api_key=…)``.

    Use ``include_usage=False`` for servers that reject ``stream_options``. ``max_tokens`` is sent to OpenAI itself as
    ``max_completion_tokens``, to others under its own name.
    """

    default_name = "openai-chat"

    def __init__(
        self, *, name: str | None = None, include_usage: bool = True, **options: Unpack[OptionFields]
    ) -> None:
        super().__init__(name, options)
        self._connection = OpenAIConnection(self.options)
        self._include_usage = include_usage

    @property
    def connection(self) -> OpenAIConnection:
        return self._connection

    def stream(self, request: ModelRequest) -> AnswerStream:
        url = self.options.base_url or "https://api.openai.com"
        ours = "openai.com" in url or "openai.azure.com" in url
        call = chat_call(
            request,
            self.name,
            limit_name="max_completion_tokens" if ours else "max_tokens",
            include_usage=self._include_usage,
        )
        offered = frozenset(tool.name for tool in request.tools)
        return self.send(request, call, ChatDecoder(self.name, request.model, offered))
