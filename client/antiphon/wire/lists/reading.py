"""Reads many keys of a cell at once: fields of hashes, the names in a set, and pages of sorted sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antiphon.errors import CorruptRecord
from antiphon.text import text_of, whole
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, store_error

Place = tuple[int, str]
"""The position of a member in a sorted set: its score and its name."""


async def fields_of(cell: Cell, keys: Iterable[str], *names: str) -> list[list[bytes | None]]:
    """Read these fields of several hashes in one round trip; a damaged hash has none. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    for key in keys:
        pipe.hmget(key, *names)
    answers: list[Any] = await asked(pipe.execute(raise_on_error=False))
    return [[None] * len(names) if is_damaged(answer) else answer for answer in answers]


def is_damaged(answer: Any) -> bool:
    """Return whether a command of a pipeline found a key of another type. Raises any other error that it returned."""
    if isinstance(answer, Exception) and not isinstance(error := store_error(answer), CorruptRecord):
        raise error
    return isinstance(answer, Exception)


async def queues_of(cell: Cell) -> list[str]:
    """Return the queues of a cell."""
    return _names(cell, "rq_queue", await asked(cell.redis.smembers(cell.keys.of_rq("rq_queues"))))


async def workers_of(cell: Cell, queue: str | None = None) -> list[str]:
    """Return the workers in RQ's lists, of a queue or of all; a killed worker may still be listed."""
    listed = cell.keys.of_rq("rq_workers_of", queue) if queue else cell.keys.of_rq("rq_workers")
    return _names(cell, "rq_worker", await asked(cell.redis.smembers(listed)))


def _names(cell: Cell, kind: str, keys: Iterable[bytes]) -> list[str]:
    return sorted(text_of(key).removeprefix(cell.keys.of_rq(kind, "")) for key in keys)


async def places(
    cell: Cell, key: str, after: Place | None, count: int, *, last_first: bool = False,
    low: float | str = "-inf", high: float | str = "+inf",
) -> list[Place]:  # fmt: skip
    """Return up to ``count`` places of a sorted set after a place; none are left if the list is empty.

    A member that moved in the meantime may be before the given place.
    """
    read = cell.redis.zrevrangebyscore if last_first else cell.redis.zrangebyscore
    if after is not None:
        low, high = (low, after[0]) if last_first else (after[0], high)
    skipped = 0
    while True:
        bounds = (high, low) if last_first else (low, high)
        found = await asked(read(key, *bounds, start=skipped, num=count, withscores=True))
        page = [(whole(score), text_of(name)) for name, score in found]
        page = [one for one in page if after is None or (one < after if last_first else one > after)]
        if page or len(found) < count:
            return page
        skipped += count  # all of them have the score of the given place
