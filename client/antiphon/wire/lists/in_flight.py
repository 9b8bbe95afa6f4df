"""Reads of the turns that a cell has at work now, and of how many wait for what."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

__all__ = ["Counts", "TurnRow", "counts", "turn_rows"]

_FIELDS = ("session", "status", "queue", "worker", "attempt", "step", "queued_at", "started_at", "tenant")


class TurnRow(Struct):
    """The current turn of a session. ``queued`` and ``started`` are in ms since 1970; ``started`` is 0 before it began.

    ``worker`` is the one that had it last, and ``step`` the number of its current model call.
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
    """How many sessions have turns to run, and how many turns wait for decisions or their time, and are set aside."""

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


async def turn_rows(cell: Cell, limit: int) -> list[TurnRow]:
    """Read the current turns of up to ``limit`` sessions of a cell, in three round trips. Raises ``StoreError``."""
    sessions = await asked(cell.redis.zrange(cell.keys.active, 0, limit - 1))
    if not sessions:
        return []
    pipe = cell.redis.pipeline(transaction=False)
    for session in sessions:
        pipe.lindex(cell.keys.inbox(_text(session)), 0)
    heads = [_text(one) for one in await asked(pipe.execute(raise_on_error=False)) if isinstance(one, bytes)]
    for turn in heads:
        pipe.hmget(cell.keys.turn(turn), *_FIELDS)
    found: list[Any] = await asked(pipe.execute(raise_on_error=False)) if heads else []
    return [row for turn, answer in zip(heads, found, strict=True) if (row := _row(turn, answer))]


def _row(turn: str, answer: Any) -> TurnRow | None:
    """A turn as its record tells; None for one that is gone or damaged."""
    if isinstance(answer, Exception) or not answer[0]:
        return None
    session, status, queue, worker, attempt, step, queued, started, tenant = map(_text, answer)
    return TurnRow(
        turn, session, status, queue, worker, _number(attempt), _number(step), _number(queued), _number(started),
        tenant or None,
    )  # fmt: skip


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _number(value: str) -> int:
    return int(value) if value.isdigit() and len(value) < 20 else 0
