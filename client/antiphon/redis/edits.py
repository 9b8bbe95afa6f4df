"""Sessions in Redis read and changed: read, work out the change, write it if nobody was faster, else again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SessionBusy, SessionExists, SessionNotFound
from antiphon.events import (
    Event,
    HistoryCleared,
    MessageAdded,
    SessionClosed,
    VariablesChanged,
)
from antiphon.input.ids import SessionId, TurnId, other_tenant
from antiphon.model import Message, decode_message, encode
from antiphon.redis.fields import decode_field, encode_field, encode_fields
from antiphon.session.runtime import Edit, Opening, SessionRef
from antiphon.session.saved import FIELDS, SavedSession
from antiphon.wire.cell import Cell
from antiphon.wire.editing import (
    Busy,
    Change,
    FieldChange,
    Moment,
    change_session,
    new_op,
)
from antiphon.wire.records import readable

__all__ = ["Edits", "Found", "found_in"]

TAIL = 400
TRIES = 50


class Found(Struct):
    """A session as it stands in Redis, with one page of its history."""

    fields: dict[str, bytes]
    history: list[bytes]
    length: int
    inbox: list[TurnId]

    @property
    def closed(self) -> bool:
        return "closed" in self.fields

    @property
    def created(self) -> int:
        return self._time("created")

    @property
    def updated(self) -> int:
        return self._time("updated") or self.created

    def _time(self, name: str) -> int:
        with readable(f"The {name} of a session"):
            return int(self.fields.get(name) or 0)

    @property
    def children(self) -> list[str]:
        return self.value("children")

    def text(self, name: str) -> str:
        with readable(f"The {name} of a session"):
            return self.fields.get(name, b"").decode()

    def value(self, name: str) -> Any:
        """A field of the session. Raises ``CorruptRecord``."""
        return decode_field(name, self.fields.get(name, b""))

    def saved(self, session_id: str) -> SavedSession:
        fields: dict[str, Any] = {name: self.value(name) for name in FIELDS}
        fields["updated"] = self.updated
        return SavedSession(session_id, [decode_message(data) for data in self.history], **fields)


async def found_in(cell: Cell, session_id: SessionId, start: int = 1, stop: int = 0) -> Found:
    """A session and a page of its history, read in one moment; an empty one where there is none."""
    try:
        snapshot = await cell.snapshot(session_id, start, stop)
    except SessionNotFound:
        return Found({}, [], 0, [])
    return Found(snapshot.fields, snapshot.history, snapshot.history_length, snapshot.inbox)


class Edits:
    """The changes of one session. ``ended`` waits for the end of a turn."""

    def __init__(
        self,
        cell_of: Callable[[SessionId], Cell],
        session: SessionRef,
        ended: Callable[[TurnId], Awaitable[None]],
    ) -> None:
        self._cell_of = cell_of
        self._session = session
        self._ended = ended
        self._ttl_ms = 0 if session.ttl is None else max(1, int(session.ttl * 1000))

    async def open(self, opening: Opening) -> None:
        if opening.saved is not None:
            await self._restore(opening, opening.saved)
        else:
            parent = None if opening.parent is None else await self._found(SessionId(opening.parent))
            await self._write(
                opening.token, lambda found: _opened(found, opening, parent, self._session.id), "any"
            )
        if opening.parent is not None:
            await self._add_child(opening.parent)

    async def edit(self, edit: Edit) -> None:
        """Change the session when the turns before this call have ended, or raise ``SessionBusy``."""
        op, when = new_op(), "idle"
        while isinstance(
            busy := await self._try(op, lambda found: _edited(found, edit, self._session.id), when), Busy
        ):
            if edit.if_busy == "reject":
                raise SessionBusy("The session runs a turn.", session_id=self._session.id)
            await self._ended(busy.turn_id)
            when = "between"

    async def close(self) -> None:
        op, when = new_op(), "idle"

        def closed(found: Found) -> Change | None:
            body = self._body(SessionClosed())
            return None if found.closed else Change([FieldChange("closed", b"", b"1")], bodies=[body])

        while isinstance(busy := await self._try(op, closed, when), Busy):
            await self._ended(busy.turn_id)
            when = "between"

    async def amend(self, turns: Sequence[str], messages: Sequence[Message]) -> bool:
        changed = False

        def amended(found: Found) -> Change | None:
            nonlocal changed
            end = _before(turns, found.history)
            changed = end > 0
            return (
                Change(length=found.length, keep=found.length - end, messages=_encoded(messages))
                if end
                else None
            )

        await self._write(new_op(), amended, "any", page=(-TAIL, -1))
        return changed

    async def _restore(self, opening: Opening, saved: SavedSession) -> None:
        cell = self._cell_of(self._session.id)
        found = await found_in(cell, self._session.id, 0, -1)
        live = [decode_message(data) for data in found.history]
        if found.text("op") == opening.token or (live and live == saved.messages and not opening.replace):
            return
        if live and not opening.replace:
            raise SessionExists(
                "The session is live with another history: give replace=True to put the saved one in its place.",
                session_id=self._session.id,
            )

        def restored(found: Found) -> Change:
            if saved.tenant is not None and found.value("tenant") not in (None, saved.tenant):
                raise other_tenant(self._session.id, saved.tenant)
            fields = {**encode_fields(saved), "restored": b"1"}
            fields["tenant"] = fields["tenant"] or found.fields.get("tenant", b"")
            children = dict.fromkeys([*saved.children, *found.children])
            fields["children"] = encode_field("children", list(children))
            change = _difference(found, fields)
            change.length, change.keep, change.messages = found.length, 0, _encoded(saved.messages)
            return change

        await self._write(opening.token, restored, "between" if opening.replace else "any")

    async def _found(self, session_id: SessionId) -> Found:
        return await found_in(self._cell_of(session_id), session_id)

    async def _add_child(self, parent: str) -> None:
        child = self._session.id

        def added(found: Found) -> Change | None:
            children = found.children
            if child in children:
                return None
            return _difference(found, {"children": encode_field("children", [*children, child])})

        ref = msgspec.structs.replace(self._session, id=SessionId(parent))
        await Edits(self._cell_of, ref, self._ended)._write(new_op(), added, "any")

    async def _write(
        self,
        op: str,
        work_out: Callable[[Found], Change | None],
        when: Moment,
        *,
        page: tuple[int, int] = (1, 0),
    ) -> None:
        while isinstance(busy := await self._try(op, work_out, when, page=page), Busy):
            await self._ended(busy.turn_id)

    async def _try(
        self,
        op: str,
        work_out: Callable[[Found], Change | None],
        when: Any,
        *,
        page: tuple[int, int] = (1, 0),
    ) -> Busy | None:
        """Read, work out the change and write it, again while others are faster."""
        cell, session_id = self._cell_of(self._session.id), self._session.id
        for _ in range(TRIES):
            found = await found_in(cell, session_id, *page)
            if found.text("op") == op:
                return None
            change = work_out(found)
            if change is None:
                return None
            answer = await change_session(cell, session_id, op, change, when=when, ttl_ms=self._ttl_ms)
            if answer is not False:
                return answer if isinstance(answer, Busy) else None
        raise SessionBusy(
            "The session is changed by others all the time: try again later.", session_id=session_id
        )

    def _body(self, event: Event) -> bytes:
        return _body(event, self._session.id)


def _opened(found: Found, opening: Opening, parent: Found | None, session_id: str) -> Change | None:
    """What ``agent.session(…)`` asks for and the session does not have yet. Raises ``UsageError``."""
    changes = opening.changes(session_id, found.value, parent and parent.value)
    fields = {name: encode_field(name, value) for name, value in changes.items()}
    known = found.value("variables") if opening.variables else {}
    new = {name: value for name, value in opening.variables.items() if name not in known}
    if new and not found.text("restored"):  # an archive may know other values of these
        fields["offered"] = encode({**found.value("offered"), **new})
    change = _difference(found, fields)
    if opening.messages:
        if found.length:
            raise SessionExists(session_id=session_id)
        change.length, change.messages = 0, _encoded(opening.messages)
    return change if change.fields or change.messages else None


def _edited(found: Found, edit: Edit, session_id: str) -> Change:
    changes = edit.changes(found.value)
    fields = {name: encode_field(name, value) for name, value in changes.items()}
    events: list[Event] = [HistoryCleared()] if edit.clear else []
    events += [MessageAdded(message=message) for message in edit.add]
    if "variables" in changes:
        events.append(VariablesChanged(variables=changes["variables"]))
    if edit.clear and not found.text("restored"):
        fields["restored"] = b"cleared"  # an archive gives back everything but the history
    change = _difference(found, fields)
    change.keep = 0 if edit.clear else None
    change.messages = _encoded(edit.add)
    change.bodies = [_body(event, session_id) for event in events]
    return change


def _difference(found: Found, fields: dict[str, bytes]) -> Change:
    old = {name: found.fields.get(name, b"") for name in fields}
    return Change([FieldChange(name, old[name], new) for name, new in fields.items() if new != old[name]])


def _before(turns: Sequence[str], history: Sequence[bytes]) -> int:
    """How many messages at the end of a history belong to these turns."""
    count = 0
    for data in reversed(history):
        if decode_message(data).turn_id not in turns:
            break
        count += 1
    return count


def _encoded(messages: Sequence[Message]) -> list[bytes]:
    return [encode(message) for message in messages]


def _body(event: Event, session_id: str) -> bytes:
    """An event without ``seq`` and ``at``, which the script puts in front."""
    event.session_id = session_id
    return encode(event)
