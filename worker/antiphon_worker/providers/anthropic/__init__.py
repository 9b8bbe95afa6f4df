"""Anthropic's Messages API as a provider."""

from antiphon_worker.providers.anthropic.provider import Anthropic

__all__ = ["Anthropic"]
