"""Changes sessions outside their turns: one script each, with its answers as values or errors."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field

from antiphon.encryption.records import SESSION, stored
from antiphon.errors import SessionExists, TurnNotFound, UsageError
from antiphon.input.ids import SessionId, TurnId, other_tenant
from antiphon.input.limits import LIMITS
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import STORED_AGAIN_SECONDS, full, tenant_limit, unexpected
from antiphon.wire.placed import remove_placed
from antiphon.wire.scripts import given

SCANNED = 1000  # keys that one round trip examines

Moment = Literal["idle", "between", "any"]
"""When a change may happen: while the inbox is empty, while none of its turns has begun, or at any time."""


class FieldChange(Struct, frozen=True):
    """A field of a session as it was read and as it will be; empty means that the session does not have it."""

    name: str
    old: bytes
    new: bytes


class Change(Struct):
    """One change of a session.

    ``length`` is the length of the history that was read (None: any). ``keep`` is the number of messages that stay at
    its beginning (None: all).
    """

    fields: list[FieldChange] = field(default_factory=list[FieldChange])
    length: int | None = None
    keep: int | None = None
    messages: Sequence[bytes] = ()
    bodies: Sequence[bytes] = ()


class Busy(Struct, frozen=True):
    """The change must wait until this turn has ended."""

    turn_id: TurnId


def new_op() -> str:
    """Make a name for one call, which identifies its repetitions."""
    return secrets.token_hex(8)


async def change_session(
    cell: Cell, session_id: SessionId, op: str, change: Change, *, when: Moment, ttl_ms: int | None
) -> bool | Busy:
    """Change a session. Returns False if it has changed since it was read: read it again.

    Raises ``UsageError`` if the session is closed.
    """
    answer = await cell.run("editing/edit", session_id, op, given(ttl_ms), LIMITS.sessions, when, given(change.length),
        given(change.keep), len(change.fields), len(change.messages), *flat_fields(cell, session_id, change.fields),
        *cell.seal.seal_all(session_id, "message", change.messages),
        *cell.seal.seal_all(session_id, "event", change.bodies),
    )  # fmt: skip
    match answer:
        case [b"OK", *_]:
            return True
        case [b"BUSY", turn]:
            return Busy(TurnId(text_of(turn)))
        case [b"CONFLICT"]:
            return False
        case [b"SESSION_CLOSED"]:
            raise UsageError("The session is closed.", session_id=session_id)
        case [b"FULL", limit]:
            raise full(text_of(limit), session_id)
        case _:
            raise unexpected("edit", answer)


def flat_fields(cell: Cell, session_id: SessionId, fields: Sequence[FieldChange]) -> list[str | bytes]:
    """Return changes of fields as arguments of scripts, which compare the old values with Redis."""
    new = cell.seal.seal_fields(session_id, SESSION, {one.name: one.new for one in fields})
    return [value for one in fields for value in (one.name, stored(one.old), new[one.name])]


class Part(Struct, frozen=True):
    """The beginning of a history: its number of messages, and the id and bytes of the last one as they were read."""

    keep: int
    at: str
    last: bytes


async def fork_session(
    cell: Cell,
    session_id: SessionId,
    fork_id: SessionId,
    op: str,
    part: Part,
    *,
    ttl_ms: int | None,
    body: bytes,
    branch: bytes,
    fields: Sequence[str],
) -> bool:
    """Copy a part of a session's history and some of its fields to a new id. Returns False if the history is not what
    the caller has read. Encrypted content cannot be copied this way: it is readable only in its own session. Raises
    ``SessionExists``."""
    digest = hashlib.sha1(part.last, usedforsecurity=False).hexdigest()
    answer = await cell.run("editing/fork", session_id, fork_id, op, given(ttl_ms), LIMITS.sessions, part.keep, part.at,
        digest, cell.seal.seal(session_id, "event", body), branch, *fields,
    )  # fmt: skip
    match answer:
        case [b"OK"]:
            return True
        case [b"CONFLICT"]:
            return False
        case [b"SESSION_EXISTS"]:
            raise SessionExists(f"The session {fork_id!r} already exists.", session_id=fork_id)
        case [b"FULL", limit]:
            raise full(text_of(limit), fork_id)
        case [b"TENANT_LIMIT", limit, most]:
            raise tenant_limit(text_of(limit), most, STORED_AGAIN_SECONDS, fork_id)
        case _:
            raise unexpected("fork", answer)


async def delete_session(cell: Cell, session_id: SessionId, tenant: str | None = None) -> bool | Busy:
    """Delete a session with all content of its turns. Returns whether it existed. Raises ``WrongTenant``."""
    match await cell.run("editing/delete", session_id, tenant or ""):
        case [b"DELETED", existed, more, *places]:
            await remove_placed(session_id, [text_of(place) for place in places])
            if more:
                await erase_turns(cell)
            return bool(existed)
        case [b"OTHER_TENANT"]:
            raise other_tenant(session_id, tenant or "")
        case [b"BUSY", turn]:
            return Busy(TurnId(text_of(turn)))
        case answer:
            raise unexpected("delete", answer)


async def erase_turns(cell: Cell, tenant: str = "", *, if_due: bool = False) -> int | None:
    """Erase the content of ended turns: of all deleted sessions, or of a tenant.

    Searches all keys of the cell, a page at a time; with ``if_due``, only if a search is due. Returns how many turns it
    has erased, or None if no search was due.
    """
    cursor, began, count = "" if if_due else "0", "", 0
    while True:
        match await cell.run("editing/erase", tenant, began, cursor, SCANNED):
            case [b"IDLE"]:
                return None
            case [b"ERASED", following, erased, first]:
                cursor, count, began = text_of(following), count + erased, text_of(first)
                if cursor == "0":
                    return count
            case answer:
                raise unexpected("erase", answer)


async def erase_turns_of(cell: Cell, session: SessionId, user: str, turns: Sequence[str]) -> int | Busy:
    """Erase these ended turns of a user, and the user, from a session that stays. Returns how many it has erased."""
    match await cell.run("editing/erase_turns", session, user, *turns):
        case [b"ERASED", erased]:
            return erased
        case [b"BUSY", turn]:
            return Busy(TurnId(text_of(turn)))
        case answer:
            raise unexpected("erase_turns", answer)


async def forget_turn(cell: Cell, turn_id: TurnId) -> None:
    """Delete the record of a turn that has ended. Raises ``UsageError`` if it has not, and ``TurnNotFound``."""
    match await cell.run("editing/forget", turn_id):
        case [b"DELETED"]:
            return
        case [b"OPEN", status]:
            raise UsageError(f"Turn {turn_id} is {text_of(status)}: cancel it first.", turn_id=turn_id)
        case [b"MISSING"]:
            raise TurnNotFound(turn_id=turn_id)
        case answer:
            raise unexpected("forget", answer)
