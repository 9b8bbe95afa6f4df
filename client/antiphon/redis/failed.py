"""Lists failed turns with their input and error, and requeues one, or all that a filter selects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
from msgspec import Meta, Struct, field

from antiphon.errors import AgentError, CorruptRecord, UsageError
from antiphon.input.ids import TurnId, check_queue, tenant_id, turn_id
from antiphon.input.options import Option, declared
from antiphon.input.values import is_a
from antiphon.redis.connections import Connections
from antiphon.redis.fields import decode_field
from antiphon.redis.listing import merged
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.turn_records import runs_of, turn_info
from antiphon.session.runtime import agent_name
from antiphon.session.turn_info import TurnInfo, TurnRun
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.lists.inspection import agents_of_sessions
from antiphon.wire.lists.notices import turn_records
from antiphon.wire.lists.reading import Place, places, queues_of
from antiphon.wire.records import TurnRecord
from antiphon.wire.scripts import KEEP_TURN_SECONDS

PAGE = 100
MOST_TOGETHER = 1000
"""The most turns that are sorted together, of those that failed in the same second."""
WINDOW = 200  # turns that are requeued in one pipeline


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}= must be text, not {value!r}.")
    return value


def in_ms(name: str, value: object) -> int:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return int(value.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise UsageError(f"{name}= must be ms since 1970 or a datetime with a time zone, not {value!r}.")


_Time: TypeAlias = Annotated[int, Meta(ge=0)]


class FailedFilter(TypedDict, total=False):
    """The keywords that select failed turns. Times are ms since 1970, or datetimes with a time zone."""

    tenant: Annotated[str | None, Option(doc="only turns of this tenant", check=tenant_id, json=str | None)]
    agent: Annotated[
        str | None, Option(doc="only turns of this agent", check=partial(_text, "agent"), json=str | None)
    ]
    code: Annotated[
        str | None,
        Option(
            doc="only turns that failed with this code, such as provider_rejected",
            check=partial(_text, "code"),
            json=str | None,
        ),
    ]
    queue: Annotated[str | None, Option(doc="only turns of this queue", check=check_queue, json=str | None)]
    since: Annotated[
        int | datetime | None,
        Option(
            doc="only turns that failed at this time or later",
            check=partial(in_ms, "since"),
            json=_Time | None,
        ),
    ]
    until: Annotated[
        int | datetime | None,
        Option(
            doc="only turns that failed before this time", check=partial(in_ms, "until"), json=_Time | None
        ),
    ]


FILTERS = declared(FailedFilter)


class FailedTurn(TurnInfo, omit_defaults=True):
    """A failed turn: the fields of ``TurnInfo``, its queue, and all its runs with their errors.

    ``agent`` is the name of the turn's agent, or of its session's.
    """

    queue: str = ""
    runs: list[TurnRun] = field(default_factory=list)


class _Which(Struct):
    """A checked filter."""

    tenant: str | None
    agent: str | None
    code: str | None
    queue: str | None
    since: int
    until: int | None

    def selects(self, turn: FailedTurn) -> bool:
        return (
            turn.status == "failed"
            and self.tenant in (None, turn.tenant)
            and self.agent in (None, turn.agent)
            and self.code in (None, turn.code)
            and self.since <= (turn.ended or 0)
            and (self.until is None or (turn.ended or 0) < self.until)
        )


def list_failed(connections: Connections, given: FailedFilter) -> AsyncGenerator[FailedTurn, None]:
    """Iterate over the failed turns of all cells, latest first. Raises ``UsageError`` at once."""
    return _merged(connections, _which(given))


async def requeue_many(
    connections: Connections, turns: Iterable[str | AsyncTurn] | None, given: FailedFilter
) -> list[AsyncTurn | AgentError]:
    """Requeue these turns, or all that the filter selects. See ``AsyncClient.requeue_many``."""
    if turns is not None and (is_a(turns, str | AsyncTurn) or given):
        raise UsageError(
            "requeue_many takes a list of turns, or a filter such as code= or since=, but not both."
        )
    if turns is None and not given:
        raise UsageError(
            "requeue_many needs turns, or a filter such as code= or since=; since=0 is all of them."
        )
    told: list[AsyncTurn | AgentError] = []
    if turns is not None:
        known = iter([one.id if isinstance(one, AsyncTurn) else turn_id(one) for one in turns])
        while some := list(islice(known, WINDOW)):
            told += await _requeued(connections, some)
        return told
    some: list[TurnId] = []
    async for one in list_failed(connections, given):
        some.append(TurnId(one.turn_id))
        if len(some) == WINDOW:
            told += await _requeued(connections, some)
            some = []
    return told + await _requeued(connections, some)


async def _requeued(connections: Connections, turns: Sequence[TurnId]) -> list[AsyncTurn | AgentError]:
    async def one(turn: TurnId) -> AsyncTurn:
        cell = connections.cell_of_turn(turn)
        await cell.requeue(turn)
        return AsyncTurn(connections, turn, (await cell.turn(turn)).session_id)

    told: list[AsyncTurn | AgentError] = []
    for answer in await asyncio.gather(*map(one, turns), return_exceptions=True):
        if not isinstance(answer, AsyncTurn | AgentError):
            raise answer
        told.append(answer)
    return told


async def _merged(connections: Connections, which: _Which) -> AsyncGenerator[FailedTurn, None]:
    queues = [
        (cell, queue)
        for cell in connections.cells
        for queue in ([which.queue] if which.queue else await queues_of(cell))
    ]
    streams = [_of_queue(cell, queue, which) for cell, queue in queues]
    async for turn in merged(streams, lambda turn: turn.ended or 0, last=True):
        yield turn


async def _of_queue(cell: Cell, queue: str, which: _Which) -> AsyncGenerator[FailedTurn, None]:
    """Yield the failed turns of a queue. Its list orders them by seconds; those of one second are sorted here."""
    after: Place | None = None
    second, together = 0, list[FailedTurn]()
    low = which.since // 1000 + KEEP_TURN_SECONDS - 1  # the list is ordered by when a turn leaves it
    high = "+inf" if which.until is None else which.until // 1000 + KEEP_TURN_SECONDS + 1
    key = cell.keys.of_rq("rq_failed", queue)
    while found := await places(cell, key, after, PAGE, last_first=True, low=low, high=high):
        seconds = {job: at for at, job in found}
        for turn in await _told(cell, list(seconds)):
            if seconds[turn.turn_id] != second or len(together) == MOST_TOGETHER:
                for one in _last_first(together):
                    yield one
                second, together = seconds[turn.turn_id], []
            if which.selects(turn):
                together.append(turn)
        after = found[-1]
    for one in _last_first(together):
        yield one


def _last_first(turns: list[FailedTurn]) -> list[FailedTurn]:
    return sorted(turns, key=lambda turn: turn.ended or 0, reverse=True)


async def _told(cell: Cell, jobs: Sequence[str]) -> list[FailedTurn]:
    """Return the turns among these jobs, without damaged ones."""
    found: list[FailedTurn] = []
    for record in await turn_records(cell, [TurnId(job) for job in jobs]):
        try:
            if isinstance(record, TurnRecord):
                found.append(_failed(record))
        except CorruptRecord:
            continue
    unnamed = [one for one in found if one.agent is None]
    for one, agent in zip(
        unnamed, await agents_of_sessions(cell, [one.session_id for one in unnamed]), strict=True
    ):
        try:
            one.agent = agent_name(decode_field("agent", agent))
        except CorruptRecord:
            continue
    return found


def _failed(record: TurnRecord) -> FailedTurn:
    fields = msgspec.structs.asdict(turn_info(record))
    queue = text_of(record.fields.get("queue"))
    return FailedTurn(**fields, queue=queue, runs=runs_of(record))


def _which(given: FailedFilter) -> _Which:
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in FILTERS:
            raise TypeError(f"failed turns cannot be selected by {name!r}: use {', '.join(FILTERS)}.")
        checked[name] = None if value is None else FILTERS[name].check(value)
    values: dict[str, Any] = {**dict.fromkeys(FILTERS), **checked, "since": checked.get("since") or 0}
    return _Which(**values)
