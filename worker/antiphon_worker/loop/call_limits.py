"""Computes the most that a model call may use from its request: budgets reserve that before the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from antiphon.errors import ProviderRejected
from antiphon.window import BYTES_PER_TOKEN
from antiphon_worker.loop.costs import estimated_input
from antiphon_worker.providers.base import ModelRequest

MOST_OUTPUT = 16_384
OUTPUT_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens")
"""The parameters that limit the output of a model call; a provider sends the one that its service supports."""
ANSWERS = ("n", "best_of")
"""The parameters that request several answers."""
MOST = 1_000_000_000


def with_an_end(request: ModelRequest) -> ModelRequest:
    """Return the request with an output limit. Raises ``ProviderRejected`` if its use cannot be reserved."""
    for given in _given(request):
        for name in (*OUTPUT_LIMITS, *ANSWERS):
            _check(name, given.get(name))
    if _limits(request):
        return request
    params = request.params
    thinking = params.get("thinking")
    tokens: Any = params.get("reasoning")
    if isinstance(thinking, dict):
        tokens = cast("dict[str, Any]", thinking).get("budget_tokens")
    more = min(max(tokens, 0), MOST) if type(tokens) is int else 0
    return msgspec.structs.replace(request, params=params | {"max_tokens": MOST_OUTPUT + more})


def most_of(request: ModelRequest) -> tuple[int, int]:
    """Return the most input and output tokens that a call may have. A token of input has at least one byte."""
    answers = [one[name] for one in _given(request) for name in ANSWERS if one.get(name) is not None]
    output = max(_limits(request), default=0) * max(answers, default=1)
    return estimated_input(request) * BYTES_PER_TOKEN, output


def _given(request: ModelRequest) -> list[Mapping[str, Any]]:
    """Return the parameters of the request, and those that ``extra_body`` adds to its body."""
    added = request.params.get("extra_body")
    return [request.params, added] if isinstance(added, Mapping) else [request.params]


def _limits(request: ModelRequest) -> list[int]:
    return [one[name] for one in _given(request) for name in OUTPUT_LIMITS if one.get(name) is not None]


def _check(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= MOST):
        raise ProviderRejected(
            f"{name}= must be a whole number from 1 to {MOST:,} where a budget pays for the call, not {value!r:.80}."
        )
