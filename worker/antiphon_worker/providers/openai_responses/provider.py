"""The Responses API of OpenAI."""

from __future__ import annotations

from typing import Unpack

from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.openai_responses.request import responses_call
from antiphon_worker.providers.openai_responses.stream import ResponsesDecoder
from antiphon_worker.providers.openai_sdk import OpenAIConnection
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream


class OpenAIResponses(ModelService):
    """OpenAI's Responses API. The service stores nothing: the history contains the reasoning in encrypted form."""

    default_name = "openai"

    def __init__(self, *, name: str | None = None, **options: Unpack[OptionFields]) -> None:
        super().__init__(name, options)
        self._connection = OpenAIConnection(self.options)

    @property
    def connection(self) -> OpenAIConnection:
        return self._connection

    def stream(self, request: ModelRequest) -> AnswerStream:
        return self.send(
            request, responses_call(request, self.name), ResponsesDecoder(self.name, request.model)
        )
