"""What people look at: the sessions of a cell, its workers, its failed turns. And running one of those again."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from msgspec import Struct
from redis.exceptions import RedisError

from antiphon.errors import UsageError
from antiphon.ids import TurnId
from antiphon.wire.cell import DEFAULT_QUEUE, Cell
from antiphon.wire.failures import store_error
from antiphon.wire.keys import rq_key

__all__ = ["FailedTurn", "SessionLine", "failed_turns", "requeue", "sessions", "unserved", "workers"]

T = TypeVar("T")


class SessionLine(Struct):
    """One session in a list. ``status`` is that of the head of its inbox, ``idle`` where that is empty."""

    session_id: str
    status: str
    inbox: int
    messages: int
    updated: int


class FailedTurn(Struct):
    """One failed turn, or a job that was no turn. Times are server ms."""

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
    keys = sorted(member.decode() for member in members)
    pipe = cell.redis.pipeline(transaction=False)
    for key in keys:
        pipe.hmget(key, "birth", "pid")
    found = await _ask(pipe.execute())
    stem = rq_key("rq_worker", "")
    return {
        key.removeprefix(stem): int(pid or 0)
        for key, (birth, pid) in zip(keys, found, strict=True)
        if birth is not None  # the sets still name a worker that was killed, its own record is gone
    }


async def unserved(cell: Cell, turn_id: TurnId) -> str:
    """What to tell whoever waits for a turn that no worker will take; nothing where one may."""
    status, queue = await _ask(cell.redis.hmget(cell.keys.turn(turn_id), "status", "queue"))
    if status != b"queued" or await workers(cell, queue.decode()):
        return ""
    named = "" if queue.decode() == DEFAULT_QUEUE else f" --queues {queue.decode()}"
    return f"No worker serves the queue {queue.decode()} now: the turn waits. `antiphon worker{named}` starts one."


async def sessions(cell: Cell, limit: int) -> list[SessionLine]:
    """The sessions used last, newest first."""
    pipe = cell.redis.pipeline(transaction=False)
    pipe.zrange(cell.keys.active, 0, limit - 1)
    pipe.zrange(cell.keys.sessions, 0, limit - 1, desc=True)
    active, known = await _ask(pipe.execute())
    ids = [name.decode() for name in dict.fromkeys([*active, *known])]
    pipe = cell.redis.pipeline(transaction=False)
    for name in ids:
        pipe.hget(cell.keys.session(name), "updated")
        pipe.lrange(cell.keys.inbox(name), 0, -1)
        pipe.llen(cell.keys.history(name))
    answers = await _ask(pipe.execute())
    rows = [(name, *answers[3 * n : 3 * n + 3]) for n, name in enumerate(ids)]
    heads = await _statuses(cell, [inbox[0].decode() for _, _, inbox, _ in rows if inbox])
    lines = [
        SessionLine(
            name, heads.get(inbox[0].decode(), "") if inbox else "idle", len(inbox), messages, int(updated)
        )
        for name, updated, inbox, messages in rows
        if updated is not None
    ]
    return sorted(lines, key=lambda line: -line.updated)[:limit]


async def failed_turns(cell: Cell, limit: int) -> list[FailedTurn]:
    """Failed turns of all queues, newest first, with the foreign jobs that failed."""
    stem = rq_key("rq_queue", "")
    queues = sorted(
        key.decode().removeprefix(stem) for key in await _ask(cell.redis.smembers(rq_key("rq_queues")))
    )
    found: list[FailedTurn] = []
    for queue in queues:
        ids = await _ask(cell.redis.zrange(rq_key("rq_failed", queue), 0, limit - 1, desc=True))
        pipe = cell.redis.pipeline(transaction=False)
        for job in ids:
            pipe.hmget(cell.keys.turn(job.decode()), "session", "error_code", "error", "ended_at")
            pipe.hmget(rq_key("rq_job", job.decode()), "exc_info")
        answers = await _ask(pipe.execute())
        found += [_failed(job, queue, *answers[2 * n : 2 * n + 2]) for n, job in enumerate(ids)]
    return sorted(found, key=lambda turn: -turn.ended)[:limit]


async def requeue(cell: Cell, turn_id: TurnId) -> None:
    """Offer a failed turn to the workers again, as ``rq requeue`` does: the one that claims it begins a new run.

    Raises ``UsageError`` where the turn has not failed, ``TurnNotFound``.
    """
    record = await cell.turn(turn_id)
    if record.status != "failed":
        raise UsageError(f"Turn {turn_id} is {record.status}: only failed turns can be requeued.")
    queue = record.fields["queue"].decode()
    pipe = cell.redis.pipeline(transaction=True)
    pipe.zrem(rq_key("rq_failed", queue), turn_id)
    pipe.hset(rq_key("rq_job", turn_id), "status", "queued")
    pipe.sadd(rq_key("rq_queues"), rq_key("rq_queue", queue))
    pipe.rpush(rq_key("rq_queue", queue), turn_id)
    await _ask(pipe.execute())


async def _statuses(cell: Cell, turns: list[str]) -> dict[str, str]:
    pipe = cell.redis.pipeline(transaction=False)
    for turn in turns:
        pipe.hget(cell.keys.turn(turn), "status")
    answers = await _ask(pipe.execute())
    return {turn: (status or b"").decode() for turn, status in zip(turns, answers, strict=True)}


def _failed(job: bytes, queue: str, turn: list[bytes | None], rq_job: list[bytes | None]) -> FailedTurn:
    session, code, error, ended = (value.decode() if value else "" for value in turn)
    if not session:
        lines = (rq_job[0] or b"").decode(errors="replace").strip().splitlines()
        return FailedTurn(job.decode(), "", queue, "no_turn", lines[-1] if lines else "", 0)
    return FailedTurn(job.decode(), session, queue, code, error, int(ended or 0))


async def _ask(answer: Awaitable[T] | Any) -> Any:
    try:
        return await answer
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
