"""Checks single values that callers pass in: durations, dictionaries, cursors and ``if_busy``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from antiphon.errors import UsageError
from antiphon.input.limits import check_plain

__all__ = ["IfBusy", "check_if_busy", "duration", "parse_cursor", "patience", "plain"]

IfBusy: TypeAlias = Literal["enqueue", "reject"]

LONGEST_SECONDS = 100 * 365 * 24 * 3600.0


def duration(value: float | timedelta | None, name: str) -> float | None:
    """Convert a duration to seconds. Raises ``UsageError``, which names the argument."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"{name}= must be a positive number of seconds or a timedelta, not {value!r}.")
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"{name}= must be at most {LONGEST_SECONDS:.0f} seconds (100 years), not {value!r}.")
    return float(seconds)


def patience(value: float | timedelta | None) -> float | None:
    """Convert the time that a caller waits to seconds. 0 means not to wait. Raises ``UsageError``."""
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if found is None or (isinstance(found, int | float) and not isinstance(found, bool) and found >= 0):
        return found
    raise UsageError(f"timeout= must be a number of seconds or a timedelta, not {value!r}.")


def plain(values: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return a copy of a dictionary with a JSON form. Raises ``UsageError``, which names the argument."""
    values = values or {}
    if not isinstance(values, Mapping):
        raise UsageError(f"{name}= must be a dictionary, not {type(values).__name__}.")
    try:
        found = _decode_plain(msgspec.json.encode(dict(values))) if values else {}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{name}= cannot be written as JSON: {exc}.") from exc
    check_plain(name, found)
    return found


_decode_plain = msgspec.json.Decoder(dict[str, Any]).decode


def check_if_busy(value: object) -> IfBusy:
    """Check ``if_busy``, which says what to do if a session is busy. Raises ``UsageError``."""
    if value not in ("enqueue", "reject"):
        raise UsageError(f"if_busy= must be 'enqueue' or 'reject', not {value!r}.")
    return value


def parse_cursor(after: int | str | None) -> int | None:
    """Read a cursor: a number, its text (a Last-Event-ID), or None for new events only. Raises ``UsageError``."""
    if after is None:
        return None
    try:
        cursor = int(after) if isinstance(after, int | str) else -1
    except ValueError:
        cursor = -1
    if cursor < 0:
        raise UsageError(f"after= must be the seq of an event, 0 or None, not {after!r}.")
    return cursor
