"""What runs the turns of a deployment: its queues and its workers, of all cells."""

from __future__ import annotations

from msgspec import Struct, field

from antiphon.redis.connections import Connections
from antiphon.wire.lists.in_flight import Counts, TurnRow, counts, turn_rows
from antiphon.wire.lists.queues import QueueRow, WorkerRow, queue_rows, worker_rows

__all__ = ["Overview", "QueueState", "list_queues", "list_workers", "overview"]


class QueueState(Struct):
    """A queue over all cells. The counts are those of ``QueueRow``; ``workers`` serve it in any of the cells.

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

    def add(self, row: QueueRow, now: int) -> None:
        """Count what stands in this queue of one cell."""
        for name in ("queued", "running", "waiting", "delayed", "failed", "workers"):
            setattr(self, name, getattr(self, name) + getattr(row, name))
        if row.oldest is not None:
            self.oldest_seconds = max(self.oldest_seconds or 0.0, (now - row.oldest) / 1000, 0.0)


async def list_queues(connections: Connections) -> list[QueueState]:
    """Read the queues of all cells, by name. Raises ``StoreError``."""
    found: dict[str, QueueState] = {}
    for cell in connections.cells:
        rows, now = await queue_rows(cell)
        for row in rows:
            found.setdefault(row.name, QueueState(row.name)).add(row, now)
    return [found[name] for name in sorted(found)]


async def list_workers(connections: Connections) -> list[WorkerRow]:
    """Read the live workers of all cells; a worker process serves one cell. Raises ``StoreError``."""
    return [row for cell in connections.cells for row in await worker_rows(cell)]


class Overview(Struct):
    """What a deployment does at one moment. ``at`` is in ms since 1970, by the clock of the first Redis.

    ``turns`` are the current turns of at most as many sessions as were asked for, and ``counts`` those of all.
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
