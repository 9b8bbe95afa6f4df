"""Decides what may be a metric label or span attribute: codes of our errors, and texts that look like names."""

from __future__ import annotations

import re
from functools import cache

from antiphon.errors import AgentError, ProviderError

_NAME = re.compile(r"[\w.:/@+-]{1,100}")
_OWN = {"drained", "newer_release", "worker_crashed", "worker_died", "loop_stalled", "internal_error"}


def is_name(text: str) -> bool:
    """Return whether a text looks like a name: a service or a model may send any text."""
    return _NAME.fullmatch(text) is not None


@cache
def codes() -> frozenset[str]:
    """Return the codes of our errors: an App may raise others, which could contain anything."""
    return frozenset(_codes_below(AgentError) | _OWN)


@cache
def codes_of_providers() -> frozenset[str]:
    """Return the codes of errors that a model service returns or causes."""
    return frozenset(_codes_below(ProviderError))


def _codes_below(kind: type[AgentError]) -> set[str]:
    return {str(kind.code)}.union(*(_codes_below(child) for child in kind.__subclasses__()))
