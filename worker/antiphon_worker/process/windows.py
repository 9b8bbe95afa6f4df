"""How long sessions join their deltas, and when they may send again."""

from __future__ import annotations

import time

WINDOW_SECONDS, LONGEST_WINDOW_SECONDS = 0.015, 0.038
SENDS_A_SECOND = 12_500


class Windows:
    """The windows in which sessions join their deltas: longer if so many send that Redis would be overloaded."""

    def __init__(self) -> None:
        self._last_end = 0.0

    def seconds(self, active: int) -> float:
        """Return how long a window is while this many sessions send."""
        return max(WINDOW_SECONDS, min(active / SENDS_A_SECOND, LONGEST_WINDOW_SECONDS))

    def long(self, active: int) -> bool:
        """Return whether windows are longer than usual."""
        return self.seconds(active) > WINDOW_SECONDS

    def end(self, number: int, active: int) -> float:
        """Return when this many sessions, of all active ones, that send now may send again.

        Long windows end one after the other: calls that come together would all wait for each other, and would come
        together again after each window.
        """
        window = self.seconds(active)
        end = time.monotonic() + window
        if window > WINDOW_SECONDS:
            end = self._last_end = max(end, self._last_end + window * number / active)
        return end
