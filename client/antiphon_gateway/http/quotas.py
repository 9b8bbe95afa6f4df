"""What one caller may take of this process: requests a second, and open streams.

Each replica counts for itself. What is counted is lost with the process, and nobody misses it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

from antiphon_gateway.problems import Refused

MOST_CALLERS = 10_000


class _Taken:
    """What a caller has taken: ``left`` requests at the time ``at``, and ``streams`` that are open."""

    __slots__ = ("at", "left", "streams")

    def __init__(self, left: float) -> None:
        self.left, self.at, self.streams = left, time.monotonic(), 0


class Quotas:
    """Counts by the caller's name. ``rate`` requests a second may come, twice as many at once."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _Taken] = OrderedDict()
        self.streams = 0  # that are open, of all callers

    def take(self, name: str, rate: float) -> None:
        """Count one request. Raises ``Refused`` with 429 if the caller is too quick."""
        most = max(1.0, rate * 2)
        taken, now = self._of(name, most), time.monotonic()
        taken.left = min(most, taken.left + (now - taken.at) * rate)
        taken.at = now
        if taken.left < 1:
            raise Refused(
                429, "too_many_requests", f"This key may make {rate:g} requests a second: wait.",
                retry_after=(1 - taken.left) / rate, limit="rate",
            )  # fmt: skip
        taken.left -= 1

    @contextmanager
    def stream(self, name: str, most: int) -> Generator[None]:
        """Count one stream for as long as it is open. Raises ``Refused`` with 429 if the caller has too many."""
        taken = self._of(name, 1)
        if taken.streams >= most:
            raise Refused(
                429, "too_many_streams", f"This key may hold {most} streams at once: close one.",
                retry_after=1, limit="streams",
            )  # fmt: skip
        taken.streams += 1
        self.streams += 1
        try:
            yield
        finally:
            taken.streams -= 1
            self.streams -= 1

    def _of(self, name: str, left: float) -> _Taken:
        found = self._callers.get(name)
        if found is None:
            found = self._callers[name] = _Taken(left)
            self._forget()
        self._callers.move_to_end(name)
        return found

    def _forget(self) -> None:
        """Forget the callers that were not heard from for longest and hold no stream."""
        for name in list(self._callers)[: max(0, len(self._callers) - MOST_CALLERS)]:
            if not self._callers[name].streams:
                del self._callers[name]
