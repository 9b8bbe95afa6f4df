"""Writes titles that workers make, and removes them with the turns that they were made from.

A title is in the metadata of its session, where lists and searches find it and where users write their own. The field
``titled`` names the turn that it was made from. Each write compares ``life`` and ``seq`` of the session, so that
nothing is written to a session that was deleted, erased or changed since it was read.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from msgspec import field

from antiphon.errors import SessionBusy
from antiphon.events import SessionTitled
from antiphon.input.ids import SessionId
from antiphon.model import Message, decode_history, encode
from antiphon.model.usage import Usage
from antiphon.redis.edits import Found, found_in
from antiphon.redis.fields import encode_field
from antiphon.session.saved import Titled
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Change, FieldChange, change_session, new_op

TITLE = "title"
"""The name of the title in the metadata."""
TITLES_CURSOR = "=titles"
"""The name under which turns wait to be read for a title. No memory can have it."""
READ = 100
"""How many messages at the beginning of a history are searched for the first answer."""
TRIES = 50


class Untitled(Found):
    """A session that can be given a title, with the messages of its first finished turn."""

    messages: list[Message] = field(default_factory=list[Message])

    @property
    def turn_id(self) -> str:
        return self.messages[0].turn_id or ""


async def untitled(cell: Cell, session_id: SessionId) -> Untitled | None:
    """Read a session that has no title yet. None if it has one, is a child, or has no finished turn.

    Raises ``StoreError``, and ``CorruptRecord`` if it cannot be read.
    """
    found = await found_in(cell, session_id, 0, READ - 1)
    if not found.life or found.closed or found.value("parent") or TITLE in found.value("metadata"):
        return None
    messages = _first_turn(decode_history(found.history, 0))
    return Untitled(found.fields, found.history, found.length, found.inbox, messages) if messages else None


async def give_title(cell: Cell, session_id: SessionId, read: Untitled, title: str, usage: Usage) -> bool:
    """Write the title made from the turn that was read, unless a change to the session prevents it.

    Returns False if the session has a different first turn now. Raises ``StoreError``, and ``SessionBusy`` if others
    keep changing the session.
    """
    op, made = new_op(), Titled(title, read.turn_id)
    body = encode(SessionTitled(session_id=session_id, title=title, usage=usage))
    for _ in range(TRIES):
        found = await untitled(cell, session_id)
        if found is None or found.life != read.life:
            return True
        if found.messages != read.messages:
            return False
        metadata = encode_field("metadata", {**found.value("metadata"), TITLE: title})
        fields = {
            "metadata": metadata,
            "titled": encode_field("titled", made),
            "title_usage": encode_field("title_usage", usage),
        }
        change = Change(_compared(found, fields), bodies=[body])
        if await change_session(cell, session_id, op, change, when="any", ttl_ms=None):
            return True
    raise SessionBusy("Other calls keep changing the session: try again later.", session_id=session_id)


async def remove_title(cell: Cell, session_id: SessionId, turns: Collection[str]) -> None:
    """Remove a title that was made from one of these turns, unless a user has replaced it. Raises ``StoreError``."""
    op = new_op()
    for _ in range(TRIES):
        found = await found_in(cell, session_id)
        made, metadata = found.value("titled"), found.value("metadata")
        if made is None or made.turn_id not in turns or metadata.get(TITLE) != made.title:
            return
        left = {name: value for name, value in metadata.items() if name != TITLE}
        change = Change(_compared(found, {"metadata": encode_field("metadata", left)}))
        if await change_session(cell, session_id, op, change, when="any", ttl_ms=None):
            return
    raise SessionBusy("Other calls keep changing the session: try again later.", session_id=session_id)


def _compared(found: Found, fields: dict[str, bytes]) -> list[FieldChange]:
    """Return changes of these fields that apply only if the session is as it was read."""
    same = {name: found.fields.get(name, b"") for name in ("life", "created", "seq")}
    return [FieldChange(name, found.fields.get(name, b""), new) for name, new in (same | fields).items()]


def _first_turn(history: list[Message]) -> list[Message]:
    """Return the messages of the first turn with a complete answer."""
    for turn_id, group in groupby(history, lambda one: one.turn_id):
        messages = list(group)
        answered = any(one.role == "assistant" and one.text.strip() for one in messages)
        if turn_id and answered and not messages[-1].interrupted:
            return messages
    return []
