"""Moves all cells of a deployment to other servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from antiphon.errors import SettingsError, UsageError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.cluster import SCHEMES, cell_names
from antiphon.wire.connection.moved import place_of, prove, same_place, secret_of
from antiphon.wire.connection.open import cell_urls, open_redis
from antiphon.wire.moving import MovedCell, Mover

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 5.0, 300.0


class Move(NamedTuple):
    """The URLs of a cell's old and new places."""

    source: str
    target: str


async def move_cells(
    source: str, target: str, *, prefix: str, pause: float = PAUSE_SECONDS, say: Callable[[str], None]
) -> list[MovedCell]:
    """Move cells from their URLs to new ones. ``say`` receives sentences about the progress.

    Each cell is copied while it is used. Then its writes are paused for at most ``pause`` seconds, and the cell is
    switched. A repeated call continues an interrupted one: at every moment, a cell is in one place. With several
    cells, each moves to the place with its name, and stays if it is there already. Raises ``UsageError`` if a session
    could be in another cell afterwards, or if the target is in use; ``StoreError``.
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
    old, new = _by_name(sources), _by_name(targets)
    before, after = _of_deployment(old), _of_deployment(new)
    if len(before) == len(after) == 1:
        return [Move(sources[0], targets[0])]
    numbers = [(len(before), len(after)), (len(old), len(new))]
    if differ := next((pair for pair in numbers if pair[0] != pair[1]), None):
        raise UsageError(
            f"{differ[0]} cells cannot move to {differ[1]}: the number of cells determines the cell of each session. "
            "Name all cells of the deployment in both places: one that has the same URL in both stays where it is."
        )
    if old.keys() != new.keys() or {*before} != {*after}:
        raise UsageError(
            f"The cells {', '.join(before)} cannot become {', '.join(after)}: their names determine the cell of each "
            "session. Give the new ones the names of the old ones, as in redis://new:6379/0?names=old:6379/0 or "
            "redis+cluster://new:6379?cells=2&names=a:6379/0,b:6379/0."
        )
    return [Move(url, new[name]) for name, url in old.items()]


def _of_deployment(urls: dict[str, str]) -> list[str]:
    """Return the names of all cells of a deployment: the URL of a part of a cluster has the other names too."""
    clusters = [url for url in urls.values() if url.partition("://")[0] in SCHEMES]
    return list(dict.fromkeys([*urls, *(name for url in clusters for name in cell_names(url))]))


def _by_name(urls: list[str]) -> dict[str, str]:
    """Return the URLs of cells by the names of the cells, without connecting. Raises ``SettingsError``."""
    found = {Cell(open_redis(url)).name: url for url in urls}
    if len(found) < len(urls):
        raise SettingsError(f"{len(urls)} cells need as many names, not {', '.join(found)}.")
    return found
