"""Chooses the model service of the demo: a real one if its API key is set, otherwise the built-in model server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.input.request import AgentSpec

PROVIDERS = ("openai", "openai-chat", "anthropic")
KEYS = {"openai": "OPENAI_API_KEY", "openai-chat": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
MODELS = {"openai": "gpt-4.1-mini", "openai-chat": "gpt-4.1-mini", "anthropic": "claude-haiku-4-5"}
OWN_MODEL = "antiphon-demo"
SYSTEM = "You are in a demonstration. Answer in a few sentences."


class Service(Struct, frozen=True):
    """The providers of the sessions, and whether our own model server answers."""

    providers: Sequence[str]
    model: str | None
    own: bool

    def agent(self, index: int) -> AgentSpec:
        """Return the agent of the session with this number."""
        provider = self.providers[index % len(self.providers)]
        model = self.model or (OWN_MODEL if self.own else MODELS[provider])
        return AgentSpec(provider=provider, model=model, system=SYSTEM)

    def __str__(self) -> str:
        names = ", ".join(self.providers)
        return f"the built-in model server ({names})" if self.own else f"the real service ({names})"


def choose_service(
    provider: str | None, model: str | None, environ: Mapping[str, str] = os.environ
) -> Service:
    """Return the real service if there is an API key for it, otherwise the built-in server."""
    if provider is not None:
        return Service((provider,), model, own=not environ.get(KEYS[provider]))
    real = [name for name in ("openai", "anthropic") if environ.get(KEYS[name])]
    return Service(real or PROVIDERS, model, own=not real)


def own_service_environment(base_url: str, openai_url: str) -> dict[str, str]:
    """Return the environment that points a worker's SDKs to our own model server."""
    return {
        "OPENAI_API_KEY": "none-is-needed",
        "OPENAI_BASE_URL": openai_url,
        "ANTHROPIC_API_KEY": "none-is-needed",
        "ANTHROPIC_BASE_URL": base_url,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
