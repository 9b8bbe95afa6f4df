"""The rate limit of the model server, and the headers with which services report theirs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime


class RateLimit:
    """Lets ``calls`` requests through in ``seconds``, continuously replenished. 0 calls mean no limit.

    ``told`` is true if headers other than ``retry-after-ms`` report it.
    """

    def __init__(self, calls: int, seconds: float, *, told: bool) -> None:
        self._calls = calls
        self._rate = calls / seconds
        self._told = told
        self._left = float(calls)
        self._at = time.monotonic()

    def take(self) -> float | None:
        """Count a request. Returns the seconds to wait if it is one too many, else None."""
        if not self._calls:
            return None
        now = time.monotonic()
        self._left, self._at = min(self._calls, self._left + (now - self._at) * self._rate), now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return None

    def headers(self, path: str, wait: float | None) -> dict[str, str]:
        """Return the headers of an answer. Anthropic's path has its own header names and time format."""
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
