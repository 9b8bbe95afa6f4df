"""Reads and changes sessions in Redis: read, compute the change, write it; on a conflict, start again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SessionBusy, SessionExists, SessionNotFound
from antiphon.events import (
    Event,
    HistoryCleared,
    HistoryRewound,
    MessageAdded,
    SessionClosed,
    VariablesChanged,
    decode_event,
)
from antiphon.input.history_cuts import kept_behind, shared_beginning
from antiphon.input.ids import SessionId, TurnId, check_tenant, other_tenant
from antiphon.model import Message, decode_history, decode_message, encode
from antiphon.redis.fields import decode_field, encode_field, encode_fields
from antiphon.redis.files import MOST_INLINE, SessionFiles
from antiphon.session.runtime import Edit, Opening, SessionRef
from antiphon.session.saved import FIELDS, SavedSession, same_messages
from antiphon.text import text_of
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

TAIL = 400
NO_MESSAGES, WHOLE, LAST_TWO = (1, 0), (0, -1), (-2, -1)
TRIES = 50


class Found(Struct):
    """A session as Redis has it, with one page of its history."""

    fields: dict[str, bytes]
    history: list[bytes]
    length: int
    inbox: list[TurnId]

    @property
    def closed(self) -> bool:
        return "closed" in self.fields

    def check_tenant(self, session: SessionRef) -> None:
        """Raise ``WrongTenant`` if the session exists and does not belong to the tenant that the caller names."""
        if session.tenant is not None:
            check_tenant(session.id, session.tenant, bool(self.fields), self.value("tenant"))

    @property
    def life(self) -> str:
        """The value that distinguishes sessions with the same id; older releases write only ``created``."""
        return self.text("life") or self.text("created")

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
        return text_of(self.fields.get(name))

    def value(self, name: str) -> Any:
        """Return a field of the session. Raises ``CorruptRecord``."""
        return decode_field(name, self.fields.get(name, b""))

    def saved(self, session_id: str) -> SavedSession:
        fields: dict[str, Any] = {name: self.value(name) for name in FIELDS}
        fields["updated"] = self.updated
        return SavedSession(session_id, decode_history(self.history, 0), **fields)


async def found_in(cell: Cell, session_id: SessionId, start: int = 1, stop: int = 0) -> Found:
    """Read a session and a page of its history atomically. A session that does not exist is read as an empty one."""
    try:
        snapshot = await cell.snapshot(session_id, start, stop)
    except SessionNotFound:
        return Found({}, [], 0, [])
    return Found(snapshot.fields, snapshot.history, snapshot.history_length, snapshot.inbox)


class Edits:
    """Changes one session. ``ended`` waits for the end of a turn."""

    def __init__(
        self,
        cell_of: Callable[[SessionId], Cell],
        session: SessionRef,
        ended: Callable[[TurnId], Awaitable[None]],
    ) -> None:
        self._cell_of = cell_of
        self._session = session
        self._ended = ended

    async def open(self, opening: Opening) -> None:
        if opening.saved is not None:
            await self._restore(opening, opening.saved)
        else:
            parent = None if opening.parent is None else await self._parent(SessionId(opening.parent))
            await self._write(
                opening.token, lambda found: _opened(found, opening, parent, self._session.id), "any"
            )
        if opening.parent is not None:
            await self._add_child(opening.parent)

    async def edit(self, edit: Edit) -> None:
        """Change the session once the turns before this call have ended, or raise ``SessionBusy``."""
        op, page = new_op(), _page_for(edit)
        when = "any" if edit.beside_turns else "idle"
        while isinstance(
            busy := await self._try(
                op, lambda found: _edited(found, edit, self._session.id), when, page=page
            ),
            Busy,
        ):
            if edit.if_busy == "reject":
                raise SessionBusy("The session is running a turn.", session_id=self._session.id)
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

    async def withdraw(self, turn_id: TurnId) -> None:
        """Remove the messages of a turn if they are still the last ones."""

        def withdrawn(found: Found) -> Change | None:
            count = _at_the_end(turn_id, found.history)
            return Change(length=found.length, keep=found.length - count) if count else None

        await self._write(new_op(), withdrawn, "any", page=(-TAIL, -1))

    async def _restore(self, opening: Opening, saved: SavedSession) -> None:
        cell = self._cell_of(self._session.id)
        found = await found_in(cell, self._session.id, 0, -1)
        live = decode_history(found.history, 0)
        same = live and same_messages(live, saved.messages)
        if found.text("op") == opening.token or (same and not opening.replace):
            return
        if live and not opening.replace:
            raise SessionExists(
                "The session already exists with another history: pass replace=True to replace it with the saved one.",
                session_id=self._session.id,
            )

        await self._files().put_back(saved.media)

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

    async def _parent(self, session_id: SessionId) -> Found:
        """Read the parent of a new session. Raises ``WrongTenant``."""
        found = await found_in(self._cell_of(session_id), session_id)
        found.check_tenant(msgspec.structs.replace(self._session, id=session_id))
        return found

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
        page: tuple[int, int] = NO_MESSAGES,
    ) -> None:
        while isinstance(busy := await self._try(op, work_out, when, page=page), Busy):
            await self._ended(busy.turn_id)

    async def _try(
        self,
        op: str,
        work_out: Callable[[Found], Change | Busy | None],
        when: Any,
        *,
        page: tuple[int, int] = NO_MESSAGES,
    ) -> Busy | None:
        """Read, compute the change and write it; start again while other changes come first."""
        cell, session_id = self._cell_of(self._session.id), self._session.id
        for _ in range(TRIES):
            found = await found_in(cell, session_id, *page)
            if found.text("op") == op:
                return None
            found.check_tenant(self._session)
            change = work_out(found)
            if not isinstance(change, Change):
                return change
            self._keep_tenant(change, found)
            await self._store_contents(change)
            answer = await change_session(
                cell, session_id, op, change, when=when, ttl_ms=self._session.ttl_ms
            )
            if answer is not False:
                return answer if isinstance(answer, Busy) else None
        raise SessionBusy("Other calls keep changing the session: try again later.", session_id=session_id)

    def _keep_tenant(self, change: Change, found: Found) -> None:
        """Have the script check that the tenant is still the one that was read, and set it in a new session."""
        if self._session.tenant is not None and all(one.name != "tenant" for one in change.fields):
            old = found.fields.get("tenant", b"")
            change.fields.append(FieldChange("tenant", old, self._session.tenant.encode()))

    async def _store_contents(self, change: Change) -> None:
        """Store large contents of the change's messages in the session, apart from its history and its events."""
        if all(len(one) <= MOST_INLINE for one in (*change.messages, *change.bodies)):
            return
        files = self._files()
        change.messages = _encoded(await files.moved([decode_message(one) for one in change.messages]))
        events = [decode_event(one) for one in change.bodies]
        for event in events:
            if isinstance(event, MessageAdded) and event.message is not None:
                [event.message] = await files.moved([event.message])
        change.bodies = [self._body(event) for event in events]

    def _files(self) -> SessionFiles:
        session = self._session
        return SessionFiles(
            self._cell_of(session.id), session.id, tenant=session.tenant, ttl_ms=session.ttl_ms
        )

    def _body(self, event: Event) -> bytes:
        return _body(event, self._session.id)


def _opened(found: Found, opening: Opening, parent: Found | None, session_id: str) -> Change | None:
    """Return the changes that ``agent.session(…)`` asks for, None without any. Raises ``SessionExists``."""
    changes = opening.changes(found.value, parent and parent.value)
    fields = {name: encode_field(name, value) for name, value in changes.items()}
    known = found.value("variables") if opening.variables else {}
    new = {name: value for name, value in opening.variables.items() if name not in known}
    if new and not found.text("restored"):  # an archive may hold other values for these
        fields["offered"] = encode({**found.value("offered"), **new})
    change = _difference(found, fields)
    if opening.messages:
        if found.length:
            raise SessionExists(session_id=session_id)
        change.length, change.messages = 0, _encoded(opening.messages)
    return change if change.fields or change.messages else None


def _page_for(edit: Edit) -> tuple[int, int]:
    if edit.rewind is not None or edit.becomes is not None:
        return WHOLE
    return LAST_TWO if edit.ends_with is not None else NO_MESSAGES


def _edited(found: Found, edit: Edit, session_id: str) -> Change | Busy | None:
    if edit.rewind is not None:
        return _rewound(found, edit.rewind, session_id)
    if edit.ends_with is not None:
        return _ended_with(found, edit.ends_with, session_id)
    if edit.becomes is not None:
        return _become(found, edit.becomes, session_id)
    changes = edit.changes(found.value)
    fields = {name: encode_field(name, value) for name, value in changes.items()}
    events: list[Event] = [HistoryCleared()] if edit.clear else []
    events += [MessageAdded(message=message) for message in edit.add]
    if "variables" in changes:
        events.append(VariablesChanged(variables=changes["variables"]))
    if edit.clear and not found.text("restored"):
        fields["restored"] = b"cleared"  # an archive restores everything but the history
    change = _difference(found, fields)
    change.keep = 0 if edit.clear else None
    change.messages = _encoded(edit.add)
    change.bodies = [_body(event, session_id) for event in events]
    return change


def _rewound(found: Found, message_id: str, session_id: str) -> Change | Busy:
    """Return the cut after a message, or ``Busy`` if a turn may still add the message.

    Raises ``MessageNotFound`` and ``UsageError``.
    """
    for turn_id in found.inbox:
        if message_id.startswith(f"{turn_id}."):
            return Busy(turn_id)
    kept = kept_behind(decode_history(found.history, 0), message_id)
    seq = found.fields.get("seq", b"")  # cuts only what was read: each added message raises seq
    change = Change([FieldChange("seq", seq, seq)], length=found.length)
    if kept < found.length:
        change.keep = kept
        change.bodies = [_body(HistoryRewound(message_id=message_id, kept=kept), session_id)]
    return change


def _ended_with(
    found: Found, ends_with: Callable[[Message | None], list[Message]], session_id: str
) -> Change | None:
    """Return the change that replaces the last message of the history, if there is one."""
    seq = found.fields.get("seq", b"")  # as above
    change = Change([FieldChange("seq", seq, seq)], length=found.length)
    last = decode_history(found.history, max(found.length - 2, 0))
    messages = ends_with(last[-1] if last else None)
    if not last:
        return None
    before, kept = (last[0].id or "") if last[1:] else "", found.length - 1
    return _cut_and_added(change, kept, before, messages, session_id)


def _become(
    found: Found, becomes: Callable[[list[Message]], list[Message]], session_id: str
) -> Change | None:
    """Return the change that replaces all messages after those that the old and new histories share."""
    seq = found.fields.get("seq", b"")  # as above
    change = Change([FieldChange("seq", seq, seq)], length=found.length)
    old = decode_history(found.history, 0)
    new = becomes(decode_history(found.history, 0))
    kept = shared_beginning(old, new)
    if kept == len(old) == len(new):
        return None
    before = (old[kept - 1].id or "") if kept else ""
    return _cut_and_added(change, kept, before, new[kept:], session_id)


def _cut_and_added(
    change: Change, kept: int, before: str, messages: list[Message], session_id: str
) -> Change:
    """Complete a change that removes all messages after the message ``before`` and adds others there."""
    events: list[Event] = [] if kept == change.length else [HistoryRewound(message_id=before, kept=kept)]
    events += [MessageAdded(message=message) for message in messages]
    change.keep, change.messages = kept if kept != change.length else None, _encoded(messages)
    change.bodies = [_body(event, session_id) for event in events]
    return change


def _difference(found: Found, fields: dict[str, bytes]) -> Change:
    old = {name: found.fields.get(name, b"") for name in fields}
    return Change([FieldChange(name, old[name], new) for name, new in fields.items() if new != old[name]])


def _at_the_end(turn_id: str, history: Sequence[bytes]) -> int:
    """Return how many messages at the end of a history belong to this turn."""
    count = 0
    for data in reversed(history):
        if decode_message(data).turn_id != turn_id:
            break
        count += 1
    return count


def _encoded(messages: Sequence[Message]) -> list[bytes]:
    return [encode(message) for message in messages]


def _body(event: Event, session_id: str) -> bytes:
    """Encode an event without ``seq`` and ``at``, which the script adds in front."""
    event.session_id = session_id
    return encode(event)
