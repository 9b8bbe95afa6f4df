"""Moves all cells of a deployment to other servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from antiphon.errors import UsageError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.cluster import each_cell
from antiphon.wire.connection.moved import place_of, prove, secret_of
from antiphon.wire.connection.open import cell_urls, open_redis
from antiphon.wire.moving import MovedCell, Mover

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 5.0, 300.0


async def move_cells(
    source: str, target: str, *, prefix: str, pause: float = PAUSE_SECONDS, say: Callable[[str], None]
) -> list[MovedCell]:
    """Move the cells of one URL to those of another. ``say`` is given sentences about the progress.

    Each cell is copied while it is used. Then its writes are paused for at most ``pause`` seconds, and the cell is
    switched. A repeated call continues one that was interrupted: a cell is at one place at every moment. Raises
    ``UsageError`` if a session could be in another cell afterwards, or if the target is in use; ``StoreError``.
    """
    if not 0 < pause <= MOST_PAUSE_SECONDS:
        raise UsageError(
            f"pause= must be at most {MOST_PAUSE_SECONDS:g} seconds, and more than 0, not {pause:g}."
        )
    sources, targets = cell_urls(source), cell_urls(target)
    on_clusters = all(len(each_cell(url)) == 1 and "+cluster" in url for url in (*sources, *targets))
    if len(sources) != len(targets) or (len(sources) > 1 and not on_clusters):
        raise UsageError(
            f"{len(sources)} cells cannot move to {len(targets)}: sessions are distributed by the number of cells, and "
            "outside a cluster by their URLs. One cell moves to one, and those of a cluster to a cluster with as many."
        )
    moved: list[MovedCell] = []
    for old, new in zip(sources, targets, strict=True):
        async with AsyncExitStack() as stack:
            cells = [Cell(open_redis(url), prefix=prefix) for url in (old, new)]
            for cell in cells:
                stack.push_async_callback(cell.redis.aclose)
            places = [place_of(url) for url in (old, new)]
            proof = prove(secret_of(old), places[1])
            mover = Mover((cells[0], places[0]), (cells[1], places[1]), proof=proof, pause=pause, say=say)
            moved.append(await mover.move())
    return moved
