"""Says whether and when a turn is tried again whose model service failed, for every runtime."""

from __future__ import annotations

import random

from antiphon.errors import ProviderError
from antiphon.model import Retry

__all__ = ["FALLBACK_SECONDS", "seconds_until_retry"]

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0
SHORTEST_SHARE = 8
FALLBACK_SECONDS = 10.0
"""For how long a model is tried again that has a fallback, unless the agent says so: somebody waits for an answer."""


def seconds_until_retry(error: ProviderError, errors: int, failing: float, retry: Retry) -> float | None:
    """Return the seconds until the next try, or None where the policy gives up.

    ``errors`` is how many errors the run has had before this one, and ``failing`` for how many seconds the service has
    failed in this step: a turn that makes progress begins anew.
    """
    if not error.retryable or not _listed(error, retry):
        return None
    if retry.times is not None and errors >= retry.times:
        return None
    delay = _delay(error, errors, FIRST_DELAY_SECONDS if retry.delay is None else max(retry.delay, 0.0))
    return delay if failing + delay <= retry.seconds else None


def _listed(error: ProviderError, retry: Retry) -> bool:
    """Whether the policy names the error's code, or that of a class above it."""
    return retry.codes is None or any(
        getattr(kind, "code", None) in retry.codes for kind in type(error).__mro__
    )


def _delay(error: ProviderError, errors: int, first: float) -> float:
    """What the service asked for, or doubling ones. A service that asks for too little gets a share of those."""
    doubling = min(first * 2 ** min(errors, 30), LONGEST_DELAY_SECONDS)
    if error.retry_after is None:
        return doubling * random.uniform(0.8, 1.2)
    return min(max(error.retry_after, doubling / SHORTEST_SHARE), LONGEST_DELAY_SECONDS)
