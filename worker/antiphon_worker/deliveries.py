"""Determines from an endpoint's answer whether a delivery is finished, and when it is tried again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from antiphon_worker.providers.http.posting import Posted

TIMEOUT_SECONDS = 10.0
"""How long an endpoint may take to answer, in seconds."""
SHORTEST_SECONDS, LONGEST_SECONDS, GIVEN_UP_SECONDS = 5.0, 3600.0, 86_400.0
GONE = 410


def verdict(posted: Posted, age: float) -> tuple[Literal["delivered", "dropped", "later"], float]:
    """Return the state of a delivery created ``age`` seconds ago, and the seconds until the next try."""
    if 200 <= posted.status < 300:
        return "delivered", 0.0
    seconds = max(seconds_until_next(age), min(posted.retry_after or 0.0, LONGEST_SECONDS))
    if posted.status == GONE or age + seconds > GIVEN_UP_SECONDS:
        return "dropped", 0.0
    return "later", seconds


def seconds_until_next(age: float) -> float:
    """Return the seconds until the next try: about as long as the delivery has waited, from 5 s to an hour."""
    return min(max(age, SHORTEST_SECONDS), LONGEST_SECONDS) * random.uniform(0.9, 1.1)
