"""Single values that callers pass in: durations, dictionaries, cursors, and what to do where a session is busy."""

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
    """Seconds of what a caller gives as a duration. Raises ``UsageError`` that names the argument."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"{name}= is a positive number of seconds or a timedelta, not {value!r}.")
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"{name}= is at most {LONGEST_SECONDS:.0f} seconds (100 years), not {value!r}.")
    return float(seconds)


def patience(value: float | timedelta | None) -> float | None:
    """How long a caller waits, in seconds; 0 does not wait. Raises ``UsageError``."""
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if found is None or (isinstance(found, int | float) and not isinstance(found, bool) and found >= 0):
        return found
    raise UsageError(f"timeout= is a number of seconds or a timedelta, not {value!r}.")


def plain(values: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """A copy of a dictionary that JSON can say. Raises ``UsageError`` that names the argument."""
    values = values or {}
    if not isinstance(values, Mapping):
        raise UsageError(f"{name}= is a dictionary, not {type(values).__name__}.")
    try:
        found = _decode_plain(msgspec.json.encode(dict(values))) if values else {}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{name}= holds what JSON cannot say: {exc}.") from exc
    check_plain(name, found)
    return found


_decode_plain = msgspec.json.Decoder(dict[str, Any]).decode


def check_if_busy(value: object) -> IfBusy:
    """Check how a busy session is to be treated. Raises ``UsageError``."""
    if value not in ("enqueue", "reject"):
        raise UsageError(f"if_busy= takes 'enqueue' or 'reject', not {value!r}.")
    return value


def parse_cursor(after: int | str | None) -> int | None:
    """A cursor as callers give it: a number, its text (a Last-Event-ID), or None for from now on."""
    if after is None:
        return None
    try:
        cursor = int(after) if isinstance(after, int | str) else -1
    except ValueError:
        cursor = -1
    if cursor < 0:
        raise UsageError(f"after= takes the seq of an event, 0 or None, not {after!r}.")
    return cursor
