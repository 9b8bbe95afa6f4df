"""Records an ended turn from its record and its session's history."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.errors import SessionNotFound, UsageError
from antiphon.input.ids import TurnId
from antiphon.input.request import shown_request
from antiphon.input.secrets import without_secrets
from antiphon.model import TERMINAL, Message, decode_history
from antiphon.model.files import StoredFile
from antiphon.model.recording import Recording
from antiphon.redis.fields import decode_field
from antiphon.redis.files import SessionFiles, stored_ids
from antiphon.redis.turn_records import turn_info
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.lists.agents import revision_of
from antiphon.wire.records import TurnRecord

OPTIONS = ("params", "output", "instructions", "max_tool_calls", "caller_tools")


async def record_turn(cell: Cell, turn_id: TurnId) -> Recording:
    """Record a turn. Raises ``UsageError`` for one that has not ended, ``TurnNotFound`` and ``TurnDeleted``."""
    record = await cell.turn(turn_id)
    info = turn_info(record)
    if info.status not in TERMINAL:
        raise UsageError(f"Turn {turn_id} is {info.status}: only ended turns can be recorded.")
    session, history = await session_before(cell, record)
    agent, revision = await revision_of(cell, record) if cell.has_disk else ("", "")
    options: dict[str, Any] = msgspec.to_builtins(shown_request(record.fields["request"]))
    files = await _files(cell, record, [*history, *info.input, *info.messages]) if session else []
    return without_secrets(Recording(
        info.turn_id, info.session_id, info.status, _plain(info.input), _plain(info.messages),
        history=_plain(_only_charge(history)), files=files,
        agent=info.agent or agent or None, revision=revision,
        system=decode_field("system", session.get("system", b"")) or None,
        variables=decode_field("variables", session.get("variables", b"")) or {},
        request={name: options[name] for name in OPTIONS if options.get(name)},
        code=info.code, error=info.error,
    ))  # fmt: skip


async def session_before(cell: Cell, turn: TurnRecord) -> tuple[dict[str, bytes], list[Message]]:
    """Return the fields of a turn's session and its messages before the turn, or before its submission if it left none.

    Both are empty if the session has ended: the turn is kept longer, and its session's name may be that of another one
    since, perhaps another tenant's. Raises ``CorruptRecord`` and ``StoreError``.
    """
    created = number(turn.fields.get("created") or turn.fields.get("queued_at"))
    try:
        found = await cell.snapshot(turn.session_id)
    except SessionNotFound:
        return {}, []
    if turn.tenant is not None and text_of(found.fields.get("tenant")) != turn.tenant:
        return {}, []
    messages = decode_history(found.history, 0)
    own = next((place for place, one in enumerate(messages) if one.turn_id == turn.turn_id), None)
    if own is None and number(found.fields.get("created")) > created:
        return {}, []
    return found.fields, messages[:own] if own is not None else [
        one for one in messages if (one.created or 0) < created
    ]


def _plain(messages: list[Message]) -> list[Message]:
    """The messages without what only a stored history needs."""
    return [msgspec.structs.replace(one, id=None, turn_id=None, created=None, by=None) for one in messages]


def _only_charge(history: list[Message]) -> list[Message]:
    """The messages of a history, of which only the last turn may name the agent that stays: see ``InCharge``."""
    last = next((place for place in range(len(history) - 1, -1, -1) if history[place].turn_id), 0)
    return [
        one if place >= last or one.in_charge is None else msgspec.structs.replace(one, in_charge=None)
        for place, one in enumerate(history)
    ]


async def _files(cell: Cell, record: TurnRecord, messages: list[Message]) -> list[StoredFile]:
    """The stored files that messages name, as far as the session still has them."""
    files = SessionFiles(cell, record.session_id)
    found = [await files.read(file_id) for file_id in dict.fromkeys(stored_ids(messages))]
    return [one for one in found if one is not None]
