"""Rate limits of model services: how to read them from headers, and the gate where a worker's calls wait.

This module does not use Redis or sessions. A worker passes its gate with each request; without one, nothing waits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

from msgspec import Struct

from antiphon.errors import ProviderError, ProviderRateLimited
from antiphon_worker.providers.errors import retry_after

NEAR = 0.05
"""A limit is near when no more than this fraction of it is left."""
UNKNOWN_WAIT_SECONDS = 1.0
LONGEST_NAME = 100
_COUNTERS = (
    ("requests", "x-ratelimit-{}-requests"),
    ("tokens", "x-ratelimit-{}-tokens"),
    ("requests", "anthropic-ratelimit-requests-{}"),
    ("tokens", "anthropic-ratelimit-tokens-{}"),
    ("tokens", "anthropic-ratelimit-input-tokens-{}"),
    ("tokens", "anthropic-ratelimit-output-tokens-{}"),
)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Pressure(Struct, frozen=True):
    """A limit that is reached or near: no call for ``wait`` seconds, then one every ``gap`` seconds (0: unknown)."""

    wait: float
    gap: float = 0.0


class HeldBack(ProviderRateLimited):
    """The call was not sent, because a limit is known: try again later."""


class Gate(Protocol):
    """Where calls wait for a known rate limit. A scope is a provider with a model and a key."""

    @property
    def known(self) -> Container[str]:
        """The scopes with a limit. If there are none, no call needs to enter."""
        ...

    async def enter(self, scope: str) -> None:
        """Return when a call may start, or raise ``HeldBack`` with that time."""
        ...

    async def heard(self, scope: str, pressure: Pressure) -> None:
        """Record a limit reported by a service. Raises nothing."""
        ...


def scope_of(provider: str, model: str, base_url: str, key: str) -> str:
    """Return the name of a scope that shares a limit. It contains part of a hash in place of the key."""
    whole = "\0".join((provider, model, base_url, key)).encode("utf-8", "surrogatepass")
    name = f"{provider}/{model}".encode("ascii", "replace").decode()[:LONGEST_NAME]
    return f"{name}/{hashlib.sha256(whole).hexdigest()[:16]}"


def pressure_of(raw: Sequence[tuple[bytes, bytes]]) -> Pressure | None:
    """Return the limit that the headers of an answer report as near, or None."""
    told = False
    for name, _ in raw:
        if b"atelimit" in name or b"ateLimit" in name or b"ATELIMIT" in name:  # no call per header
            told = True
    if not told:
        return None
    return _near(
        {name.lower().decode("ascii", "replace"): value.decode("ascii", "replace") for name, value in raw}
    )


def pressure_of_error(error: ProviderError, headers: Mapping[str, str]) -> Pressure | None:
    """Return the limit that an error reports as reached, or None for other errors and for exhausted quotas."""
    if not isinstance(error, ProviderRateLimited) or not error.retryable:
        return None
    wait = retry_after(headers) if error.retry_after is None else error.retry_after
    near = _near({name.lower(): value for name, value in headers.items()})
    if wait is None:
        wait = near.wait if near and near.wait else UNKNOWN_WAIT_SECONDS
    return Pressure(wait, near.gap if near else 0.0)


class _Counter(Struct, frozen=True):
    """A limit, how much of it is left, and the seconds until all of it is available again."""

    limit: float
    left: float
    reset: float

    @property
    def rate(self) -> float:
        """How much becomes available per second."""
        return (self.limit - self.left) / self.reset if self.reset > 0 else 0.0

    @property
    def near(self) -> bool:
        return self.left <= self.limit * NEAR and self.rate > 0


def _near(headers: Mapping[str, str]) -> Pressure | None:
    wait, gap, found = 0.0, 0.0, False
    for kind, template in _COUNTERS:
        counter = _counter(headers, template)
        if counter is None or not counter.near:
            continue
        found = True
        if kind == "requests":
            gap = max(gap, 1 / counter.rate)
            wait = max(wait, 1 / counter.rate if counter.left < 1 else 0.0)
        else:
            wait = max(wait, (counter.limit * NEAR - counter.left) / counter.rate)
    return Pressure(wait, gap) if found else None


def _counter(headers: Mapping[str, str], template: str) -> _Counter | None:
    limit, left, reset = (headers.get(template.format(name)) for name in ("limit", "remaining", "reset"))
    if limit is None or left is None or reset is None:
        return None
    try:
        seconds = _seconds(reset, headers.get("date"))
        counter = _Counter(float(limit), float(left), seconds)
    except (ValueError, OverflowError, TypeError):  # a time without its zone
        return None
    known = 0 <= counter.left <= counter.limit < float("inf") and 0 <= counter.reset < 86_400 * 7
    return counter if known and counter.limit > 0 else None


def _seconds(text: str, date: str | None) -> float:
    """Read ``6m0s``, ``120ms``, ``7.5``, or a time by the service's clock (its ``date``). Raises ``ValueError``."""
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "T" not in text:
        return float(text)
    now = parsedate_to_datetime(date) if date else datetime.now(UTC)
    until = datetime.fromisoformat(text)
    return max(0.0, (until - now).total_seconds())
