"""A deployment as its operators see it: queues, workers and tenant limits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from antiphon.errors import AgentError, StoreError, StoreUnavailable, UsageError
from antiphon.input.values import is_a
from antiphon.model.feedback import Figures
from antiphon.redis.cells import open_cells
from antiphon.redis.connections import Connections
from antiphon.text import text_of
from antiphon.wire.budgets import NamedBudget, named_budgets
from antiphon.wire.cell import Cell
from antiphon.wire.connection.names import node_of
from antiphon.wire.errors import asked
from antiphon.wire.feedback import figures_of_workers
from antiphon.wire.lists.workers import (
    Counts,
    QueueRow,
    SessionCounts,
    TurnRow,
    WorkerRow,
    counts,
    own_workers,
    queue_rows,
    session_counts,
    turn_rows,
    worker_rows,
)
from antiphon.wire.preflight import memory_of, write_refusal

READ_SECONDS, CHECK_SECONDS = 5.0, 2.0
"""Time limits for reading the state of a cell, and for checking whether it takes turns."""


class QueueState(Struct):
    """A queue across all cells. The counts are those of ``QueueRow``; ``workers`` serve it in any of the cells.

    ``oldest_seconds`` is how long the oldest turn that may be claimed has waited, by the clock of its Redis, or None.
    """

    name: str
    queued: int = 0
    running: int = 0
    waiting: int = 0
    delayed: int = 0
    failed: int = 0
    workers: int = 0
    oldest_seconds: float | None = None

    def add(self, row: QueueRow) -> None:
        """Add the counts of this queue in one cell."""
        for name in ("queued", "running", "waiting", "delayed", "failed", "workers"):
            setattr(self, name, getattr(self, name) + getattr(row, name))
        if row.oldest_seconds is not None:
            self.oldest_seconds = max(self.oldest_seconds or 0.0, row.oldest_seconds)


async def list_queues(connections: Connections) -> list[QueueState]:
    """Read the queues of all cells, by name. Raises ``StoreError``."""
    found: dict[str, QueueState] = {}
    for cell in connections.cells:
        for row in await queue_rows(cell, await worker_rows(cell)):
            found.setdefault(row.name, QueueState(row.name)).add(row)
    return [found[name] for name in sorted(found)]


async def list_workers(connections: Connections) -> list[WorkerRow]:
    """Read the live workers of all cells. On a cluster, a worker process serves several. Raises ``StoreError``."""
    found: dict[str, WorkerRow] = {}
    for cell in connections.cells:
        for row in await worker_rows(cell):
            if row.name in found:
                found[row.name].add(row)
            else:
                found[row.name] = row
    return [*found.values()]


async def count_sessions(connections: Connections) -> SessionCounts:
    """Count the sessions of all cells, and their turns by state, without reading any. Raises ``StoreError``."""
    found = [await session_counts(cell) for cell in connections.cells]
    return SessionCounts(
        sum(one.sessions or 0 for one in found),
        running=sum(one.running for one in found),
        suspended=sum(one.suspended for one in found),
        failed=sum(one.failed for one in found),
    )


class Overview(Struct):
    """The activity of a deployment at one moment. ``at`` is in ms since 1970, by the clock of the first Redis.

    ``turns`` are the current turns of a limited number of sessions in each cell, and ``counts`` those of all.
    """

    at: int
    queues: list[QueueState]
    workers: list[WorkerRow]
    turns: list[TurnRow]
    counts: Counts = field(default_factory=Counts)


async def overview(connections: Connections, limit: int = 200) -> Overview:
    """Read queues, workers and current turns of all cells. Raises ``StoreError``."""
    total, turns = Counts(), list[TurnRow]()
    for cell in connections.cells:
        turns += await turn_rows(cell, limit)
        found = await counts(cell)
        for name in Counts.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(found, name))
    at = await next(iter(connections.cells)).server_ms()
    return Overview(at, await list_queues(connections), await list_workers(connections), turns, total)


class CellState(Struct):
    """A cell as monitoring sees it. ``up`` is whether its Redis answers, ``writable`` whether it takes turns.

    ``node`` is the address of its Redis, or on a cluster of the node with its slot, and ``sessions`` the number of
    sessions that it keeps. ``memory`` is the memory that Redis uses and its ``maxmemory`` (0 means no limit), in
    bytes; None if its user may not read them. ``rq_prefix`` is the first part of RQ's keys. ``revisions`` are the
    figures of the revisions that its workers have, by ``agent@revision``. ``lag`` is the delay, in seconds, with
    which the slowest worker published the events of the last second. ``budgets`` are those of tenants and agents.
    """

    name: str
    node: str = ""
    up: bool = False
    writable: bool = False
    memory: tuple[int, int] | None = None
    counts: Counts | None = None
    queues: list[QueueRow] = field(default_factory=list)
    workers: list[WorkerRow] | None = None
    sessions: int | None = None
    rq_prefix: str = ""
    revisions: dict[str, Figures] = field(default_factory=dict)
    lag: float | None = None
    budgets: list[NamedBudget] = field(default_factory=list)


async def cell_states(urls: Sequence[str], prefix: str) -> list[CellState]:
    """Read all cells concurrently, on connections of their own. Values that cannot be read keep their defaults."""
    cells = open_cells(list(urls), prefix=prefix, retries=0)
    try:
        return await asyncio.gather(*(_cell_state(name, cell) for name, cell in cells.named()))
    finally:
        for cell in cells:
            await cell.redis.aclose()


async def _cell_state(name: str, cell: Cell) -> CellState:
    state = CellState(name, rq_prefix=cell.keys.rq)
    with suppress(AgentError, TimeoutError):
        async with asyncio.timeout(READ_SECONDS):
            refusal = await write_refusal(cell)
            state.up, state.writable = not isinstance(refusal, StoreUnavailable), refusal is None
            workers = await worker_rows(cell)
            state.queues = await queue_rows(cell, workers)
            state.workers = await own_workers(cell, workers)
            state.lag = max((row.lag for row in state.workers), default=None)
            state.counts = await counts(cell)
            state.memory = await memory_of(cell)
            state.sessions = await asked(cell.redis.zcard(cell.keys.sessions))
            state.node = node_of(cell.redis)
            state.revisions = await figures_of_workers(cell)
            state.budgets = await named_budgets(cell)
    return state


async def no_turns_because(urls: Sequence[str], prefix: str) -> str:
    """Return why no cell takes turns now, or an empty string as soon as one is known to take them."""
    cells = open_cells(list(urls), prefix=prefix, retries=0)
    why = ""
    asking = [asyncio.create_task(_refusal(cell)) for cell in cells]
    try:
        for answer in asyncio.as_completed(asking):
            refusal = await answer
            if refusal is None:
                return ""
            why = why or str(refusal)
        return why
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for cell in cells:
            await cell.redis.aclose()


async def _refusal(cell: Cell) -> StoreError | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await write_refusal(cell)
    except TimeoutError:
        return StoreUnavailable(f"Redis has not answered within {CHECK_SECONDS:g} s.")


MOST = {
    "in_flight": 1_000_000, "waiting": 1_000_000, "per_minute": 10_000, "user_turns": 1_000, "user_in_flight": 1_000,
    "user_per_minute": 10_000, "stored_bytes": 2**50,
}  # fmt: skip


async def gateway_secret(connections: Connections) -> bytes:
    """Return the secret that the gateways of a deployment share. The first call creates it. Raises ``StoreError``."""
    _, cell = min(connections.cells.named(), key=lambda named: named[0])
    pipe = cell.redis.pipeline(transaction=True)
    pipe.set(cell.keys.gateway_secret, secrets.token_bytes(32), nx=True)
    pipe.get(cell.keys.gateway_secret)
    _, found = await asked(pipe.execute())
    return found


SCANNED = 1000  # keys per round trip


class TenantLimits(Struct, repr_omit_defaults=True):
    """How many turns and stored bytes a tenant may have in one Redis. None means no limit.

    Up to ``in_flight`` turns are in a queue or run; further ones wait. Up to ``waiting`` turns, including delayed
    ones, are accepted and not in flight, and up to ``per_minute`` are submitted in any 60 seconds; further ones are
    refused with ``TenantLimit``. So are turns of a user of the tenant (``submit(user=…)``) beyond ``user_turns`` that
    have not ended, and ``user_per_minute`` submitted in any 60 seconds. Up to ``user_in_flight`` turns of each user
    are in the tenant's line or in a queue, or run; further ones wait. Stored files of the tenant's sessions have at
    most ``stored_bytes`` together; further ones are refused with ``TenantLimit``.
    """

    in_flight: int | None = None
    waiting: int | None = None
    per_minute: int | None = None
    user_turns: int | None = None
    user_in_flight: int | None = None
    user_per_minute: int | None = None
    stored_bytes: int | None = None


async def set_tenant_limits(cells: Iterable[Cell], tenant: str, limits: TenantLimits) -> None:
    """Set all limits of a tenant in each cell, or with '' the defaults. Raises ``UsageError``, ``StoreError``."""
    numbers = {name: _checked(name, getattr(limits, name)) for name in MOST}
    for cell in cells:
        pipe = cell.redis.pipeline(transaction=True)
        for name, number in numbers.items():
            if number is None:
                pipe.hdel(cell.keys.limits, f"{name}:{tenant}")
            else:
                pipe.hset(cell.keys.limits, f"{name}:{tenant}", number)
        await asked(pipe.execute())


async def tenant_limits(cell: Cell, tenant: str) -> TenantLimits:
    """Return the limits of a tenant in a cell: its own, and the defaults where it has none. Raises ``StoreError``."""
    fields = [f"{name}:{whose}" for name in MOST for whose in (tenant, "")]
    found: list[Any] = await asked(cell.redis.hmget(cell.keys.limits, fields))
    pairs = zip(found[::2], found[1::2], strict=True)
    return TenantLimits(
        *(None if (own or default) is None else int(own or default) for own, default in pairs)
    )


class TenantRow(Struct):
    """A tenant with unfinished turns or limits of its own: its turns over all cells, and its limits in each."""

    tenant: str
    in_flight: int = 0
    waiting: int = 0
    limits: TenantLimits = field(default_factory=TenantLimits)


async def tenants(cells: Iterable[Cell]) -> list[TenantRow]:
    """Return the tenants with unfinished turns or limits of their own, by name. Raises ``StoreError``."""
    rows: dict[str, TenantRow] = {}
    for cell in cells:
        named: list[bytes] = await asked(cell.redis.hkeys(cell.keys.limits))
        found = {text_of(name).partition(":")[2] for name in named} - {""}
        cursor = 0
        while True:
            answer: Any = await asked(cell.redis.scan(cursor, match=cell.keys.tenant("*"), count=SCANNED))
            found |= {text_of(key).partition(":tenant:")[2] for key in answer[1]}
            if not (cursor := int(answer[0])):
                break
        for tenant in found:
            row = rows.setdefault(tenant, TenantRow(tenant, limits=await tenant_limits(cell, tenant)))
            key = cell.keys.tenant(tenant)
            row.in_flight += await asked(cell.redis.zcount(key, "-inf", "(0"))
            row.waiting += await asked(cell.redis.zcount(key, 0, "+inf"))
    return sorted(rows.values(), key=lambda one: one.tenant)


def _checked(name: str, number: int | None) -> int | None:
    if number is None:
        return None
    if not is_a(number, int) or isinstance(number, bool) or not 1 <= number <= MOST[name]:
        raise UsageError(f"{name}= must be a number from 1 to {MOST[name]}, or None, not {number!r}.")
    return number
