"""Finds providers by name: those of an App and the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from antiphon.errors import SettingsError, UnknownProvider
from antiphon.testing import Script
from antiphon_worker.providers.base import Provider


def _openai() -> Provider:
    from antiphon_worker.providers.openai_responses.provider import OpenAIResponses

    return OpenAIResponses()


def _openai_chat() -> Provider:
    from antiphon_worker.providers.openai_chat.provider import OpenAIChat

    return OpenAIChat()


def _anthropic() -> Provider:
    from antiphon_worker.providers.anthropic.provider import Anthropic

    return Anthropic()


def _scripted(script: Script | None = None) -> Provider:
    from antiphon_worker.providers.scripted import ScriptedProvider

    return ScriptedProvider(script)


BUILT_IN: dict[str, Callable[[], Provider]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "openai-chat": _openai_chat,
    "scripted": _scripted,
}
_made: dict[str, Provider] = {}


def provider_for(name: str, providers: Mapping[str, Provider] | None = None) -> Provider:
    """Return the provider with this name: the App's own, or a built-in one, which this process shares.

    Raises ``UnknownProvider``, and ``MissingPackage`` if the provider's package is not installed.
    """
    provider = (providers or {}).get(name)
    if provider is not None:
        _name(provider, name)
        return provider
    if name not in _made:
        check_provider(name, providers or {})
        return _made.setdefault(name, BUILT_IN[name]())  # if two threads call at once, both get the same one
    return _made[name]


def check_provider(name: str, providers: Mapping[str, Provider]) -> None:
    """Raise ``UnknownProvider`` if no provider has this name."""
    if name not in providers and name not in BUILT_IN:
        known = ", ".join(sorted({*BUILT_IN, *providers}))
        raise UnknownProvider(f"There is no provider {name!r}. Known here: {known}.")


def checked_providers(providers: Any) -> dict[str, Provider]:
    """Check ``App(providers=…)``, and return it with scripts as providers. Raises ``SettingsError``."""
    if not isinstance(providers, Mapping):
        raise SettingsError(
            f"providers= must be a dictionary of providers by name, not {type(providers).__name__}."
        )
    providers = cast("Mapping[Any, Any]", providers)
    for name, provider in providers.items():
        usable = isinstance(provider, Script) or callable(getattr(provider, "stream", None))
        if not isinstance(name, str) or not usable:
            raise SettingsError(
                f"providers= has {provider!r} for {name!r}: use a provider, such as OpenAIChat(base_url=…)."
            )
    return {name: _scripted(one) if isinstance(one, Script) else one for name, one in providers.items()}


async def close_providers() -> None:
    """Close the connections of the built-in providers of this process."""
    made = list(_made.values())
    _made.clear()
    for provider in made:
        await provider.aclose()


def _name(provider: Provider, name: str) -> None:
    """Set the provider's name in the App, for messages and errors."""
    registered_as = getattr(provider, "registered_as", None)
    if registered_as is not None:
        registered_as(name)
