"""Providers by name: those an App brings, and those built in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.errors import UnknownProvider
from antiphon_worker.providers.base import Provider

__all__ = ["BUILT_IN", "check_provider", "close_providers", "provider_for"]


def _openai() -> Provider:
    from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

    return OpenAIResponses()


def _openai_chat() -> Provider:
    from antiphon_worker.providers.openai_chat.provider import OpenAIChat

    return OpenAIChat()


def _anthropic() -> Provider:
    from antiphon_worker.providers.anthropic.provider import Anthropic

    return Anthropic()


def _scripted() -> Provider:
    from antiphon_worker.providers.scripted import ScriptedProvider

    return ScriptedProvider()


BUILT_IN: dict[str, Callable[[], Provider]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "openai-chat": _openai_chat,
    "scripted": _scripted,
}
_made: dict[str, Provider] = {}


def provider_for(name: str, providers: Mapping[str, Provider] | None = None) -> Provider:
    """The provider of this name: the App's own first, then a built-in one, which all of this process share.

    Raises ``UnknownProvider``, and ``MissingPackage`` where the provider's package is not installed.
    """
    provider = (providers or {}).get(name)
    if provider is not None:
        _name(provider, name)
        return provider
    if name not in _made:
        check_provider(name, providers or {})
        return _made.setdefault(name, BUILT_IN[name]())  # two threads may ask at once: both get the same
    return _made[name]


def check_provider(name: str, providers: Mapping[str, Provider]) -> None:
    """Raise ``UnknownProvider`` where none has this name."""
    if name not in providers and name not in BUILT_IN:
        known = ", ".join(sorted({*BUILT_IN, *providers}))
        raise UnknownProvider(f"There is no provider {name!r}. Known here: {known}.")


async def close_providers() -> None:
    """Close the connections of the built-in providers of this process."""
    made = list(_made.values())
    _made.clear()
    for provider in made:
        await provider.aclose()


def _name(provider: Provider, name: str) -> None:
    """A provider that an App registers is called as the App calls it, in messages and errors."""
    registered_as = getattr(provider, "registered_as", None)
    if registered_as is not None:
        registered_as(name)
