"""Checks single values that callers pass in: durations, dictionaries, cursors and ``if_busy``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from types import UnionType
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import SettingsError, UsageError
from antiphon.input.limits import check_plain

SWITCHES = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "0", ""), False
)

IfBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback", "steer"]
"""What a new turn does if its session has turns: see ``AsyncClient.submit``."""

IfBusyEdit: TypeAlias = Literal["enqueue", "reject"]
"""What an edit does if its session has turns: it waits, or is refused."""

Priority: TypeAlias = Literal["high", "normal", "low"]
"""Which turns go first among those of a tenant, and among those without a tenant."""

Keep: TypeAlias = Literal["partial", "steps", "nothing"]
"""What a cancelled turn leaves in the history: its output so far, its finished steps, or nothing."""

WhileSuspended: TypeAlias = Literal["wait", "continue"]
"""What the session's next turns do while a turn is suspended: wait for it, or overtake it."""

ModelServiceWord: TypeAlias = Literal["standard", "batch"]
"""How the model service answers a turn: at once, or in batches at a lower price."""

Asked: TypeAlias = Literal["", "pending", "failed", "pending failed"]
"""Turns to show in addition to the history: turns that have not ended, and turns that left nothing in it."""

SessionWord: TypeAlias = Literal["delayed", "done", "failed", "running", "suspended", "waiting"]
"""The state of a session, in lists of sessions."""

LONGEST_SECONDS = 100 * 365 * 24 * 3600.0


def now_ms() -> int:
    """Return the time of this machine in ms since 1970."""
    return int(time.time() * 1000)


def is_a(value: object, kind: type | UnionType) -> bool:
    """Return whether an argument matches its annotation. A caller without a type checker may pass anything."""
    return isinstance(value, kind)


def duration(value: float | timedelta | None, name: str) -> float | None:
    """Convert a duration to seconds. Raises ``UsageError``, which names the argument."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not is_a(seconds, int | float) or not seconds > 0:
        raise UsageError(f"{name}= must be a positive number of seconds or a timedelta, not {value!r}.")
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"{name}= must be at most {LONGEST_SECONDS:.0f} seconds (100 years), not {value!r}.")
    return float(seconds)


EVENTS_TTL_SECONDS = 3600
"""How long the events of a session are kept after its last turn, unless its App sets ``events_ttl``."""
SHORTEST_EVENTS_TTL = 60


def events_lifetime(given: float | timedelta | None) -> int | None:
    """Convert ``events_ttl`` to ms for the scripts: None is the default, and 0 is as long as the session.

    Raises ``SettingsError``.
    """
    try:
        seconds = duration(given, "events_ttl")
    except UsageError as exc:
        raise SettingsError(exc.message) from None
    if seconds is not None and seconds < SHORTEST_EVENTS_TTL:
        raise SettingsError(
            f"events_ttl= must be at least {SHORTEST_EVENTS_TTL} seconds, so that readers can return, not {given!r}."
        )
    return None if seconds == EVENTS_TTL_SECONDS else int((seconds or 0) * 1000)


def lifetime(ttl: float | timedelta | UnsetType | None) -> float | UnsetType | None:
    """Convert ``ttl`` to seconds. None is forever, and ``UNSET`` means not given. Raises ``UsageError``."""
    return UNSET if ttl is UNSET else duration(ttl, "ttl")


def page_of_last(last: int | None) -> tuple[int, int]:
    """Return the first and last index of a history's last messages for Redis; None is all. Raises ``UsageError``."""
    if last is None:
        return 0, -1
    if not is_a(last, int) or isinstance(last, bool) or last < 0:
        raise UsageError(f"last= must be a number of messages, not {last!r}.")
    return (-last, -1) if last else (1, 0)


def patience(value: float | timedelta | None) -> float | None:
    """Convert the time that a caller waits to seconds. 0 means not to wait. Raises ``UsageError``."""
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if found is None or (is_a(found, int | float) and not isinstance(found, bool) and found >= 0):
        return found
    raise UsageError(f"timeout= must be a number of seconds or a timedelta, not {value!r}.")


def plain(values: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return a copy of a dictionary with a JSON form. Raises ``UsageError``, which names the argument."""
    values = values or {}
    if not is_a(values, Mapping):
        raise UsageError(f"{name}= must be a dictionary, not {type(values).__name__}.")
    try:
        found = _decode_plain(msgspec.json.encode(dict(values))) if values else {}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{name}= cannot be written as JSON: {exc}.") from exc
    check_plain(name, found)
    return found


_decode_plain = msgspec.json.Decoder(dict[str, Any]).decode


def check_word(value: object, words: Any, name: str) -> Any:
    """Check one of the words of a ``Literal``. Raises ``UsageError``, whose message starts with ``name``."""
    known = [repr(word) for word in get_args(words)]
    if value not in get_args(words):
        expected = (
            f"one of {', '.join(known)}" if len(known) > 3 else f"{', '.join(known[:-1])} or {known[-1]}"
        )
        raise UsageError(f"{name} must be {expected}, not {value!r}.")
    return value


def check_if_busy_edit(value: object) -> IfBusyEdit:
    """Check ``if_busy`` of an edit. Raises ``UsageError``."""
    return check_word(value, IfBusyEdit, "if_busy= of an edit")


def check_keep(value: object) -> Keep:
    """Check ``keep``, which selects what a cancelled turn leaves in the history. Raises ``UsageError``."""
    return check_word(value, Keep, "keep=")


def parse_switch(text: str) -> bool:
    """Convert ``true``, ``yes``, ``on`` or ``1``, and ``false``, ``no``, ``off``, ``0`` or nothing.

    Raises ``ValueError`` for other words.

    >>> parse_switch("on"), parse_switch("false")
    (True, False)
    """
    word = text.strip().lower()
    if word not in SWITCHES:
        raise ValueError(f"{text!r} is neither yes nor no")
    return SWITCHES[word]


def parse_cursor(after: int | str | None, name: str = "after") -> int | None:
    """Read a cursor: a number, its text (a Last-Event-ID), or None for new events only. Raises ``UsageError``."""
    if after is None:
        return None
    try:
        cursor = int(after) if is_a(after, int | str) else -1
    except ValueError:
        cursor = -1
    if cursor < 0:
        raise UsageError(f"{name}= must be the seq of an event, 0 or None, not {after!r}.")
    return cursor
