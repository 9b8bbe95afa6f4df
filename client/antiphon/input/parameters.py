"""Checks model parameters: no API keys, and no keywords that belong to another call of Antiphon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from antiphon.errors import UsageError
from antiphon.input.extras import misplaced

__all__ = ["ModelParams", "check_params", "check_secrets"]


class ModelParams(TypedDict, total=False):
    """The model parameters that editors complete, for all services.

    Other parameters reach the service as well. Type checkers accept them in ``extra_body`` and in ``Agent(…)``.
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
"""Options for the connection of a provider. They stay in the process that calls the service."""

BELONGS: dict[str, str] = {
    "key": "session.submit(…, key=…)",
    "delay": "session.submit(…, delay=…)",
    "schema": "session.run(…, schema=…)",
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
    "params": "the keywords themselves, such as Agent(…, temperature=0.2)",
    "providers": "App(providers={…})",
}
OURS = [*BELONGS, "timeout", "metadata", "queue", "tools", "store"]
ALIKE = 0.8


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for secrets, and for keywords that belong to another call or look misspelt."""
    check_secrets(params)
    for name in params:
        if name in BELONGS:
            raise UsageError(
                f"{name}= is not a model parameter: use {BELONGS[name]}. If the model does have a parameter with this "
                "name, put it into extra_body={…}."
            )
        near = [] if name in OURS else get_close_matches(name, OURS, 1, ALIKE)
        if near:
            raise UsageError(
                f"{name}= is not known: did you mean {near[0]}=? If the model does have a parameter with this name, "
                "put it into extra_body={…}."
            )


def check_secrets(params: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for parameters that must not be sent with a turn.

    These are API keys and addresses of services, and ``extra_headers``, ``extra_query`` and ``extra_body`` that change
    how or where the request is sent (see ``antiphon.input.extras``).
    """
    for name in params:
        if name.lower() in SECRET:
            raise UsageError(
                f"{name}= is not a model parameter, and would be saved with the turn. Set the key in the environment "
                "of the process that runs the turn (OPENAI_API_KEY, ANTHROPIC_API_KEY), or in a provider in the "
                "worker's App(providers={…})."
            )
    for name in params:
        if name in CONNECTION:
            raise UsageError(
                f"{name}= is not a model parameter. Set it in the environment of the process that runs the turn "
                "(OPENAI_BASE_URL, ANTHROPIC_BASE_URL), or in a provider in App(providers={…})."
            )
    wrong = misplaced(params)
    if wrong is not None:
        raise UsageError(wrong)
