"""Forks of sessions in Redis: by one script, or over to another cell, where no script reaches."""

from __future__ import annotations

from antiphon.errors import SessionExists
from antiphon.events import SessionForked
from antiphon.input.ids import SessionId
from antiphon.model import encode
from antiphon.redis.edits import found_in
from antiphon.redis.fields import FORKED_FIELDS
from antiphon.session.runtime import SessionRef
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Change, FieldChange, change_session, fork_session, new_op

__all__ = ["fork_in_redis"]


async def fork_in_redis(here: Cell, there: Cell, session_id: SessionId, fork: SessionRef) -> None:
    """Copy a session's finished turns and its fields to a new id. Raises ``SessionExists``, ``StoreError``.

    Where the two ids live on different cells a crash may leave the fork without its event in the source.
    """
    ttl_ms = 0 if fork.ttl is None else max(1, int(fork.ttl * 1000))
    event = SessionForked(fork_id=fork.id)
    event.session_id = session_id
    if here is there:
        await fork_session(
            here, session_id, fork.id, new_op(), ttl_ms=ttl_ms, body=encode(event), fields=FORKED_FIELDS
        )
        return
    if not await _copy(here, there, session_id, fork.id, ttl_ms):
        raise SessionExists(f"There is a session {fork.id!r} already.", session_id=fork.id)
    await change_session(
        here, session_id, new_op(), Change(bodies=[encode(event)]), when="any", ttl_ms=ttl_ms
    )  # fmt: skip


async def _copy(here: Cell, there: Cell, session_id: SessionId, fork_id: SessionId, ttl_ms: int) -> bool:
    found = await found_in(here, session_id, 0, -1)
    fields = {name: found.fields[name] for name in FORKED_FIELDS if name in found.fields}
    if fields.get("restored") != b"1" and await _archive_is_asked(here, session_id):
        fields.setdefault("origin", session_id.encode())
    change = Change(
        # Every session has a ttl: one that has none yet does not exist.
        [
            FieldChange("ttl", b"", str(ttl_ms).encode()),
            *(FieldChange(n, b"", new) for n, new in fields.items()),
        ],
        length=0,
        messages=found.history,
    )
    return await change_session(there, fork_id, new_op(), change, when="any", ttl_ms=ttl_ms) is True


async def _archive_is_asked(cell: Cell, session_id: SessionId) -> bool:
    """Whether what an archive holds of the session is its past, and so its fork's."""
    if not await cell.redis.exists(cell.keys.seq_floor):
        return False
    return await cell.redis.zscore(cell.keys.forget, session_id) is None
