"""Parameters of models, as callers give them: no keys among them, and no keyword that is meant for a call of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from antiphon.errors import UsageError
from antiphon.input.extras import misplaced

__all__ = ["ModelParams", "check_params", "check_secrets"]


class ModelParams(TypedDict, total=False):
    """Parameters of models that editors know, whatever the service.

    Others reach the service as well; type checkers take them in ``extra_body``, or of an ``Agent``.
    """

    model: str
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    seed: int | None
    n: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[str, float] | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    effort: str | None
    reasoning: str | int | bool | Mapping[str, Any] | None
    thinking: Mapping[str, Any] | None
    verbosity: str | None
    user: str | None
    cache_control: Mapping[str, Any] | Literal[False] | None
    service_tier: str | None
    extra_body: Mapping[str, Any] | None
    extra_headers: Mapping[str, str] | None
    extra_query: Mapping[str, Any] | None


SECRET = ("api_key", "apikey", "auth_token", "authorization", "x-api-key", "api-key")
CONNECTION = ("base_url", "organization", "headers", "proxy", "max_retries", "connect_timeout")
"""What a provider is made with. It stays in the process that calls the service."""

BELONGS: dict[str, str] = {
    "key": "session.submit(…, key=…)",
    "delay": "session.submit(…, delay=…)",
    "schema": "session.json(…, schema=…)",
    "stream": "session.stream(…)",
    "agent": "session.run(…, agent=…)",
    "if_busy": "session.run(…, if_busy=…)",
    "ttl": "agent.session(ttl=…)",
    "tenant": "agent.session(tenant=…)",
    "variables": "agent.session(variables=…)",
    "messages": "agent.session(messages=…)",
    "session_id": "agent.session(session_id=…)",
    "system": "Agent(system=…) or agent.session(system=…)",
    "system_prompt": "Agent(system=…) or agent.session(system=…)",
    "instructions": "Agent(system=…) or agent.session(system=…)",
    "name": "Agent(name=…)",
    "tool": "Agent(tools=[…])",
    "window": "Agent(window=…)",
    "max_steps": "Agent(max_steps=…)",
    "redis": "Agent(redis=…)",
    "prefix": "Agent(prefix=…)",
    "provider": "Agent(provider=…)",
    "providers": "App(providers={…})",
}
OURS = [*BELONGS, "timeout", "metadata", "queue", "tools", "store"]
ALIKE = 0.8


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for a key, and for a keyword that belongs to another call of ours or is nearly one."""
    check_secrets(params)
    for name in params:
        if name in BELONGS:
            raise UsageError(
                f"{name}= would go to the model from here: it belongs to {BELONGS[name]}. A parameter of the "
                "model that is really called so goes into extra_body={…}."
            )
        near = [] if name in OURS else get_close_matches(name, OURS, 1, ALIKE)
        if near:
            raise UsageError(
                f"{name}= is not known: is it {near[0]}=? A parameter of the model that is really called so goes into "
                "extra_body={…}."
            )


def check_secrets(params: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for what must not travel with a turn.

    That is a key or an address of a service, and ``extra_headers``, ``extra_query`` and ``extra_body`` that would
    change how or where the request is sent (``antiphon.input.extras``).
    """
    for name in params:
        if name.lower() in SECRET:
            raise UsageError(
                f"{name}= is no parameter of a model, it would be saved with the turn: a key belongs into the "
                "environment of the process that runs the turn (OPENAI_API_KEY, ANTHROPIC_API_KEY), or to a provider "
                "of your own in the worker's App(providers={…})."
            )
    for name in params:
        if name in CONNECTION:
            raise UsageError(
                f"{name}= is no parameter of a model: it belongs into the environment of the process that runs the "
                "turn (OPENAI_BASE_URL, ANTHROPIC_BASE_URL), or to a provider of your own in App(providers={…})."
            )
    wrong = misplaced(params)
    if wrong is not None:
        raise UsageError(wrong)
