"""The steps of the archiver, and of workers that restore sessions: one script each, with its answers as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from redis.exceptions import RedisError

from antiphon.encryption.records import SESSION
from antiphon.input.ids import Fence, SessionId
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.editing import FieldChange, flat_fields
from antiphon.wire.errors import asked, store_error, unexpected
from antiphon.wire.records import pairs

PAGE = 1000
DAY_MS = 24 * 3600 * 1000

Refusal = Literal["", "closed", "tenant"]
"""The reason why turns that were accepted before their session was restored must fail."""

Restored = Literal["RESTORED", "FORGOTTEN", "CONFLICT", "SUPERSEDED"]


class Forget(Struct, frozen=True):
    """The copy of this deleted session must be removed."""

    session_id: SessionId


class Unasked(Struct, frozen=True):
    """This session ends soon. Its earlier copy must be restored from the store before the session is saved."""

    session_id: SessionId


class Late(Struct, frozen=True):
    """The history of this session ended before it was saved."""

    session_id: SessionId


class Ending(Struct, frozen=True):
    """This session ends soon and must be saved. ``left_ms`` is its remaining time to live."""

    session_id: SessionId
    version: bytes
    left_ms: int
    fields: dict[str, bytes]
    history: list[bytes]


async def begin_archiving(cell: Cell) -> None:
    """Record that an archive is in use; repeating it is harmless.

    From now on, existing and new sessions are archived before they end. Deleted sessions are remembered until their
    copies are gone.
    """
    redis: Any = cell.redis
    keys = cell.keys
    try:
        if await redis.exists(keys.seq_floor):
            return
        start = 0
        while found := await redis.zrange(keys.sessions, start, start + PAGE - 1, withscores=True):
            await redis.zadd(keys.ending, {session: end - DAY_MS for session, end in found}, nx=True)
            start += PAGE
        await redis.set(keys.seq_floor, 0, nx=True)
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc


async def take_work(cell: Cell) -> Forget | Unasked | Late | Ending | None:
    """Return the archiver's next task, which no other archiver gets within a minute, or None."""
    while True:
        match await cell.run("archiving/take", 0):
            case [b"FORGET", session]:
                return Forget(SessionId(text_of(session)))
            case [b"UNASKED", session]:
                return Unasked(SessionId(text_of(session)))
            case [b"LATE", session]:
                return Late(SessionId(text_of(session)))
            case [b"ENDING", session, version, left_ms, fields, history]:
                return Ending(SessionId(text_of(session)), version, int(left_ms), pairs(fields), history)
            case [b"NOTHING"]:
                return None
            case [b"MORE"]:
                continue
            case answer:
                raise unexpected("take", answer)


def open_ending(cell: Cell, ending: Ending) -> Ending:
    """Return a session that is to be saved, decrypted. Raises ``KeyMissing`` and ``SealBroken``."""
    session = ending.session_id
    fields = cell.seal.open_fields(session, SESSION, ending.fields)
    history = cell.seal.open_all(session, "message", ending.history)
    return Ending(session, ending.version, ending.left_ms, fields, history)


async def put_off(cell: Cell, count: int) -> None:
    """Prolong up to ``count`` sessions that end soon, because they cannot be saved now."""
    await cell.run("archiving/take", count)


async def mark_archived(cell: Cell, ending: Ending) -> bool:
    """End a session that was saved. Returns False if it has changed since; then it continues to exist."""
    match await cell.run("archiving/mark", ending.session_id, ending.version, ending.left_ms):
        case [b"OK"]:
            return True
        case [b"CHANGED"] | [b"DELETED"]:
            return False
        case answer:
            raise unexpected("mark", answer)


async def set_aside(cell: Cell, session_id: SessionId, copy: str, keep_ms: int) -> None:
    """Record that this copy of a session, which is about to be saved, must be removed after this time."""
    await cell.run_for(b"OK", "archiving/set_aside", session_id, copy, keep_ms)


async def forgotten(cell: Cell, session_id: SessionId) -> None:
    """Record that the copy of a deleted session is gone."""
    await cell.run_for(b"OK", "archiving/forgotten", session_id)


async def is_deleted(cell: Cell, session_id: SessionId) -> bool:
    """Return whether the session was deleted, so that its archived copy is not part of its history. This stays true
    until the copy is gone, and for at least a minute.
    """
    return await asked(cell.redis.zscore(cell.keys.forget, session_id)) is not None


async def restore_session(
    cell: Cell,
    session_id: SessionId,
    fence: Fence | Literal[""],
    *,
    fields: Sequence[FieldChange],
    messages: Sequence[bytes],
    refuse: Refusal,
) -> Restored:
    """Insert the archived fields and messages before those of the session, once in its lifetime."""
    flat = flat_fields(cell, session_id, fields)
    sealed = cell.seal.seal_all(session_id, "message", messages)
    match await cell.run("archiving/restore", session_id, fence, refuse, len(fields), *flat, *sealed):
        case [b"RESTORED"]:
            return "RESTORED"
        case [b"FORGOTTEN"]:
            return "FORGOTTEN"
        case [b"CONFLICT"]:
            return "CONFLICT"
        case [b"SUPERSEDED"]:
            return "SUPERSEDED"
        case answer:
            raise unexpected("restore", answer)
