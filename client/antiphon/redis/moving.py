"""Moves all cells of a deployment to other servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from antiphon.errors import SettingsError, UsageError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.moved import place_of, prove, same_place, secret_of
from antiphon.wire.connection.open import cell_urls, open_redis
from antiphon.wire.moving import MovedCell, Mover

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 5.0, 300.0


class Move(NamedTuple):
    """The URLs of a cell: of its old and of its new place."""

    source: str
    target: str


async def move_cells(
    source: str, target: str, *, prefix: str, pause: float = PAUSE_SECONDS, say: Callable[[str], None]
) -> list[MovedCell]:
    """Move the cells of some URLs to those of others. ``say`` is given sentences about the progress.

    Each cell is copied while it is used. Then its writes are paused for at most ``pause`` seconds, and the cell is
    switched. A repeated call continues one that was interrupted: a cell is at one place at every moment. Of several
    cells, each moves to the one of its name, and stays if that is where it is. Raises ``UsageError`` if a session could
    be in another cell afterwards, or if the target is in use; ``StoreError``.
    """
    if not 0 < pause <= MOST_PAUSE_SECONDS:
        raise UsageError(
            f"pause= must be at most {MOST_PAUSE_SECONDS:g} seconds, and more than 0, not {pause:g}."
        )
    moves = _moves(cell_urls(source), cell_urls(target))
    async with AsyncExitStack() as stack:
        movers: list[Mover] = []
        for move in moves:
            if len(moves) > 1 and same_place(move.source, place_of(move.target)):
                say(f"{place_of(move.target)} stays where it is.")
                continue
            cells = [Cell(open_redis(url), prefix=prefix) for url in move]
            for cell in cells:
                stack.push_async_callback(cell.redis.aclose)
            old, new = map(place_of, move)
            movers.append(Mover(
                (cells[0], old), (cells[1], new), proof=prove(secret_of(move.source), new), pause=pause, say=say,
                cells=len(moves),
            ))  # fmt: skip
        for mover in movers:
            await mover.begin()  # all places are closed before the first cell is at a new one
        return [await mover.move() for mover in movers]


def _moves(sources: list[str], targets: list[str]) -> list[Move]:
    """Return where each cell moves. Raises ``UsageError`` if the new cells would have other sessions."""
    if len(sources) == len(targets) == 1:
        return [Move(sources[0], targets[0])]
    old, new = _by_name(sources), _by_name(targets)
    if len(old) != len(new):
        raise UsageError(
            f"{len(old)} cells cannot move to {len(new)}: the number of cells determines the cell of each session."
        )
    if old.keys() != new.keys():
        raise UsageError(
            f"The cells {', '.join(old)} cannot become {', '.join(new)}: their names determine the cell of each "
            "session. Give the new ones the names of the old ones, as in redis://new:6379/0?names=old:6379/0 or "
            "redis+cluster://new:6379?cells=2&names=a:6379/0,b:6379/0."
        )
    return [Move(url, new[name]) for name, url in old.items()]


def _by_name(urls: list[str]) -> dict[str, str]:
    """Return the URLs of cells by the names of the cells, without connecting. Raises ``SettingsError``."""
    found = {Cell(open_redis(url)).name: url for url in urls}
    if len(found) < len(urls):
        raise SettingsError(f"{len(urls)} cells need as many names, not {', '.join(found)}.")
    return found
