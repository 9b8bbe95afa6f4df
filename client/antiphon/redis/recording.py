"""Records ended turns, from their records and session history, and reads the requests that models received."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.errors import CorruptRecord, KeyMissing, SessionNotFound, TurnDeleted, TurnNotFound, UsageError
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.request import shown_request
from antiphon.input.secrets import without_secrets
from antiphon.model import TERMINAL, Message, decode_history
from antiphon.model.files import StoredFile
from antiphon.model.recording import KeptRequest, Recording, SessionRecording
from antiphon.redis.edits import NO_MESSAGES
from antiphon.redis.fields import decode_field
from antiphon.redis.files import SessionFiles, stored_ids
from antiphon.redis.turn_records import turn_info
from antiphon.session.runtime import TurnHandle
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.lists.agents import revision_of
from antiphon.wire.records import TurnRecord
from antiphon.wire.requests import kept_requests

OPTIONS = ("params", "output", "instructions", "max_tool_calls", "caller_tools")


async def record_turn(cell: Cell, turn_id: TurnId) -> Recording:
    """Record a turn. Raises ``UsageError`` if it has not ended, ``TurnNotFound`` and ``TurnDeleted``."""
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

    Both are empty if the session has ended: the turn is kept longer, and the id may be another session's by now,
    perhaps another tenant's. Raises ``CorruptRecord`` and ``StoreError``.
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
    """Return the messages without the fields that only a stored history needs."""
    return [msgspec.structs.replace(one, id=None, turn_id=None, created=None, by=None) for one in messages]


def _only_charge(history: list[Message]) -> list[Message]:
    """Return the history in which only the last turn may name the agent that stays: see ``InCharge``."""
    last = next((place for place in range(len(history) - 1, -1, -1) if history[place].turn_id), 0)
    return [
        one if place >= last or one.in_charge is None else msgspec.structs.replace(one, in_charge=None)
        for place, one in enumerate(history)
    ]


async def _files(cell: Cell, record: TurnRecord, messages: list[Message]) -> list[StoredFile]:
    """Return the stored files that messages name, as far as the session still has them."""
    files = SessionFiles(cell, record.session_id)
    found = [await files.read(file_id) for file_id in dict.fromkeys(stored_ids(messages))]
    return [one for one in found if one is not None]


async def requests_of(cell: Cell, turn_id: TurnId) -> list[KeptRequest]:
    """Return the requests that models received. Raises ``TurnNotFound``, ``TurnDeleted`` and ``CorruptRecord``."""
    record = await cell.turn(turn_id)
    return await kept_requests(cell, record) if cell.has_disk and "deleted" not in record.fields else []


async def kept_turns(cell: Cell, session: SessionId) -> list[TurnId]:
    """Return the last 1,000 turns of a session, oldest first; none if it does not exist."""
    try:
        return (await cell.snapshot(session, *NO_MESSAGES, "pending failed")).order
    except SessionNotFound:
        return []


async def record_session(session_id: str, turns: Iterable[TurnHandle]) -> SessionRecording:
    """Record a session's ended ``turns``, without damaged ones and those whose input another turn has taken.

    Raises ``UsageError`` if there are none, ``KeyMissing`` and ``StoreError``.
    """
    found: list[Recording] = []
    for turn in turns:
        try:
            if await turn.status() in TERMINAL:
                found.append(await turn.recording())
        except KeyMissing:
            raise
        except (TurnNotFound, TurnDeleted, CorruptRecord):
            continue  # it has expired since it was listed, or is damaged
    answered = [one for one in found if one.messages or one.error]
    if not answered:
        raise UsageError(f"Session {session_id} has no ended turn that is kept.")
    return SessionRecording.of(session_id, answered)
