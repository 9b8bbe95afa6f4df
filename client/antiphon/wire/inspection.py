"""What people look at: the sessions of a cell, its workers, its failed turns. And running one of those again."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from redis.exceptions import RedisError

from antiphon.input.ids import SessionId, TurnId
from antiphon.wire.cell import DEFAULT_QUEUE, Cell
from antiphon.wire.errors import store_error
from antiphon.wire.keys import rq_key

__all__ = [
    "FailedTurn",
    "SessionRow",
    "failed_turns",
    "place_of_turn",
    "session_places",
    "session_rows",
    "statuses",
    "turn_ids",
    "unserved",
    "work_left",
    "workers",
]

T = TypeVar("T")

_ROW = ("agent", "created", "updated", "closed", "fence")


class SessionRow(Struct):
    """One session in a list, as its cell has it: ``fields`` are those that were asked for, as they stand.

    ``held`` where a worker is at it; times are server ms.
    """

    session_id: str
    fields: dict[str, bytes]
    agent: bytes
    created: int
    updated: int
    closed: bool
    held: bool
    turns: int
    messages: int


class FailedTurn(Struct):
    """One failed turn, a job that was no turn, or a session set aside (``quarantined``). Times are server ms."""

    turn_id: str
    session_id: str
    queue: str
    code: str
    error: str
    ended: int


async def workers(cell: Cell, queue: str | None = None) -> dict[str, int]:
    """Workers that live, ours and RQ's own, by name with their process id; those of one queue, or all."""
    members = await _ask(
        cell.redis.smembers(rq_key("rq_workers_of", queue) if queue else rq_key("rq_workers"))
    )
    keys = sorted(map(_text, members))
    pipe = cell.redis.pipeline(transaction=False)
    for key in keys:
        pipe.hmget(key, "birth", "pid")
    found = await _ask(pipe.execute())
    stem = rq_key("rq_worker", "")
    return {
        key.removeprefix(stem): _number(pid)
        for key, (birth, pid) in zip(keys, found, strict=True)
        if birth is not None  # the sets still name a worker that was killed, its own record is gone
    }


async def unserved(cell: Cell, turn_id: TurnId) -> str:
    """What to tell whoever waits for a turn that no worker will take; nothing where one may."""
    status, queue = await _ask(cell.redis.hmget(cell.keys.turn(turn_id), "status", "queue"))
    if status != b"queued" or await workers(cell, _text(queue)):
        return ""
    named = "" if _text(queue) == DEFAULT_QUEUE else f" --queues {_text(queue)}"
    return (
        f"No worker serves the queue {_text(queue)} now: the turn waits. `antiphon worker{named}` starts one."
    )


async def place_of_turn(cell: Cell, session_id: SessionId, turn_id: TurnId) -> int:
    """The seq before the turn's first event that is kept; while it has none, that of the session's newest one."""
    pipe = cell.redis.pipeline(transaction=True)
    pipe.hmget(cell.keys.turn(turn_id), "queued_seq", "first_seq", "last_seq")
    pipe.hget(cell.keys.session(session_id), "seq")
    pipe.xrange(cell.keys.events(session_id), count=1)
    found, newest, oldest = await _ask(pipe.execute())
    queued, started, ended = map(_number, found)
    if queued and oldest and _number(oldest[0][0].partition(b"-")[0]) <= queued:
        return queued - 1
    begun = started or ended
    return begun - 1 if begun else _number(newest)


async def work_left(cell: Cell, worker: str, queues: Sequence[str]) -> bool:
    """Whether something stands in one of these queues, or this worker holds a turn; read in one moment."""
    pipe = cell.redis.pipeline(transaction=True)
    pipe.hlen(cell.keys.held(worker))
    pipe.hexists(cell.keys.held(worker), "")
    for queue in queues:
        pipe.llen(rq_key("rq_queue", queue))
    held, token, *lengths = await _ask(pipe.execute())
    return held - token > 0 or any(lengths)


async def session_places(cell: Cell, after: tuple[int, str] | None, count: int) -> list[tuple[int, str]]:
    """Where sessions stand: the end of their life and their id, the last one first. None are left where it is empty.

    Up to ``count`` of those after a place; a session whose life was prolonged since stands in front of it.
    """
    highest: int | str = "+inf" if after is None else after[0]
    skipped = 0
    while True:
        found = await _ask(
            cell.redis.zrevrangebyscore(
                cell.keys.sessions, highest, "-inf", start=skipped, num=count, withscores=True
            )
        )
        places = [(int(score), _text(name)) for name, score in found]
        places = [place for place in places if after is None or place < after]
        if places or len(found) < count:
            return places
        skipped += count  # all of them end at the same moment as the one that was seen last


async def session_rows(
    cell: Cell, places: Sequence[tuple[int, str]], fields: Sequence[str]
) -> list[SessionRow | None]:
    """These sessions with some of their fields, in one round trip; None where one has ended."""
    pipe = cell.redis.pipeline(transaction=False)
    for _, name in places:
        pipe.hmget(cell.keys.session(name), *_ROW, *fields)
        pipe.llen(cell.keys.inbox(name))
        pipe.llen(cell.keys.history(name))
    answers = await _ask(pipe.execute(raise_on_error=False))
    return [_row(name, fields, *answers[3 * n : 3 * n + 3]) for n, (_, name) in enumerate(places)]


async def turn_ids(cell: Cell, session_id: SessionId) -> list[TurnId]:
    """The ids of a session's last turns, the one submitted last first. Some may have expired."""
    found = await _ask(cell.redis.lrange(cell.keys.turns(session_id), 0, -1))
    return [TurnId(_text(turn)) for turn in reversed(found)]


async def statuses(cell: Cell, turns: Sequence[TurnId]) -> list[str]:
    """The status of each turn, '' of those that have expired."""
    pipe = cell.redis.pipeline(transaction=False)
    for turn in turns:
        pipe.hget(cell.keys.turn(turn), "status")
    return [_text(status) for status in await _ask(pipe.execute())]


async def failed_turns(cell: Cell, limit: int) -> list[FailedTurn]:
    """Failed turns of all queues, newest first, with the foreign jobs that failed and the sessions set aside."""
    stem = rq_key("rq_queue", "")
    queues = sorted(
        _text(key).removeprefix(stem) for key in await _ask(cell.redis.smembers(rq_key("rq_queues")))
    )
    found = [_quarantined(*pair) for pair in (await _ask(cell.redis.hgetall(cell.keys.quarantined))).items()]
    for queue in queues:
        ids = await _ask(cell.redis.zrange(rq_key("rq_failed", queue), 0, limit - 1, desc=True))
        pipe = cell.redis.pipeline(transaction=False)
        for job in ids:
            pipe.hmget(cell.keys.turn(_text(job)), "session", "error_code", "error", "ended_at")
            pipe.hmget(rq_key("rq_job", _text(job)), "exc_info")
        answers = await _ask(pipe.execute(raise_on_error=False))
        found += [_failed(job, queue, *answers[2 * n : 2 * n + 2]) for n, job in enumerate(ids)]
    return sorted(found, key=lambda turn: -turn.ended)[:limit]


def _row(name: str, names: Sequence[str], *answers: Any) -> SessionRow | None:
    """None also where the session's data are damaged: it is listed with the failed turns."""
    found, turns, messages = answers
    if any(isinstance(answer, Exception) for answer in answers):
        return None
    agent, created, updated, closed, fence, *values = (value or b"" for value in found)
    if not (created or updated):
        return None
    fields = dict(zip(names, values, strict=True))
    return SessionRow(
        name, fields, agent, _number(created or updated), _number(updated or created), bool(closed), bool(fence),
        turns, messages,
    )  # fmt: skip


def _failed(job: bytes, queue: str, turn: Any, rq_job: Any) -> FailedTurn:
    """A value that cannot be read is shown as nothing."""
    session, code, error, ended = map(_text, [None] * 4 if isinstance(turn, Exception) else turn)
    if not session:
        lines = _text(None if isinstance(rq_job, Exception) else rq_job[0]).strip().splitlines()
        return FailedTurn(_text(job), "", queue, "no_turn", lines[-1] if lines else "", 0)
    return FailedTurn(_text(job), session, queue, code, error, _number(ended))


def _quarantined(name: bytes, why: bytes) -> FailedTurn:
    since, _, reason = _text(why).partition(" ")
    return FailedTurn("-", _text(name), "", "quarantined", reason, _number(since))


def _text(value: bytes | None) -> str:
    """What one record holds must not hide all others."""
    return (value or b"").decode(errors="replace")


def _number(value: bytes | str | None) -> int:
    return int(value) if value and len(value) < 20 and value.isdigit() else 0


async def _ask(answer: Awaitable[T] | Any) -> Any:
    try:
        return await answer
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
