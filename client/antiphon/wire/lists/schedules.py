"""The schedules of a cell: what they submit, and when they are due next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from antiphon.errors import LimitReached
from antiphon.input.limits import LIMITS
from antiphon.text import text_of, whole
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected

PAUSED = "inf"
NEVER = 9_000_000_000_000_000
"""The due time of a schedule that only events start."""


class StoredSchedule(NamedTuple):
    """A schedule as Redis has it, with its plan and its error encrypted. ``due`` is in ms, None while it is paused."""

    id: str
    due: int | None
    fields: dict[str, bytes]

    @property
    def session_id(self) -> str:
        return self.id.partition(":")[2]

    def plan(self, cell: Cell) -> bytes:
        """Return what it submits, as JSON. Raises ``KeyError``, ``KeyMissing``, ``SealBroken``."""
        return cell.seal.open(self.session_id, "plan", self.fields["plan"])

    def error(self, cell: Cell) -> str:
        """Return why its last turn was refused, or ''. Raises ``KeyMissing`` and ``SealBroken``."""
        return text_of(cell.seal.open(self.session_id, "reason", self.fields.get("error", b"")))


async def write_schedule(
    cell: Cell, session: str, name: str, due: str, fields: Mapping[str, str], plan: bytes = b""
) -> bool:
    """Write a schedule, or change when it is due ('' removes it). Returns False if it must exist and does not.

    Raises ``LimitReached`` if its tenant has too many.
    """
    tenant, most = fields.get("tenant", ""), LIMITS.tenant_schedules
    flat: list[str | bytes] = [value for pair in fields.items() for value in pair]
    flat += ["plan", cell.seal.seal(session, "plan", plan)] if plan else []
    match await cell.run("schedules/write", session, name, due, tenant, most, *flat):
        case [b"OK"]:
            return True
        case [b"NOT_FOUND"]:
            return False
        case [b"FULL", _]:
            raise LimitReached(
                f"The tenant {tenant!r} has {most} schedules already: delete some.", limit="tenant_schedules",
                session_id=session,
            )  # fmt: skip
        case answer:
            raise unexpected("schedules/write", answer)


async def advance(cell: Cell, schedule: str, due: int, next_due: int, turn: str, error: str) -> bool:
    """Advance a schedule to its next due time. Returns False if it was no longer due at ``due``."""
    sealed = cell.seal.seal(schedule.partition(":")[2], "reason", error.encode())
    match await cell.run("schedules/advance", schedule, due, next_due, turn, sealed):
        case [b"OK"]:
            return True
        case [b"MOVED"]:
            return False
        case answer:
            raise unexpected("schedules/advance", answer)


async def due_schedules(cell: Cell, now: int, count: int, skip: int = 0) -> list[str]:
    """Return the ids of due schedules, the earliest first, after the first ``skip`` ones."""
    found = await asked(cell.redis.zrangebyscore(cell.keys.schedules, "-inf", now, skip, count))
    return [text_of(one) for one in found]


async def schedule_ids(cell: Cell, session: str | None = None) -> list[str]:
    """Return the ids of all schedules, the next one first and paused ones last; or those of a session."""
    if session is None:
        return [text_of(one) for one in await asked(cell.redis.zrange(cell.keys.schedules, 0, -1))]
    names = await asked(cell.redis.smembers(cell.keys.scheduled(session)))
    return sorted(f"{text_of(name)}:{session}" for name in names)


async def stored(cell: Cell, schedules: Sequence[str]) -> list[StoredSchedule]:
    """Read these schedules; those that are gone are left out, and damaged ones have no fields."""
    pipe = cell.redis.pipeline(transaction=True)
    for one in schedules:
        pipe.zscore(cell.keys.schedules, one)
        pipe.hgetall(cell.keys.schedule(one))
    answers: list[Any] = await asked(pipe.execute(raise_on_error=False))
    return [
        StoredSchedule(
            one,
            None if score == float("inf") else whole(max(score, 0)),
            {text_of(name): value for name, value in _fields(raw).items()},
        )
        for one, score, raw in zip(schedules, answers[::2], answers[1::2], strict=True)
        if isinstance(score, float) and raw
    ]


async def schedules_of_event(cell: Cell, name: str, tenant: str) -> list[StoredSchedule]:
    """Return the schedules of this tenant ('': of none) that an event of this name starts, except paused ones."""
    [ids] = await cell.run_for(b"FOUND", "schedules/of_event", name, tenant, NEVER)
    return await stored(cell, [text_of(one) for one in ids]) if ids else []


def _fields(raw: Mapping[bytes, bytes] | Exception) -> Mapping[bytes, bytes]:
    return {} if isinstance(raw, Exception) else raw
