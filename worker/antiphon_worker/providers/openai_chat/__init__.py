"""Chat Completions as a provider: OpenAI's and that of every compatible server."""

from antiphon_worker.providers.openai_chat.provider import OpenAIChat

__all__ = ["OpenAIChat"]
