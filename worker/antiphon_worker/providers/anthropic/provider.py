"""The Messages API of Anthropic."""

from __future__ import annotations

from typing import Unpack

from antiphon_worker.providers.anthropic.request import anthropic_call
from antiphon_worker.providers.anthropic.sdk import AnthropicConnection
from antiphon_worker.providers.anthropic.stream import AnthropicDecoder
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream


class Anthropic(ModelService):
    """``max_tokens`` is the default limit of an answer, because the service requires one."""

    default_name = "anthropic"

    def __init__(
        self, *, name: str | None = None, max_tokens: int = 8192, **options: Unpack[OptionFields]
    ) -> None:
        super().__init__(name, options)
        self._connection = AnthropicConnection(self.options)
        self._max_tokens = max_tokens

    @property
    def connection(self) -> AnthropicConnection:
        return self._connection

    def stream(self, request: ModelRequest) -> AnswerStream:
        call = anthropic_call(request, self.name, max_tokens=self._max_tokens)
        return self.send(request, call, AnthropicDecoder(self.name, request.model))
