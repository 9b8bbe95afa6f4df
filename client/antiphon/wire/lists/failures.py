"""Reads the failed turns of a cell, page by page, the last one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.encryption.contents import open_field
from antiphon.errors import CorruptRecord
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.keys import rq_key
from antiphon.wire.scripts import KEEP_TURN_SECONDS

__all__ = ["Place", "agents_of_sessions", "failed_places", "queues_of"]

Place = tuple[int, str]
"""Where a failed turn stands in the list of its queue: when it leaves the list, in seconds, and its id."""


async def queues_of(cell: Cell) -> list[str]:
    """Return the queues of a cell."""
    stem = rq_key("rq_queue", "")
    names: Any = await asked(cell.redis.smembers(rq_key("rq_queues")))
    return sorted(name.decode(errors="replace").removeprefix(stem) for name in names)


async def failed_places(
    cell: Cell, queue: str, after: Place | None, since: int, until: int | None, count: int
) -> list[Place]:
    """Return up to ``count`` places behind a place, of turns that failed between two times (ms, to the second)."""
    lowest = since // 1000 + KEEP_TURN_SECONDS - 1
    highest: int | str = "+inf" if until is None else until // 1000 + KEEP_TURN_SECONDS + 1
    if after is not None:
        highest = after[0]
    skipped = 0
    while True:
        found: Any = await asked(
            cell.redis.zrevrangebyscore(
                rq_key("rq_failed", queue), highest, lowest, start=skipped, num=count, withscores=True
            )
        )
        places = [(int(score), job.decode(errors="replace")) for job, score in found]
        places = [place for place in places if after is None or place < after]
        if places or len(found) < count:
            return places
        skipped += count


async def agents_of_sessions(cell: Cell, sessions: Sequence[str]) -> list[bytes]:
    """Read the agents of sessions in JSON; empty for those that cannot be opened."""
    pipe = cell.redis.pipeline(transaction=False)
    for session in sessions:
        pipe.hget(cell.keys.session(session), "agent")
    answers: Any = await asked(pipe.execute(raise_on_error=False))
    stored = [b"" if isinstance(raw, Exception) else raw or b"" for raw in answers]
    return [_opened(cell, session, raw) for session, raw in zip(sessions, stored, strict=True)]


def _opened(cell: Cell, session: str, agent: bytes) -> bytes:
    try:
        return open_field(cell.seal, session, "agent", agent)
    except CorruptRecord:
        return b""
