"""When a schedule is due next: every so many seconds, or by cron text in a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from antiphon.errors import MissingPackage, UsageError
from antiphon.input.values import duration

__all__ = ["check_times", "next_due"]


def check_times(every: float | timedelta | None, cron: str | None, tz: str) -> int:
    """Check when a schedule is due, and return ``every`` in ms, 0 with ``cron``. Raises ``UsageError``."""
    if (every is None) == (cron is None):
        raise UsageError("A schedule needs every= (seconds or a timedelta) or cron= (text), and not both.")
    if cron is not None:
        next_due(0, cron, tz, after=0, now=0)
        return 0
    seconds = duration(every, "every")
    if seconds is None or seconds < 1:
        raise UsageError(f"every= must be at least a second, not {every!r}.")
    return int(seconds * 1000)


def next_due(every_ms: int, cron: str, tz: str, *, after: int, now: int) -> int:
    """Return the first time after ``now`` at which a schedule is due, in ms. ``after`` is when it was due last."""
    if every_ms:
        return after + every_ms * max(1, (now - after) // every_ms + 1)
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise MissingPackage("Cron text needs the package cronsim: pip install 'antiphon[cron]'.") from None
    try:
        zone = UTC if tz == "UTC" else ZoneInfo(tz)
        found = next(CronSim(cron, datetime.fromtimestamp(now / 1000, zone)))
    except (CronSimError, StopIteration) as exc:
        raise UsageError(f"cron= cannot be read, or is never due: {cron!r} ({exc}).") from exc
    except (KeyError, ValueError, OSError) as exc:
        raise UsageError(f"tz= is no time zone of this machine: {tz!r}.") from exc
    return int(found.timestamp() * 1000)
