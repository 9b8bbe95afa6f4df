"""Replaces events that are no longer kept, page by page, for readers with an old cursor.

Readers receive the messages that these events added to the history, in order: those of a turn have the seq of its
last event. An event announces a cut of the history since then; turns that end later are shown as submitted. Each
page depends on the cursor alone, so that a reader may leave in the middle and continue in any process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import Struct

from antiphon.errors import CorruptRecord, SessionNotFound
from antiphon.events import Event, HistoryCleared, HistoryRewound, MessageEvent, TurnQueued
from antiphon.input.ids import SessionId, TurnId, check_tenant
from antiphon.input.request import shown_request
from antiphon.model import TERMINAL, Message, decode_history
from antiphon.redis.archived import ArchiveReader, whole_snapshot
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.ends import FIELD, Piece, missed, read_ends, text_of_ends
from antiphon.wire.errors import asked
from antiphon.wire.lists.notices import turn_records
from antiphon.wire.records import TurnRecord, readable

PAGE = 200
"""How many messages are read at once."""
TURNS_AT_ONCE = 100


class History:
    """The history of a session for readers of its past: its fields, messages and turns."""

    def __init__(self, cell: Cell, session_id: SessionId, archive: ArchiveReader | None = None) -> None:
        self.session_id = session_id
        self.archive = archive
        self._cell = cell
        self._copy: list[bytes] | None = None  # with the archived part, while a reader reads it

    async def state(self) -> tuple[Mapping[str, bytes], int] | None:
        """Return the fields of the session and the length of its history, including the archived part of both."""
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.hgetall(self._cell.keys.session(self.session_id))
        pipe.llen(self._cell.keys.history(self.session_id))
        raw, length = await asked(pipe.execute())
        fields = {text_of(name): value for name, value in raw.items()}
        self._copy = None
        if self.archive is None or fields.get("restored") == b"1":
            return (fields, length) if "created" in fields else None
        try:
            found = await whole_snapshot(self._cell, self.archive, self.session_id)
        except SessionNotFound:
            return None
        self._copy = found.history
        return found.fields, found.history_length

    async def messages(self, start: int, stop: int, noted: bytes) -> list[Message] | None:
        """Return a page of the history, from ``start`` on and without ``stop``.

        None if the session has changed: its notes are no longer ``noted``.
        """
        if self._copy is not None:
            return decode_history(self._copy[start:stop], start)
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.hmget(self._cell.keys.session(self.session_id), FIELD)
        pipe.lrange(self._cell.keys.history(self.session_id), start, stop - 1)
        [now], page = await asked(pipe.execute())
        if (now or b"") != noted:
            return None
        return decode_history(self._cell.seal.open_all(self.session_id, "message", page), start)

    def let_go(self) -> None:
        """Drop the archived copy: the reader has all of it."""
        self._copy = None

    async def turns(self, newest: int, count: int) -> list[TurnRecord]:
        """Return ``count`` of the turns of the session, before its ``newest`` ones."""
        key = self._cell.keys.turns(self.session_id)
        ids = await asked(self._cell.redis.lrange(key, -newest - count, -newest - 1))
        found = await turn_records(self._cell, [TurnId(text_of(one)) for one in ids]) if ids else []
        return [one for one in found if isinstance(one, TurnRecord)]


class _Plan(Struct):
    """What a reader at ``cursor`` has yet to receive, before the event ``before``."""

    cursor: int
    before: int
    noted: bytes
    rewound: tuple[int, int] | None
    pieces: deque[Piece]
    queued: deque[TurnRecord]


class Past:
    """The past of a session, for one reader. If the session exists, it must belong to ``tenant``."""

    def __init__(self, history: History, tenant: str | None = None) -> None:
        self._history = history
        self._tenant = tenant
        self._plan: _Plan | None = None
        self._opened = False  # whether the reader has the messages that the session began with

    @property
    def archived(self) -> bool:
        """Whether a session that is gone from Redis may have a past."""
        return self._history.archive is not None

    async def after(self, cursor: int, before: int, *, beginning: bool = False) -> list[Event] | None:
        """Return a page of events that replace those after ``cursor`` and before ``before``; empty if there are none.

        A ``before`` of 0 means all. With ``beginning``, the reader has seen nothing of the session yet. None if the
        events since ``cursor`` are unknown. Raises ``StoreError``, ``CorruptRecord`` and ``WrongTenant``.
        """
        while True:
            plan = self._plan
            if plan is None or (plan.cursor, plan.before) != (cursor, before):
                plan = self._plan = await self._planned(cursor, before, beginning and not self._opened)
            if plan is None:
                return None
            events = await self._page(plan)
            if events is not None:
                plan.cursor = events[-1].seq if events else cursor
                if not plan.pieces:
                    self._history.let_go()
                return events
            self._plan = None

    async def _planned(self, cursor: int, before: int, beginning: bool) -> _Plan | None:
        state = await self._history.state()
        if state is None:
            return None
        fields, length = state
        if self._tenant is not None:
            check_tenant(self._history.session_id, self._tenant, True, text_of(fields.get("tenant")) or None)
        ends = read_ends(text_of_ends(fields), number(fields.get("first")))
        last = ends.noted[-1].seq if ends.noted else ends.begins.seq
        if not before and cursor > last:
            return None
        found = missed(ends, length, cursor, before or last + 1, beginning=beginning)
        if found is None:
            return None
        rewound = (found.cut_at, found.kept) if found.cut_at else None
        queued = await self._queued(cursor, before) if before else []
        return _Plan(cursor, before, fields.get(FIELD, b""), rewound, deque(found.pieces), deque(queued))

    async def _queued(self, cursor: int, before: int) -> list[TurnRecord]:
        """Return the turns that were submitted in between and end later."""
        found: list[TurnRecord] = []
        for newest in range(0, 1000, TURNS_AT_ONCE):
            page = await self._history.turns(newest, TURNS_AT_ONCE)
            open_ones = [one for one in page if one.status not in TERMINAL or one.last_seq >= before]
            found += [one for one in open_ones if cursor < one.queued_seq < before]
            if not open_ones:
                break
        return sorted(found, key=lambda one: one.queued_seq)

    async def _page(self, plan: _Plan) -> list[Event] | None:
        """Return the next events of a plan; None if the session has changed since."""
        events: list[Event] = []
        if plan.rewound is not None:
            rewound = await self._rewound(*plan.rewound, plan.noted)
            if rewound is None:
                return None
            plan.rewound = None
            return [rewound]
        pieces = _up_to(PAGE, plan.pieces)
        messages = (
            await self._history.messages(pieces[0].start, pieces[-1].stop, plan.noted) if pieces else []
        )
        if messages is None:
            return None
        start = pieces[0].start if pieces else 0
        cursor = plan.cursor
        for piece in pieces:
            whole = plan.pieces[0].stop == piece.stop
            said = messages[piece.start - start : piece.stop - start]
            seq = piece.seq if whole else cursor
            if not said:
                return None
            events.append(self._event(seq, said))
            if whole:
                self._opened = self._opened or piece.seq == cursor
                cursor = plan.pieces.popleft().seq
            else:
                plan.pieces[0] = plan.pieces[0]._replace(start=piece.stop)
        until = plan.before if not plan.pieces else cursor
        while plan.queued and plan.queued[0].queued_seq <= until:
            events.append(self._queued_event(plan.queued.popleft()))
        return sorted(events, key=lambda one: one.seq)

    async def _rewound(self, seq: int, kept: int, noted: bytes) -> Event | None:
        where: dict[str, Any] = {"seq": seq, "session_id": self._history.session_id}
        if not kept:
            return HistoryCleared(**where)
        last = await self._history.messages(kept - 1, kept, noted)
        if not last:
            return None
        return HistoryRewound(kept=kept, message_id=last[0].id or "", **where)

    def _event(self, seq: int, messages: Sequence[Message]) -> Event:
        turns = {one.turn_id or "" for one in messages}
        return MessageEvent(
            seq=seq, at=messages[-1].created or 0, session_id=self._history.session_id,
            turn_id=turns.pop() if len(turns) == 1 else "", messages=[*messages],
        )  # fmt: skip

    def _queued_event(self, turn: TurnRecord) -> Event:
        where: dict[str, Any] = {"session_id": turn.session_id, "turn_id": turn.turn_id}
        said: list[Message] | None = None
        with suppress(CorruptRecord), readable("The record of a turn", **where):
            said = shown_request(turn.fields["request"]).messages
        return TurnQueued(
            seq=turn.queued_seq, at=number(turn.fields.get("queued_at")), run=turn.run,
            position=number(turn.fields.get("position")), input=said or [], input_omitted=said is None, **where,
        )  # fmt: skip


def _up_to(messages: int, pieces: deque[Piece]) -> list[Piece]:
    """Return the next pieces with about this many messages, or the beginning of a large one."""
    found: list[Piece] = []
    for one in pieces:
        if found and one.stop - found[0].start > messages:
            break
        if one.stop - one.start > messages and not found:
            return [one._replace(stop=one.start + messages)]
        found.append(one)
    return found


PastOf: TypeAlias = Callable[[Cell, SessionId, str | None], Past]
"""Returns the past of a session of this tenant."""


def past_of(archive: ArchiveReader | None, cell: Cell, session_id: SessionId, tenant: str | None) -> Past:
    """Return the past of a session in a cell, including its archived part."""
    return Past(History(cell, session_id, archive), tenant)
