"""Reads turns from their records in Redis, and pages of history that include them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord, SessionNotFound
from antiphon.input.ids import SessionId, TurnId, check_tenant
from antiphon.input.request import shown_request
from antiphon.input.values import Asked
from antiphon.model import (
    TERMINAL,
    Decision,
    Message,
    Response,
    ServiceAnswer,
    Status,
    ToolResult,
    Usage,
    decode_history,
)
from antiphon.redis.archived import ArchiveReader, whole_snapshot
from antiphon.redis.fields import decode_field
from antiphon.session.runtime import SessionRef, agent_name
from antiphon.session.turn_info import LeftNothing, TurnInfo, TurnRun, in_place, shown
from antiphon.text import text_of
from antiphon.tools.results import at_the_end, noted
from antiphon.wire.cell import Cell
from antiphon.wire.feedback import feedback_of
from antiphon.wire.forwarding import pending_below
from antiphon.wire.records import TurnRecord, readable
from antiphon.wire.revisions import route_of
from antiphon.wire.suspension import open_calls, waits_of


class _Steered(Struct):
    messages: list[Message]


class _Entry(Struct):
    """An entry of a journal: a model call, the result of one of its tool calls, a call that was about to start, the
    calls that wait for decisions, the decision about one of them when the turn ended, or the messages that steered
    the turn."""

    message: Message | None = None
    usage: Usage | None = None
    result: ToolResult | None = None
    created: int | None = None
    call_id: str | None = None
    call_ids: list[str] | None = None
    decision: Decision | None = None
    request: _Steered | None = None


class _Line(Struct):
    """An ended run, as it is kept in the record of its turn."""

    run: int
    status: Status
    attempt: int
    started: int | None
    ended: int | None
    code: str
    error: str
    response: Response | None = None
    journal: list[_Entry] | None = None
    service: ServiceAnswer | None = None

    def told(self) -> TurnRun:
        messages = self.response.messages if self.response else _said(self.journal or [])
        return TurnRun(
            self.run, self.status, self.attempt, self.started, self.ended, self.code or None, self.error or None,
            messages, self.service,
        )  # fmt: skip


def turn_info(record: TurnRecord) -> TurnInfo:
    """Return a turn as its record describes it. Raises ``CorruptRecord``."""
    response, fields = response_of(record), record.fields
    calls, decisions = open_calls(fields, record.turn_id)
    with readable("The record of a turn", session_id=record.session_id, turn_id=record.turn_id):
        request = shown_request(fields["request"])
        agent = request.agent
        return TurnInfo(
            record.turn_id, record.session_id, record.status, request.messages,  # type: ignore[arg-type]
            agent=agent_name(agent) if agent is None or isinstance(agent, str) else agent.name,
            metadata=request.metadata,
            key=text_of(fields.get("key")) or None,
            created=int(fields.get("created") or fields.get("queued_at") or 0),
            due=_time(record, "due_at"), run=record.run, attempt=record.attempt,
            started=_time(record, "started_at"), ended=_time(record, "ended_at"),
            **_why(record),
            usage=response.usage, messages=response.messages,
            calls=[*(calls if record.status == "suspended" else []), *pending_below(record)], decisions=decisions,
            steered_into=text_of(fields.get("steered_into")) or None,
            tenant=text_of(fields.get("tenant")) or None, user=request.user, feedback=feedback_of(record),
            waits=waits_of(fields, record.turn_id) if record.status == "suspended" else [],
            route=route_of(record),
        )  # fmt: skip


def _why(record: TurnRecord) -> dict[str, Any]:
    """Return why the turn failed or was cancelled, or why it waits to be tried again."""
    code, error, service = record.error_code, record.error, "service"
    if record.status == "retrying":
        code, error = (text_of(record.fields.get(name)) for name in ("retry_code", "retry_reason"))
        service = "retry_service"
    return {"code": code or None, "error": error or None, "service": service_of(record, service)}


def service_of(record: TurnRecord, name: str = "service") -> ServiceAnswer | None:
    """Return the model service's error in a turn. Raises ``CorruptRecord``."""
    with readable("The record of a turn", session_id=record.session_id, turn_id=record.turn_id):
        return msgspec.json.decode(record.fields.get(name) or b"null", type=ServiceAnswer | None)


def turn_infos(records: Iterable[TurnRecord]) -> list[TurnInfo]:
    """Return turns as their records describe them, without those whose record is damaged."""
    found: list[TurnInfo] = []
    for record in records:
        with suppress(CorruptRecord):
            found.append(turn_info(record))
    return found


def runs_of(record: TurnRecord) -> list[TurnRun]:
    """Return the runs of a turn, oldest first, at most the last 21. Raises ``CorruptRecord``."""
    with readable("The runs of a turn", session_id=record.session_id, turn_id=record.turn_id):
        lines = record.fields.get("runs", b"").split(b"\n")
        over = [msgspec.json.decode(line, type=_Line).told() for line in lines if line]
    return [*over, turn_info(record).last_run]


def response_of(record: TurnRecord) -> Response:
    """Return the output and tool results of an ended turn, for any outcome. Raises ``CorruptRecord``."""
    with readable("The response of a turn", session_id=record.session_id, turn_id=record.turn_id):
        if record.response:
            return msgspec.json.decode(record.response, type=Response)
        journal = msgspec.json.decode(record.fields.get("journal") or b"[]", type=list[_Entry])
        usage = sum((entry.usage for entry in journal if entry.usage), Usage())
        return Response(messages=_said(journal), usage=usage)


async def finished_steps(cell: Cell, session: SessionId, turn: TurnId) -> list[Message]:
    """Return the messages of the finished steps of a turn that has not ended, from its journal.

    Raises ``CorruptRecord``.
    """
    entries: Any = await cell.redis.lrange(cell.keys.journal(turn), 0, -1)
    with readable("The journal of a turn", session_id=session, turn_id=turn):
        return _said(
            msgspec.json.decode(one, type=_Entry) for one in cell.seal.open_all(session, "journal", entries)
        )


def _said(journal: Iterable[_Entry]) -> list[Message]:
    """Return the messages of an unfinished journal. A call without a result gets one that states what is known."""
    messages: list[Message] = []
    step = _Step()
    for entry in journal:
        if entry.message is not None:
            messages += step.messages
            step = _Step(entry.message)
        elif entry.request is not None:
            messages += [*step.messages, *entry.request.messages]
            step = _Step()
        else:
            step.add(entry)
    return [*messages, *step.messages]


class _Step:
    """A model call of an unfinished journal, with the state of its tool calls."""

    def __init__(self, answer: Message | None = None) -> None:
        self._answer = answer
        self._results: dict[str, ToolResult] = {}
        self._decisions: dict[str, Decision] = {}
        self._opened: set[str] = set()
        self._begun: set[str] = set()
        self._created: int | None = None

    def add(self, entry: _Entry) -> None:
        self._opened.update(entry.call_ids or ())
        if entry.call_id is not None:
            self._begun.add(entry.call_id)
        if entry.result is not None:
            self._results[entry.result.call_id] = entry.result
            self._created = entry.created
        if entry.decision is not None:
            self._decisions[entry.decision.call_id] = entry.decision

    @property
    def messages(self) -> list[Message]:
        if self._answer is None:
            return []
        calls = self._answer.tool_calls
        if not calls:
            return [self._answer]
        results = Message.tool(
            [
                self._results.get(call.call_id)
                or at_the_end(call, self._opened, self._decisions, self._begun)
                for call in calls
            ]
        )
        results.created = self._created
        made = (noted(self._decisions.get(call.call_id)) for call in calls)
        results.decisions = [one for one in made if one is not None]
        return [self._answer, results]


async def read_page(
    cell: Cell,
    session: SessionRef,
    start: int,
    stop: int | None,
    asked: Asked,
    archive: ArchiveReader | None = None,
) -> list[Message]:
    """Return a slice of the history with turns that are not in it: failed ones in place, pending ones at the end."""
    if stop == 0:
        return []
    try:
        last = -1 if stop is None else stop - 1
        found = await whole_snapshot(cell, archive, session.id, start, last, asked)
    except SessionNotFound:
        return []
    check_tenant(session.id, session.tenant, True, decode_field("tenant", found.fields.get("tenant", b"")))
    first = max(found.history_length + start, 0) if start < 0 else start
    page = decode_history(found.history, first)
    turns = turn_infos(found.turns)
    places = {record.turn_id: _time(record, "place") or 0 for record in found.turns}
    left = [
        LeftNothing(places[TurnId(one.turn_id)], one)
        for one in turns
        if one.status in ("failed", "cancelled")
    ]
    page = in_place(page, first, left, found.order)
    if stop is None or stop >= found.history_length:
        page += [message for one in turns if one.status not in TERMINAL for message in shown(one)]
    return page


def _time(record: TurnRecord, name: str) -> int | None:
    return int(record.fields[name]) if record.fields.get(name) else None
