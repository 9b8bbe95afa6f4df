"""Forks sessions in Redis: with one script within a cell, or step by step to another cell and with encryption."""

from __future__ import annotations

from antiphon.errors import SessionBusy, SessionExists
from antiphon.events import SessionForked
from antiphon.input.history_cuts import kept_behind
from antiphon.input.ids import SessionId
from antiphon.model import decode_history, encode
from antiphon.redis.edits import NO_MESSAGES, TRIES, WHOLE, Found, found_in
from antiphon.redis.fields import FORKED_FIELDS, encode_field
from antiphon.redis.files import SessionFiles
from antiphon.session.runtime import SessionRef
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Change, FieldChange, Part, change_session, fork_session, new_op
from antiphon.wire.placed import places_of

LAST = (-1, -1)
NO_FILES = b"0 0"


async def fork_in_redis(
    here: Cell, there: Cell, session_id: SessionId, fork: SessionRef, at: str | None
) -> None:
    """Copy a session's finished turns, or those up to a message, and its fields to a new id.

    Raises ``SessionExists``, ``MessageNotFound``, ``StoreError``, and ``UsageError`` if a tool call would lose its
    result. If the two ids are on different cells, with encryption, or with files in a byte store, history and files
    are read and written again: encrypted values are readable only in their own session, and content belongs to one
    session. A crash may then leave the fork unlisted in its source.
    """
    op = new_op()
    event = SessionForked(fork_id=fork.id)
    event.session_id = session_id
    body = encode(event)
    for _ in range(TRIES):
        if here is not there or here.seal.on or await places_of(here, session_id):
            part = await _copy(here, there, session_id, fork, at)
            await _note(here, session_id, fork.id, part, body)
            return
        part = _part(await found_in(here, session_id, *(LAST if at is None else WHOLE)), at)
        branch = encode({fork.id: part.at})[1:-1]
        if await fork_session(
            here,
            session_id,
            fork.id,
            op,
            part,
            ttl_ms=fork.ttl_ms,
            body=body,
            branch=branch,
            fields=FORKED_FIELDS,
        ):
            return
    raise SessionBusy("Other calls keep changing the session: try again later.", session_id=session_id)


def _part(found: Found, at: str | None) -> Part:
    messages = decode_history(found.history, found.length - len(found.history))
    kept = len(messages) if at is None else kept_behind(messages, at)
    if not kept:
        return Part(0, "", b"")
    keep = found.length - len(messages) + kept
    return Part(keep, messages[kept - 1].id or "", found.history[kept - 1])


async def _copy(here: Cell, there: Cell, session_id: SessionId, fork: SessionRef, at: str | None) -> Part:
    found = await found_in(here, session_id, *WHOLE)
    part = _part(found, at)
    names = [*FORKED_FIELDS, "ttl"] if fork.ttl_ms is None else FORKED_FIELDS
    fields = {name: found.fields[name] for name in names if name in found.fields}
    if part.keep < found.length:
        fields.pop("window", None)
        summary = found.value("summary")
        if summary is not None and summary.messages > part.keep:
            del fields["summary"]
    if fields.get("restored") != b"1" and await _archive_is_asked(here, session_id):
        fields.setdefault("origin", session_id.encode())
    if "media" in fields:
        fields["media"] = NO_FILES
    fields |= {"fork_of": session_id.encode(), "fork_at": part.at.encode()}
    # A session exists once it has a time of creation.
    fields["created"] = str(await there.server_ms()).encode()
    change = Change(
        [FieldChange(name, b"", new) for name, new in fields.items() if new],
        length=0,
        messages=found.history[: part.keep],
    )
    if await change_session(there, fork.id, new_op(), change, when="any", ttl_ms=fork.ttl_ms) is not True:
        raise SessionExists(f"The session {fork.id!r} already exists.", session_id=fork.id)
    if "media" in fields:
        await SessionFiles(there, fork.id).put_back(await SessionFiles(here, session_id).whole())
    return part


async def _note(here: Cell, session_id: SessionId, fork_id: SessionId, part: Part, body: bytes) -> None:
    """Publish the fork in its source, unless the source is closed and thus accepts no changes."""
    op = new_op()
    for _ in range(TRIES):
        found = await found_in(here, session_id, *NO_MESSAGES)
        branches = encode_field("branches", found.value("branches") | {fork_id: part.at})
        known = FieldChange("branches", found.fields.get("branches", b""), branches)
        if found.closed or await change_session(
            here, session_id, op, Change([known], bodies=[body]), when="any", ttl_ms=None
        ):
            return


async def _archive_is_asked(cell: Cell, session_id: SessionId) -> bool:
    """Return whether the archived copy is the past of this session, and thus of its fork."""
    if not await cell.redis.exists(cell.keys.seq_floor):
        return False
    return await cell.redis.zscore(cell.keys.forget, session_id) is None
