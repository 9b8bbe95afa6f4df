"""Changes of sessions outside their turns: one script each, with its answers as values or errors."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, field
from redis.exceptions import RedisError

from antiphon.errors import CorruptRecord, SessionExists, UsageError
from antiphon.input.ids import SessionId, TurnId
from antiphon.wire.cell import Cell
from antiphon.wire.errors import store_error
from antiphon.wire.scripts import load_script, run_script

__all__ = [
    "Busy",
    "Change",
    "FieldChange",
    "Moment",
    "change_session",
    "delete_session",
    "fork_session",
    "new_op",
]

Moment = Literal["idle", "between", "any"]
"""When a change may happen: with an empty inbox, while no turn of it has begun, or at any time."""


class FieldChange(Struct, frozen=True):
    """A field of a session as it was read, and as it is to be; empty means that it is not there."""

    name: str
    old: bytes
    new: bytes


class Change(Struct):
    """What is to change. ``length`` is that of the history as it was read (None: whatever it is), ``keep`` the number
    of messages that stay at its beginning (None: all of them)."""

    fields: list[FieldChange] = field(default_factory=list[FieldChange])
    length: int | None = None
    keep: int | None = None
    messages: Sequence[bytes] = ()
    bodies: Sequence[bytes] = ()


class Busy(Struct, frozen=True):
    """The change must wait until this turn has ended."""

    turn_id: TurnId


def new_op() -> str:
    """A name for one call, by which a repetition is known."""
    return secrets.token_hex(8)


async def change_session(
    cell: Cell, session_id: SessionId, op: str, change: Change, *, when: Moment, ttl_ms: int
) -> bool | Busy:
    """Change a session. False where it is not what the caller has read: read it again. Raises ``UsageError`` where it
    is closed."""
    flat = [value for one in change.fields for value in (one.name, one.old, one.new)]
    answer = await _run(
        cell, "edit", session_id, op, ttl_ms, when, _number(change.length), _number(change.keep), len(change.fields),
        len(change.messages), *flat, *change.messages, *change.bodies,
    )  # fmt: skip
    match answer:
        case [b"OK", *_]:
            return True
        case [b"BUSY", turn]:
            return Busy(TurnId(turn.decode()))
        case [b"CONFLICT"]:
            return False
        case [b"SESSION_CLOSED"]:
            raise UsageError("The session is closed.", session_id=session_id)
        case _:
            raise _unexpected("edit", answer)


async def fork_session(
    cell: Cell,
    session_id: SessionId,
    fork_id: SessionId,
    op: str,
    *,
    ttl_ms: int,
    body: bytes,
    fields: Sequence[str],
) -> None:
    """Copy a session's history and some of its fields to a new id. Raises ``SessionExists``."""
    match await _run(cell, "fork", session_id, fork_id, op, ttl_ms, body, *fields):
        case [b"OK"]:
            return
        case [b"SESSION_EXISTS"]:
            raise SessionExists(f"There is a session {fork_id!r} already.", session_id=fork_id)
        case answer:
            raise _unexpected("fork", answer)


async def delete_session(cell: Cell, session_id: SessionId) -> bool | Busy:
    """Forget a session. True where there was one."""
    match await _run(cell, "delete", session_id):
        case [b"DELETED", count]:
            return int(count) > 0
        case [b"BUSY", turn]:
            return Busy(TurnId(turn.decode()))
        case answer:
            raise _unexpected("delete", answer)


async def _run(cell: Cell, name: str, *arguments: Any) -> Any:
    script = load_script(f"editing/{name}", cell._clock)
    try:
        return await run_script(cell.redis, script, cell.keys.prefix, cell.database, *arguments)
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc


def _number(value: int | None) -> int | str:
    return "" if value is None else value


def _unexpected(script: str, answer: Any) -> CorruptRecord:
    return CorruptRecord(f"The script {script!r} gave an unknown answer: {answer!r}.")
