"""Converts errors of Redis to ours."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Self

from redis import exceptions as redis_errors

from antiphon.errors import (
    AgentError,
    CorruptRecord,
    KeyReused,
    LimitReached,
    NotReplicated,
    SessionBusy,
    SessionChanged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
    TenantLimit,
    TurnDeleted,
    TurnNotFound,
    UsageError,
    WrongTenant,
)
from antiphon.input.ids import SessionId, TurnId, other_tenant
from antiphon.input.limits import LIMITS
from antiphon.text import text_of
from antiphon.wire.connection.cluster import CellsDiffer
from antiphon.wire.connection.moved import CellMoved, MarkerDamaged
from antiphon.wire.connection.replicated import NotReplicatedError
from antiphon.wire.records import NewTurn

_FULL = "Redis has no memory left (maxmemory): nothing was written. Raise maxmemory or free memory."
_READ_ONLY = (
    "This Redis refuses writes: it is a replica, or its disk is full. "
    "Point the URL at the primary, or free disk space."
)

_NO_SENTINEL = (
    "The URL asks for Sentinels (redis+sentinel://), but this server is no Sentinel: name the hosts and ports of "
    "Sentinels, or write redis:// to use this server itself."
)

_NOT_REPLICATED = (
    "Redis has done this, but {}: a failover may lose it. Check the replicas of this Redis and repeat the call, with "
    "the same key= if it submits a turn."
)

_CLUSTER = (
    "This server is part of a Redis Cluster: write redis+cluster://host:port?cells=64, with the number of cells of the "
    "deployment."
)
_OF_A_CLUSTER = (redis_errors.ClusterError, redis_errors.AskError, redis_errors.ClusterCrossSlotError)

_OF_DAMAGE = (
    "WRONGTYPE",
    "is not an integer",
    "is not a valid float",
    "attempt to ",
)  # Lua reports the last one

_FULL_OF = {
    "delayed_turns": "This Redis has {} delayed turns already. Submit the turn again when some are due.",
    "session_file_bytes": "The files of this session have {} bytes together. Remove files, or use another session.",
    "session_files": "This session has {} files already. Remove files, or use another session.",
    "session_users": "The turns of this session name {} users already. Use another session.",
    "sessions": "This Redis has {} sessions already. Delete sessions, or give them a shorter ttl=.",
}

_TENANT_LIMITS = {
    "tenant_turns": "The tenant of the session has {} turns that have not ended. Submit again when some have ended.",
    "waiting": "The tenant of the session has {} turns that wait. Submit again when some have begun.",
    "per_minute": "The tenant of the session has submitted {} turns in a minute. Submit again after `retry_after`.",
    "user_turns": "The user has {} turns that have not ended. Submit again when some have ended.",
    "stored_bytes": "The files of the tenant may have {} bytes together. Remove files, or delete sessions.",
    "user_per_minute": "The user has submitted {} turns in a minute. Submit again after `retry_after`.",
}


STORED_AGAIN_SECONDS = 60.0
"""When a caller may retry to store a file whose tenant has no room: files may be removed at any time."""


class JournalConflict(CorruptRecord):
    """The journal of a turn is not as long as its worker thinks."""

    @classmethod
    def at(cls, found: int, length: int, session_id: str, turn_id: str) -> Self:
        text = f"The journal has {found} entries instead of {length}."
        return cls(text, session_id=session_id, turn_id=turn_id)


class JournalShorter(JournalConflict):
    """Redis has lost the end of a turn's journal, as after a power loss. The turn continues from what is left."""


class CancelledFirst(Exception):
    """The turn was cancelled before its worker wrote this: it can end only as cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def asked(answer: Awaitable[Any] | Any) -> Any:
    """Return the answer of Redis. Raises the ``StoreError`` for an error of redis-py or of a socket."""
    try:
        return await answer
    except (redis_errors.RedisError, OSError) as exc:
        raise store_error(exc) from exc


_OF_THE_URL = ("NOAUTH", "WRONGPASS", "DB index is out of range")


def store_error(exc: BaseException) -> StoreError:
    """Return the error that a caller sees for an exception of redis-py or of a socket."""
    text = str(exc)
    if isinstance(exc, redis_errors.OutOfMemoryError) or "OOM command not allowed" in text:
        return StoreFull(_FULL)
    if isinstance(exc, redis_errors.ReadOnlyError) or "READONLY" in text or "MISCONF" in text:
        return StoreReadOnly(_READ_ONLY)
    if isinstance(exc, redis_errors.AuthenticationError) or any(word in text for word in _OF_THE_URL):
        what = "database" if "DB index" in text else "user or password"
        return StoreUnsupported(f"Redis refuses the {what} of the URL ({text}): correct the URL.")
    if isinstance(exc, redis_errors.NoPermissionError) or "NOPERM" in text:
        return StoreUnsupported(
            f"The Redis user may not do what this call needs ({text}): allow it with ACL SETUSER."
        )
    if isinstance(exc, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError | TimeoutError):
        return StoreUnavailable(f"Redis cannot be reached ({text.rstrip('.') or type(exc).__name__}).")
    if isinstance(exc, NotReplicatedError):
        return NotReplicated(_NOT_REPLICATED.format(text))
    if isinstance(exc, CellsDiffer | CellMoved | MarkerDamaged):
        return StoreUnsupported(text)
    if isinstance(exc, _OF_A_CLUSTER) or "in a cluster node" in text:
        return StoreUnsupported(_CLUSTER)
    if any(word in text for word in ("LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS")):
        return StoreUnavailable(f"Redis is not ready ({text}).")
    if "unknown command" in text and "SENTINEL" in text:
        return StoreUnsupported(_NO_SENTINEL)
    if any(words in text for words in _OF_DAMAGE):
        return CorruptRecord(f"A record in Redis is not what was written there ({text}).")
    return StoreError(f"Redis refused a command ({text}).")


def unexpected(script: str, answer: Any) -> CorruptRecord:
    """Make the error for an unknown answer. It names only the first word, because the answer may hold users' text."""
    words: list[Any] = [*answer, None] if isinstance(answer, list) else [answer]
    word = words[0]
    said = repr(word[:40]) if isinstance(word, bytes) else type(word).__name__
    return CorruptRecord(f"The script {script!r} returned an unknown answer: {said}.")


def full(limit: str, session_id: str) -> LimitReached:
    """Return the error of a call that Redis has no room for because a count has reached this limit."""
    text = _FULL_OF[limit].format(getattr(LIMITS, limit))
    return LimitReached(f"{text} (limit {limit})", limit=limit, session_id=session_id)


def tenant_limit(limit: str, number: int, retry_after: float, session_id: str) -> TenantLimit:
    """Return the error of a call that would exceed a limit of the session's tenant."""
    text = _TENANT_LIMITS[limit].format(number)
    return TenantLimit(text, limit=limit, retry_after=retry_after, session_id=session_id)


def begun_by_another(session_id: str) -> WrongTenant:
    """Return the error for a session whose name another tenant uses now."""
    return WrongTenant(
        "Another tenant has begun a session of this name: submit a new turn to another one.",
        session_id=session_id,
    )


def unknown_turn(turn_id: TurnId) -> TurnNotFound:
    """Return the error of a call about a turn that Redis does not have."""
    return TurnNotFound(f"Unknown turn {turn_id!r} (turns expire 7 days after their end).", turn_id=turn_id)


def accepted(turn: NewTurn, answer: Any) -> int:
    """Return the position of a submitted turn. Raises the error of ``refusal`` if it was not accepted."""
    if answer[:1] == [b"ACCEPTED"]:
        return int(answer[1] or 0)
    raise refusal(answer, turn.session_id, turn.turn_id, turn.tenant)


def refusal(answer: Any, session_id: SessionId, turn_id: TurnId, tenant: str) -> AgentError:
    match answer:
        case [b"KEY_REUSED"]:
            return KeyReused(session_id=session_id, turn_id=turn_id)
        case [b"TURN_DELETED"]:
            return TurnDeleted(session_id=session_id, turn_id=turn_id)
        case [b"SESSION_BUSY", turn]:
            known = text_of(turn)
            said = f"The session is running the turn {known}: try again when it has ended."
            return SessionBusy(said, session_id=session_id, turn_id=known)
        case [b"SESSION_CHANGED", seq]:
            said = f"The session has gone on: its last event is {int(seq)}."
            return SessionChanged(said, session_id=session_id)
        case [b"INBOX_FULL", length]:
            return SessionBusy(f"The session's inbox is full ({length} turns).", session_id=session_id)
        case [b"SESSION_CLOSED"]:
            return UsageError("The session is closed.", session_id=session_id)
        case [b"OTHER_TENANT"]:
            return other_tenant(session_id, tenant) if tenant else begun_by_another(session_id)
        case [b"FULL", limit]:
            return full(text_of(limit), session_id)
        case [b"TENANT_LIMIT", limit, number, wait_ms]:
            return tenant_limit(text_of(limit), number, wait_ms / 1000, session_id)
        case [b"OUT_OF_RANGE"]:
            return UsageError("delay= and ttl= must be at most 100 years.", session_id=session_id)
        case _:
            return unexpected("submit", answer)
