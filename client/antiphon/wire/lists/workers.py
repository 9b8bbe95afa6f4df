"""Lists the queues, the workers and the running turns of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.lists.reading import fields_of, queues_of, workers_of

FIELD = "ant_app"
"""The field of a worker's record with the names of what its App has."""


class Offer(Struct):
    """What one App has: its ``agents``, and the ``providers`` of inline agents (``*`` is any).

    ``models`` are the models that inline agents may name, None for any. ``more`` is true if names were left out.
    """

    prefix: str
    agents: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)
    models: list[str] | None = None
    more: bool = False


async def offers(cell: Cell) -> list[Offer]:
    """Return what the live workers of a cell offer, each App once. Raises ``StoreError``."""
    found = await fields_of(
        cell, (cell.keys.of_rq("rq_worker", name) for name in await workers_of(cell)), FIELD
    )
    records = {record for (record,) in found}
    return [offer for record in records if (offer := _offer(cell, record)) is not None]


def _offer(cell: Cell, record: bytes | None) -> Offer | None:
    """Read what a worker offers; None for a worker of RQ's own or of another prefix."""
    with suppress(msgspec.MsgspecError, UnicodeError):
        offer = msgspec.json.decode(record or b"", type=Offer)
        return offer if cell.keys.of_deployment(offer.prefix) else None
    return None


FRONT = 100
"""How many entries of a queue are searched for the oldest one: a tenant has one entry there, its oldest turn."""

_REGISTRIES = ("rq_started", "rq_deferred", "rq_scheduled", "rq_failed")
_FIELDS = ("birth", "last_heartbeat", "queues", "pid", "hostname", "state", "version", "successful_job_count",
           "failed_job_count", "total_working_time", "ant_tokens", "ant_lag")  # fmt: skip


class QueueRow(Struct):
    """A queue of a cell. ``queued`` turns may be claimed at once; the oldest of them has waited ``oldest_seconds``.

    ``waiting`` turns wait for others of their session or tenant, or for a decision; ``delayed`` ones for their time or
    their next attempt. ``retrying_seconds`` is how long the model service of a turn has failed in its current step: the
    longest among the first ``FRONT`` turns that are queued, running or delayed. ``workers`` serve the queue now.
    """

    name: str
    queued: int
    running: int
    waiting: int
    delayed: int
    failed: int
    workers: int
    oldest_seconds: float | None = None
    retrying_seconds: float | None = None


class WorkerRow(Struct):
    """A live worker process. ``since`` is its start and ``heard`` its last sign of life, in ms since 1970.

    ``running`` is how many turns it holds, ``turns`` the ids of up to 20 that run for a second or longer. ``finished``
    and ``failed`` are turns since its start, and ``seconds`` is the time that they took together. ``tokens`` are those
    of ended attempts. ``lag`` is how late events were published in the last second, in seconds.
    """

    name: str
    queues: list[str]
    host: str
    pid: int
    state: str
    version: str
    since: int | None
    heard: int | None
    running: int
    turns: list[str]
    finished: int
    failed: int
    seconds: float
    tokens: int = 0
    lag: float = 0.0

    def add(self, other: WorkerRow) -> None:
        """Add what the same process does in another cell."""
        self.state = "busy" if "busy" in (self.state, other.state) else self.state
        self.heard = max(self.heard or 0, other.heard or 0) or None
        self.turns = [*self.turns, *other.turns]
        self.running += other.running
        self.finished += other.finished
        self.failed += other.failed
        self.seconds += other.seconds
        self.tokens += other.tokens
        self.lag = max(self.lag, other.lag)


async def queue_rows(cell: Cell, workers: Sequence[WorkerRow]) -> list[QueueRow]:
    """Read all queues of a cell by name; ``workers`` are its workers. Raises ``StoreError``."""
    names = await queues_of(cell)
    pipe = cell.redis.pipeline(transaction=False)
    for name in names:
        pipe.llen(cell.keys.of_rq("rq_queue", name))
        pipe.lrange(cell.keys.of_rq("rq_queue", name), 0, FRONT - 1)
        pipe.zrange(cell.keys.of_rq("rq_started", name), 0, FRONT - 1)
        pipe.zrange(cell.keys.of_rq("rq_scheduled", name), 0, FRONT - 1)
        for registry in _REGISTRIES:
            pipe.zcard(cell.keys.of_rq(registry, name))
    found, size = await asked(pipe.execute(raise_on_error=False)), 4 + len(_REGISTRIES)
    serving = [queue for worker in workers for queue in worker.queues]
    now = await cell.server_ms()
    return [
        await _queue_row(cell, name, found[at * size : (at + 1) * size], serving.count(name), now)
        for at, name in enumerate(names)
    ]


async def _queue_row(cell: Cell, name: str, answers: list[Any], workers: int, now: int) -> QueueRow:
    queued, *lists, running, waiting, delayed, failed = answers
    front, *others = [_entries(one) for one in lists]
    oldest, failing = await _since(cell, front)
    _, retried = await _since(cell, [turn for other in others for turn in other])
    counted = map(_count, (queued, running, waiting, delayed, failed))
    first = min(filter(None, (failing, retried)), default=None)
    return QueueRow(name, *counted, workers, _age(oldest, now), _age(first, now))  # pyright: ignore[reportCallIssue]


async def _since(cell: Cell, turns: Sequence[bytes]) -> tuple[int | None, int | None]:
    """Return since when (ms) one of these turns has waited, and a model service has failed in one's current step.

    Entries of other jobs are ignored.
    """
    keys = (cell.keys.turn(text_of(turn).partition(":")[0]) for turn in turns)
    waited: list[int] = []
    failing: list[int] = []
    for queued, failed, step in await fields_of(cell, keys, "queued_at", "failing", "step"):
        waited.append(number(queued))
        at_step, _, since = (failed or b"").partition(b" ")
        failing.append(number(since) if at_step == step else 0)
    return min(filter(None, waited), default=None), min(filter(None, failing), default=None)


def _entries(answer: Any) -> list[bytes]:
    return answer if isinstance(answer, list) else []


def _age(since: int | None, now: int) -> float | None:
    return None if since is None else max((now - since) / 1000, 0.0)


async def own_workers(cell: Cell, rows: Sequence[WorkerRow]) -> list[WorkerRow]:
    """Return the workers that run turns of this prefix and are not RQ's own. Raises ``StoreError``."""
    records = await fields_of(cell, (cell.keys.of_rq("rq_worker", row.name) for row in rows), FIELD)
    return [row for row, (record,) in zip(rows, records, strict=True) if _offer(cell, record) is not None]


async def worker_rows(cell: Cell) -> list[WorkerRow]:
    """Read the live workers of a cell by name. Raises ``StoreError``."""
    names = await workers_of(cell)
    pipe = cell.redis.pipeline(transaction=False)
    for name in names:
        pipe.hmget(cell.keys.of_rq("rq_worker", name), *_FIELDS)
        pipe.smembers(cell.keys.of_rq("rq_worker_executions", name))
        pipe.hlen(cell.keys.held(name))
        pipe.hexists(cell.keys.held(name), "")
    found = await asked(pipe.execute(raise_on_error=False))
    rows = [_worker(name, *found[at * 4 : at * 4 + 4]) for at, name in enumerate(names)]
    return [row for row in rows if row is not None]


def _worker(name: str, fields: Any, executions: Any, held: Any, token: Any) -> WorkerRow | None:
    """Return a worker from its record; None if it no longer exists but is still in RQ's set."""
    if isinstance(fields, Exception) or fields[0] is None:
        return None
    values = dict(zip(_FIELDS, map(text_of, fields), strict=True))
    shown: list[bytes] = [] if isinstance(executions, Exception) else [*executions]
    turns = sorted(text_of(one).rpartition(":")[0] for one in shown)
    return WorkerRow(
        name, [one for one in values["queues"].split(",") if one], values["hostname"], number(values["pid"]),
        values["state"], values["version"], _ms(values["birth"]), _ms(values["last_heartbeat"]),
        max(_count(held) - _count(token), len(turns)), turns, number(values["successful_job_count"]),
        number(values["failed_job_count"]), _seconds(values["total_working_time"]),
        number(values["ant_tokens"]), _seconds(values["ant_lag"]),
    )  # fmt: skip


def _ms(iso: str) -> int | None:
    try:
        return int(datetime.fromisoformat(iso).timestamp() * 1000)
    except ValueError:
        return None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _count(answer: Any) -> int:
    return int(answer) if isinstance(answer, int) else 0


_FIELDS_OF_TURNS = (
    "session",
    "status",
    "queue",
    "worker",
    "attempt",
    "step",
    "queued_at",
    "started_at",
    "tenant",
)


class TurnRow(Struct):
    """The current turn of a session. ``queued`` and ``started`` are in ms since 1970; ``started`` is 0 before it began.

    ``worker`` is the last worker that had it, and ``step`` the number of its current model call.
    """

    turn_id: str
    session_id: str
    status: str
    queue: str
    worker: str
    attempt: int
    step: int
    queued: int
    started: int
    tenant: str | None = None


class Counts(Struct):
    """How many sessions have turns to run, and how many turns wait for decisions or their time, or are set aside."""

    sessions: int = 0
    waiting: int = 0
    delayed: int = 0
    quarantined: int = 0


async def counts(cell: Cell) -> Counts:
    """Count what a cell has to do, in one round trip. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    pipe.zcard(cell.keys.active)
    pipe.zcard(cell.keys.suspended)
    pipe.zcard(cell.keys.due)
    pipe.hlen(cell.keys.quarantined)
    return Counts(*map(int, await asked(pipe.execute())))


class SessionCounts(Struct):
    """How many sessions there are, and how many turns run, are suspended, and have failed in the last week.

    With a ``limit``, at most that many of each were counted; ``sessions`` is then None. ``searchable`` is whether there
    is an index of finished turns.
    """

    sessions: int | None = 0
    running: int = 0
    suspended: int = 0
    failed: int = 0
    limit: int | None = None
    searchable: bool = False


async def session_counts(cell: Cell) -> SessionCounts:
    """Count sessions and turns of a cell in two round trips, without reading any. Raises ``StoreError``."""
    queues = [text_of(key) for key in await asked(cell.redis.smembers(cell.keys.of_rq("rq_queues")))]
    names = [queue.removeprefix(cell.keys.of_rq("rq_queue", "")) for queue in queues]
    pipe = cell.redis.pipeline(transaction=False)
    pipe.zcard(cell.keys.sessions)
    pipe.zcard(cell.keys.suspended)
    for registry in ("rq_started", "rq_failed"):
        for name in names:
            pipe.zcard(cell.keys.of_rq(registry, name))
    sessions, suspended, *found = map(_count, await asked(pipe.execute(raise_on_error=False)))
    return SessionCounts(sessions, sum(found[: len(names)]), suspended, sum(found[len(names) :]))


async def turn_rows(cell: Cell, limit: int) -> list[TurnRow]:
    """Read the current turns of up to ``limit`` sessions of a cell, in three round trips. Raises ``StoreError``."""
    sessions = await asked(cell.redis.zrange(cell.keys.active, 0, limit - 1))
    if not sessions:
        return []
    pipe = cell.redis.pipeline(transaction=False)
    for session in sessions:
        pipe.lindex(cell.keys.inbox(text_of(session)), 0)
    heads = [
        text_of(one) for one in await asked(pipe.execute(raise_on_error=False)) if isinstance(one, bytes)
    ]
    found = await fields_of(cell, map(cell.keys.turn, heads), *_FIELDS_OF_TURNS)
    return [row for turn, answer in zip(heads, found, strict=True) if (row := _row(turn, answer))]


def _row(turn: str, answer: list[bytes | None]) -> TurnRow | None:
    """Return a turn from its record; None if it no longer exists or is damaged."""
    session, status, queue, worker, attempt, step, queued, started, tenant = map(text_of, answer)
    if not session:
        return None
    return TurnRow(
        turn, session, status, queue, worker, number(attempt), number(step), number(queued), number(started),
        tenant or None,
    )  # fmt: skip
