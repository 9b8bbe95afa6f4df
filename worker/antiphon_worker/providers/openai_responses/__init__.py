"""OpenAI's Responses API as a provider."""

from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

__all__ = ["OpenAIResponses"]
