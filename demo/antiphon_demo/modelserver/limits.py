"""The rate limit of the model server, and the headers with which services report theirs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime


class RateLimit:
    """Lets ``calls`` requests in ``seconds`` through, continuously replenished. 0 calls are no limit.

    ``told`` says whether the headers tell of it, besides ``retry-after-ms``.
    """

    def __init__(self, calls: int, seconds: float, *, told: bool) -> None:
        self._calls = calls
        self._rate = calls / seconds
        self._told = told
        self._left = float(calls)
        self._at = time.monotonic()

    def take(self) -> float | None:
        """Count a request. Returns the seconds to wait where it is one too many, and None where it is not."""
        if not self._calls:
            return None
        now = time.monotonic()
        self._left, self._at = min(self._calls, self._left + (now - self._at) * self._rate), now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return None

    def headers(self, path: str, wait: float | None) -> dict[str, str]:
        """The headers of an answer. Anthropic's path has names and times of its own."""
        found = {} if wait is None else {"retry-after-ms": f"{wait * 1000:.0f}"}
        if not self._calls or not self._told:
            return found
        left, reset = int(self._left), (self._calls - self._left) / self._rate
        if not path.endswith("messages"):
            return found | {
                "x-ratelimit-limit-requests": str(self._calls),
                "x-ratelimit-remaining-requests": str(left),
                "x-ratelimit-reset-requests": f"{reset * 1000:.0f}ms",
            }
        now = datetime.now(UTC)
        return found | {
            "date": format_datetime(now, usegmt=True),
            "anthropic-ratelimit-requests-limit": str(self._calls),
            "anthropic-ratelimit-requests-remaining": str(left),
            "anthropic-ratelimit-requests-reset": (now + timedelta(seconds=reset))
            .isoformat()
            .replace("+00:00", "Z"),
        }
