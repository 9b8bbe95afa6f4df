"""What Redis raises, as what we raise."""

from __future__ import annotations

from redis import exceptions as redis_errors

from antiphon.errors import (
    CorruptRecord,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
)

__all__ = ["JournalShorter", "store_error"]

_FULL = "Redis has no memory left (maxmemory): nothing was written. Raise maxmemory or free some."
_READ_ONLY = "This Redis takes no writes: it is a replica, or its disk is full. Point the URL at the primary."


class JournalShorter(CorruptRecord):
    """Redis has lost the end of a turn's journal, as after a power loss: the turn starts again from what is left."""


def store_error(exc: BaseException) -> StoreError:
    """The error a caller sees for an exception of redis-py or of a socket."""
    text = str(exc)
    if isinstance(exc, redis_errors.OutOfMemoryError) or "OOM command not allowed" in text:
        return StoreFull(_FULL)
    if isinstance(exc, redis_errors.ReadOnlyError) or "READONLY" in text or "MISCONF" in text:
        return StoreReadOnly(_READ_ONLY)
    if isinstance(exc, redis_errors.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return StoreUnsupported(f"Redis does not accept the user or password in its URL ({text}).")
    if isinstance(exc, redis_errors.NoPermissionError) or "NOPERM" in text:
        return StoreUnsupported(f"The Redis user may not do what this needs ({text}).")
    if isinstance(exc, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError | TimeoutError):
        return StoreUnavailable(f"Redis cannot be reached ({text or type(exc).__name__}).")
    if isinstance(exc, redis_errors.TryAgainError | redis_errors.ClusterDownError):
        return StoreUnavailable(f"Redis is not ready ({text}).")
    if any(word in text for word in ("LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS")):
        return StoreUnavailable(f"Redis is not ready ({text}).")
    if "WRONGTYPE" in text or "attempt to " in text:  # the latter is said by Lua
        return CorruptRecord(f"A record in Redis is not what was written there ({text}).")
    return StoreError(f"Redis refused a command ({text}).")
