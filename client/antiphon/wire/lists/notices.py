"""The completion events of a cell: a run ended, or a turn was suspended; written only while something subscribes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from antiphon.errors import AgentError, CorruptRecord, SealBroken, TurnDeleted
from antiphon.input.ids import SessionId, TurnId
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.erased import erased
from antiphon.wire.errors import asked, store_error
from antiphon.wire.lists.reading import fields_of
from antiphon.wire.records import TurnRecord, turn_record

BEGAN = "began"
"""The kind of a log's first entry, which is not a completion event."""

KEEP_SECONDS = 7 * 24 * 3600.0
"""How long a log is kept that readers with cursors follow."""

OLDEST = "-"
"""In place of an entry: the beginning of the kept log."""


class Notice(NamedTuple):
    """One entry: what happened to which turn, and the ``seq`` of its session's event about that."""

    id: str
    kind: str
    session_id: SessionId
    turn_id: TurnId
    seq: int
    tenant: str | None


async def follow(cell: Cell, keep_ms: int) -> str:
    """Subscribe to this cell's notices for a time, and return the id of the newest entry. Raises ``StoreError``."""
    [newest] = await cell.run_for(b"OK", "notices/follow", keep_ms)
    return text_of(newest)


async def read_notices(cell: Cell, after: str, count: int) -> list[Notice] | None:
    """Return up to ``count`` completion events after this entry, or None if the entry is no longer kept."""
    raw: Any = await asked(cell.redis.xrange(cell.keys.notices, after, "+", count=count + 1))
    if after != OLDEST:
        if not raw or raw[0][0] != after.encode():
            return None
        raw = raw[1:]
    return [_notice(text_of(entry_id), fields) for entry_id, fields in raw[:count]]


async def noticed_events(cell: Cell, notices: Sequence[Notice]) -> list[bytes | None]:
    """Read the sessions' events that these notices report, in one round trip; None for missing or damaged ones.

    Raises ``KeyMissing``.
    """
    pipe = cell.redis.pipeline(transaction=False)
    for one in notices:
        pipe.xrange(cell.keys.events(one.session_id), f"{one.seq}-0", f"{one.seq}-0")
    answers = await asked(pipe.execute(raise_on_error=False))
    return [_event(cell, one, raw) for one, raw in zip(notices, answers, strict=True)]


async def agents_of(cell: Cell, notices: Sequence[Notice]) -> list[bytes]:
    """Read the agents of turns as JSON: the turn's own, or its session's; empty if neither is left.

    Raises ``KeyMissing``.
    """
    keys = [
        key for one in notices for key in (cell.keys.turn(one.turn_id), cell.keys.session(one.session_id))
    ]
    found = [agent or b"" for (agent,) in await fields_of(cell, keys, "agent")]
    return [
        _agent(cell, one.session_id, own, of_session)
        for one, own, of_session in zip(notices, found[::2], found[1::2], strict=True)
    ]


async def tenants_of(cell: Cell, turns: Sequence[TurnId]) -> list[str | None]:
    """Read the tenant of each turn; None without one, or if the turn has expired. Raises ``StoreError``."""
    return [
        text_of(tenant) or None for (tenant,) in await fields_of(cell, map(cell.keys.turn, turns), "tenant")
    ]


async def ends_of(cell: Cell, turns: Sequence[TurnId]) -> list[tuple[str, TurnId]]:
    """Read the status of each turn ('' if it has expired), and which turn has taken its input ('' for most)."""
    found = await fields_of(cell, map(cell.keys.turn, turns), "status", "steered_into")
    return [(text_of(status), TurnId(text_of(into))) for status, into in found]


async def turn_records(cell: Cell, turns: Sequence[TurnId]) -> list[TurnRecord | AgentError | None]:
    """Read these turns in one round trip. A damaged or deleted turn becomes its error, an expired one None."""
    pipe = cell.redis.pipeline(transaction=False)
    for turn in turns:
        pipe.hgetall(cell.keys.turn(turn))
    pipe.exists(cell.keys.erasing)
    *answers, erasing = await asked(pipe.execute(raise_on_error=False))
    found: list[TurnRecord | AgentError | None] = []
    for turn, raw in zip(turns, answers, strict=True):
        try:
            found.append(store_error(raw) if isinstance(raw, Exception) else _whole(cell, turn, raw))
        except (CorruptRecord, TurnDeleted) as exc:
            found.append(exc)
    return await _without_erased(cell, found) if erasing else found


async def _without_erased(
    cell: Cell, found: list[TurnRecord | AgentError | None]
) -> list[TurnRecord | AgentError | None]:
    records = [one for one in found if isinstance(one, TurnRecord)]
    errors = dict(
        zip((one.turn_id for one in records), await erased(cell.redis, cell.keys, records), strict=True)
    )
    return [errors[one.turn_id] or one if isinstance(one, TurnRecord) else one for one in found]


def _notice(entry_id: str, fields: dict[bytes, bytes]) -> Notice:
    def text(name: bytes) -> str:
        return text_of(fields.get(name))

    seq = text(b"seq")
    return Notice(
        entry_id, text(b"kind"), SessionId(text(b"session")), TurnId(text(b"turn")),
        int(seq) if seq.isdigit() else 0, text(b"tenant") or None,
    )  # fmt: skip


def _whole(cell: Cell, turn: TurnId, raw: dict[bytes, bytes]) -> TurnRecord | None:
    return turn_record(turn, raw, cell.seal) if raw else None


def _event(cell: Cell, notice: Notice, raw: Any) -> bytes | None:
    found = None if isinstance(raw, Exception) or not raw else cast("bytes | None", raw[0][1].get(b"e"))
    with suppress(SealBroken):
        return found and cell.seal.open(notice.session_id, "event", found)


def _agent(cell: Cell, session: str, own: bytes, of_session: bytes) -> bytes:
    with suppress(SealBroken):
        return cell.seal.open(session, "agent", own) or cell.seal.open(session, "agent", of_session)
    return b""
