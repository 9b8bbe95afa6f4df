"""Smooths the delay of sent deltas, which shows whether this process or its Redis is overloaded."""

from __future__ import annotations

import math

HIGH_SECONDS = 0.05
WEIGHT = 0.2
FORGET_SECONDS = 1.0


class Lag:
    """The smoothed recent delay, compared with the shortest one: a distant Redis does not count as overloaded."""

    def __init__(self) -> None:
        self._smooth = 0.0
        self._shortest = math.inf
        self._noted_at = -math.inf

    def note(self, now: float, seconds: float) -> None:
        """Record a delay; ``now`` is a time of the monotonic clock."""
        if not self._fresh(now):
            self._smooth = 0.0
        self._noted_at = now
        self._shortest = min(self._shortest, seconds)
        self._smooth += WEIGHT * (seconds - self._smooth)

    def high(self, now: float) -> bool:
        """Return whether the delays of the last second were too long."""
        return self._fresh(now) and self._smooth > HIGH_SECONDS + 2 * self._shortest

    def seconds(self, now: float) -> float:
        """Return the smoothed delay, or 0 if there was none in the last second."""
        return self._smooth if self._fresh(now) else 0.0

    def _fresh(self, now: float) -> bool:
        return now - self._noted_at <= FORGET_SECONDS
