"""The buckets of rate limits: when the next call of a model with a key may start, for all workers of a cell."""

from __future__ import annotations

from antiphon.wire.cell import Cell
from antiphon.wire.errors import unexpected


async def limit(cell: Cell, scope: str, wait_ms: int, gap_ms: float) -> int:
    """Let no call of this scope start for ``wait_ms``, and then one every ``gap_ms`` (0: unknown).

    Returns for how many ms the bucket is kept. Notifies all workers of the cell. Raises ``StoreError``.
    """
    [lasts] = await cell.run_for(b"LIMITED", "limits/limit", scope, wait_ms, f"{gap_ms:.3f}")
    return int(lasts)


async def admit(cell: Cell, scope: str) -> int | None:
    """Return in how many ms a call of this scope may start: 0 means now, None that there is no limit any more.

    A caller that must wait asks again then. Raises ``StoreError``.
    """
    match await cell.run("limits/admit", scope):
        case [b"FREE"]:
            return None
        case [b"STARTS"]:
            return 0
        case [b"WAITS", ms]:
            return int(ms)
        case answer:
            raise unexpected("limits/admit", answer)
