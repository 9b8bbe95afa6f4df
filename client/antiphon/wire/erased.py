"""Finds ended turns of deleted sessions whose content a worker has yet to erase: readers do not show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from antiphon.errors import TurnDeleted
from antiphon.text import number
from antiphon.wire.errors import asked
from antiphon.wire.keys import Keys
from antiphon.wire.records import TurnRecord


async def erased(redis: Redis, keys: Keys, records: Sequence[TurnRecord]) -> list[TurnDeleted | None]:
    """Return the error of each turn that was deleted with its session, by the rule of the scripts' ``was_deleted``.

    The deletion marks are removed after the search that erases the turns, so both are read at one moment.
    """
    pipe = redis.pipeline(transaction=True)
    for one in records:
        tenant = one.tenant or ""
        pipe.hmget(keys.erasing, one.session_id, f"{one.session_id}\x1f{tenant}")
        pipe.hget(keys.turn(one.turn_id), "deleted")
        pipe.lpos(keys.turns(one.session_id), one.turn_id)
    found: list[Any] = await asked(pipe.execute())
    return [
        _error(one) if deleted or (_before(one, marks) and listed is None) else None
        for one, marks, deleted, listed in zip(records, found[::3], found[1::3], found[2::3], strict=True)
    ]


def _before(record: TurnRecord, marks: list[bytes | None]) -> bool:
    return number(record.fields.get("created")) < max(map(number, marks))


def _error(record: TurnRecord) -> TurnDeleted:
    gone = TurnDeleted(session_id=record.session_id, turn_id=record.turn_id)
    gone.tenant = record.tenant
    return gone
