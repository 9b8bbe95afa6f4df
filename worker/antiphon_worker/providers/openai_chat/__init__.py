"""Chat Completions as a provider, for OpenAI and all compatible servers."""

from antiphon_worker.providers.openai_chat.provider import OpenAIChat

__all__ = ["OpenAIChat"]
