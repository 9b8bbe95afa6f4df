"""Reads a cell for people and tools: sessions, workers, failed turns and the timeline of a turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct, field

from antiphon.encryption.records import SESSION
from antiphon.errors import CorruptRecord
from antiphon.events import Event, decode_event
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import TERMINAL
from antiphon.text import number, text_of, whole
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.lists.reading import Place, fields_of, queues_of, workers_of
from antiphon.wire.records import DEFAULT_QUEUE, TurnRecord, decode_published


async def agents_of_sessions(cell: Cell, sessions: Sequence[str]) -> list[bytes]:
    """Read the agents of sessions as JSON; empty if one cannot be decrypted."""
    found = await fields_of(cell, map(cell.keys.session, sessions), "agent")
    return [
        _shown(cell, session, "agent", raw or b"") for session, (raw,) in zip(sessions, found, strict=True)
    ]


PAGE = 1000
MOST_PAGES = 100


async def turn_log(cell: Cell, turn: TurnRecord) -> list[Event]:
    """Read the kept events of a turn's last run, except deltas, in pages. Raises ``StoreError``."""
    after = await cell.place_of_turn(turn.session_id, turn.turn_id)
    last = turn.last_seq if turn.status in TERMINAL else None
    found: list[Event] = []
    for _ in range(MOST_PAGES):
        _, page = await cell.log(turn.session_id, ("seq",), after + 1, PAGE)
        for after, body in page:
            event = _event(cell, turn, body) if last is None or after <= last else None
            found += [event] if event else []
        if len(page) < PAGE or (last is not None and after >= last):
            break
    return found


def _event(cell: Cell, turn: TurnRecord, body: bytes) -> Event | None:
    """Read an event of this turn; None for a delta, an event of another turn, or a damaged one."""
    try:
        known = decode_published(body)
        if known.turn_id != turn.turn_id or known.type.endswith("_delta"):
            return None
        return decode_event(cell.seal.open(turn.session_id, "event", body))
    except CorruptRecord:
        return None


T = TypeVar("T")

_ROW = ("agent", "created", "updated", "closed", "fence", "due_until", "restored")
CLAIMED_ENTRIES = 1000  # of a queue, as in claim.lua


class SessionRow(Struct):
    """One session in a list. ``fields`` contains the requested raw values.

    ``held`` is true while a worker holds the session, ``failed`` if the last submitted turn has failed, and
    ``suspended`` if that turn or the one that runs next waits for decisions. ``due`` is when the next delayed turn is
    due, or 0. ``restored`` is true if an archive has nothing more of it. Times are the server's, in ms.
    """

    session_id: str
    fields: dict[str, bytes] = field(default_factory=dict)
    agent: bytes = b""
    created: int = 0
    updated: int = 0
    closed: bool = False
    held: bool = False
    turns: int = 0
    messages: int = 0
    last_turn: str = ""
    due: int = 0
    failed: bool = False
    restored: bool = False
    head: str = ""
    suspended: bool = False


class DueTurn(Struct):
    """A delayed turn that is not due yet. ``due`` and ``created`` are in ms since 1970, by the clock of Redis."""

    turn_id: str
    session_id: str
    due: int
    queue: str = ""
    tenant: str | None = None
    created: int = 0


class FailedTurn(Struct):
    """A failed job that is not a turn, or a quarantined session. Times are the server's, in ms."""

    turn_id: str
    session_id: str
    queue: str
    code: str
    error: str
    ended: int


async def workers(cell: Cell, queue: str | None = None) -> dict[str, int]:
    """Return the process ids of the live workers, ours and RQ's own, by name: of one queue, or all."""
    names = await workers_of(cell, queue)
    found = await fields_of(cell, (cell.keys.of_rq("rq_worker", name) for name in names), "birth", "pid")
    return {name: number(pid) for name, (birth, pid) in zip(names, found, strict=True) if birth is not None}


async def unserved(cell: Cell, turn_id: TurnId) -> str | None:
    """Return a warning for the caller of a turn whose queue no worker serves, '' if none is due, None once it began."""
    status, queue = await asked(cell.redis.hmget(cell.keys.turn(turn_id), "status", "queue"))
    if status not in (b"queued", b"waiting"):
        return None
    if status != b"queued" or await workers(cell, text_of(queue)):
        return ""
    named = "" if text_of(queue) == DEFAULT_QUEUE else f" --queues {text_of(queue)}"
    return f"No worker serves the queue {text_of(queue)} now: the turn waits. Start one with `antiphon worker{named}`."


async def work_left(cell: Cell, worker: str, queues: Sequence[str]) -> bool:
    """Return whether one of these queues has an entry that is not another prefix's, or this worker holds a turn.

    Both are read at one moment; of each queue, as many entries as a claim reads.
    """
    pipe = cell.redis.pipeline(transaction=True)
    pipe.hlen(cell.keys.held(worker))
    pipe.hexists(cell.keys.held(worker), "")
    for queue in queues:
        pipe.lrange(cell.keys.of_rq("rq_queue", queue), 0, CLAIMED_ENTRIES - 1)
    held, token, *entries = await asked(pipe.execute())
    jobs = [job for queue in entries for job in queue]
    return held - token > 0 or not all(await _of_other_prefixes(cell, jobs))


async def _of_other_prefixes(cell: Cell, jobs: Sequence[bytes]) -> list[bool]:
    if not jobs:
        return []
    pipe = cell.redis.pipeline(transaction=False)
    for job in jobs:
        pipe.hget(cast("Any", cell.keys.of_rq("rq_job", "").encode() + job), "ant_prefix")
    prefixes = await asked(pipe.execute(raise_on_error=False))  # a job that is not a hash is not a turn
    return [isinstance(prefix, bytes) and text_of(prefix) != cell.keys.deployment for prefix in prefixes]


async def places_of_sessions(cell: Cell, sessions: Iterable[str]) -> list[Place]:
    """Return the places of these sessions, the last one first, without those that have ended."""
    names = list(dict.fromkeys(sessions))
    scores: Any = await asked(cell.redis.zmscore(cell.keys.sessions, names)) if names else []
    found = [(whole(score), name) for score, name in zip(scores, names, strict=True) if score is not None]
    return sorted(found, reverse=True)


async def sessions_in(cell: Cell, state: str, most: int) -> list[str]:
    """Return the sessions that may be running, suspended or failed, from up to ``most`` entries of each list."""
    if state == "running":
        return [text_of(one) for one in await asked(cell.redis.zrange(cell.keys.active, 0, most - 1))]
    lists = [cell.keys.suspended]
    if state == "failed":
        lists = [cell.keys.of_rq("rq_failed", queue) for queue in await queues_of(cell)]
    turns = [turn for key in lists for turn in await asked(cell.redis.zrange(key, 0, most - 1, desc=True))]
    records = await fields_of(cell, (cell.keys.turn(text_of(turn)) for turn in turns), "session")
    return [text_of(session) for (session,) in records if session]


async def session_rows(cell: Cell, places: Sequence[Place], fields: Sequence[str]) -> list[SessionRow | None]:
    """Read some fields of these sessions, in two round trips, or in four if there are delayed turns.

    A session that has ended becomes None.
    """
    pipe = cell.redis.pipeline(transaction=False)
    for _, name in places:
        pipe.hmget(cell.keys.session(name), *_ROW, *fields)
        pipe.llen(cell.keys.inbox(name))
        pipe.llen(cell.keys.history(name))
        pipe.lindex(cell.keys.turns(name), -1)
        pipe.lindex(cell.keys.inbox(name), 0)
    answers = await asked(pipe.execute(raise_on_error=False))
    rows = [_row(cell, name, fields, *answers[5 * n : 5 * n + 5]) for n, (_, name) in enumerate(places)]
    there = [row for row in rows if row is not None]
    await _add_ends(cell, [row for row in there if row.last_turn])
    await _add_due(cell, [row for row in there if row.due])
    return rows


async def _add_ends(cell: Cell, rows: Sequence[SessionRow]) -> None:
    """Set whether the last turn of each session has failed, and whether that or the next one is suspended."""
    keys = (cell.keys.turn(turn) for row in rows for turn in (row.last_turn, row.head or row.last_turn))
    found = iter(await fields_of(cell, keys, "status"))
    for row, (last,), (head,) in zip(rows, found, found, strict=True):
        row.failed, row.suspended = last == b"failed", b"suspended" in (last, head)


async def _add_due(cell: Cell, rows: Sequence[SessionRow]) -> None:
    """Set when the next delayed turn of each session is due; the sessions have had delayed turns."""
    pipe = cell.redis.pipeline(transaction=False)
    for row in rows:
        pipe.lrange(cell.keys.turns(row.session_id), 0, -1)
    for turns in await asked(pipe.execute(raise_on_error=False)):
        pipe.zmscore(cell.keys.due, cast("list[str]", turns) if isinstance(turns, list) and turns else [""])
    for row, scores in zip(rows, await asked(pipe.execute()), strict=True):
        row.due = min((whole(score) for score in scores if score is not None), default=0)


async def due_turns(cell: Cell, places: Sequence[Place]) -> list[DueTurn | None]:
    """Read these delayed turns; None for each that no longer exists."""
    names = "session", "queue", "tenant", "queued_at"
    found: list[DueTurn | None] = []
    records = await fields_of(cell, (cell.keys.turn(turn) for _, turn in places), *names)
    for (due, turn), record in zip(places, records, strict=True):
        session, queue, tenant, queued = map(text_of, record)
        found.append(DueTurn(turn, session, due, queue, tenant or None, number(queued)) if session else None)
    return found


async def turn_ids(cell: Cell, session_id: SessionId) -> tuple[list[TurnId], bool, str | None]:
    """Return the ids of a session's last turns, newest first, whether the session exists, and its tenant.

    Some of the turns may have expired.
    """
    pipe = cell.redis.pipeline(transaction=True)
    pipe.lrange(cell.keys.turns(session_id), 0, -1)
    pipe.hmget(cell.keys.session(session_id), "created", "tenant")
    found, (created, tenant) = await asked(pipe.execute())
    return [TurnId(text_of(turn)) for turn in reversed(found)], bool(created), text_of(tenant) or None


async def statuses(cell: Cell, turns: Sequence[TurnId]) -> list[str]:
    """Return the status of each turn, '' for expired ones."""
    found = await fields_of(cell, map(cell.keys.turn, turns), "status")
    return [text_of(status) for (status,) in found]


async def not_turns(cell: Cell, limit: int) -> list[FailedTurn]:
    """Return the quarantined sessions and the failed jobs of all queues that are not turns, newest first."""
    found = [_quarantined(*pair) for pair in (await asked(cell.redis.hgetall(cell.keys.quarantined))).items()]
    for queue in await queues_of(cell):
        ids = await asked(cell.redis.zrange(cell.keys.of_rq("rq_failed", queue), 0, limit - 1, desc=True))
        jobs = [text_of(job) for job in ids]
        keys = [key for job in jobs for key in (cell.keys.turn(job), cell.keys.of_rq("rq_job", job))]
        records = await fields_of(cell, keys, "session", "exc_info")
        for job, (session, _), (_, traceback) in zip(jobs, records[::2], records[1::2], strict=True):
            if not session:
                lines = text_of(traceback).strip().splitlines()
                found.append(FailedTurn(job, "", queue, "no_turn", lines[-1] if lines else "", 0))
    return sorted(found, key=lambda turn: -turn.ended)[:limit]


def _row(cell: Cell, name: str, names: Sequence[str], *answers: Any) -> SessionRow | None:
    """Return a session's row, or None if it has ended or is damaged; a damaged one is listed with the failed turns."""
    if any(isinstance(answer, Exception) for answer in answers):
        return None
    found, turns, messages, last_turn, head = answers
    agent, created, updated, closed, fence, due_until, restored, *values = (value or b"" for value in found)
    if not (created or updated):
        return None
    fields = {field: _shown(cell, name, field, value) for field, value in zip(names, values, strict=True)}
    return SessionRow(
        name, fields, _shown(cell, name, "agent", agent), number(created or updated), number(updated or created),
        bool(closed), bool(fence), turns, messages, text_of(last_turn), number(due_until),
        restored=restored == b"1", head=text_of(head),
    )  # fmt: skip


def _shown(cell: Cell, session: str, field: str, value: bytes) -> bytes:
    """Return a field of a session for a list; empty if it cannot be decrypted."""
    try:
        return cell.seal.open_field(session, SESSION, field, value)
    except CorruptRecord:
        return b""


def _quarantined(name: bytes, why: bytes) -> FailedTurn:
    since, _, reason = text_of(why).partition(" ")
    return FailedTurn("-", text_of(name), "", "quarantined", reason, number(since))
