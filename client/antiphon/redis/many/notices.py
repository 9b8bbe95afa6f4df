"""Follows the notices of all cells, each behind an entry of its own, over the connections that a client has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import NamedTuple

from antiphon.errors import StreamGap
from antiphon.redis.connections import Connections
from antiphon.redis.patience import Patience
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import RESYNC, Listener, LiveFeed
from antiphon.wire.lists.notices import Notice, follow, read_notices

__all__ = ["CellNotices", "Notices", "Page"]

PAGE = 500
SILENCE_SECONDS = 5.0


class CellNotices:
    """The notices of one cell behind an entry. ``cursor`` is the entry that was read last, '' before the start."""

    def __init__(self, name: str, cell: Cell, feed: LiveFeed, after: str, keep_seconds: float) -> None:
        self.name = name
        self.cell = cell
        self.cursor = after
        self._feed = feed
        self._keep_seconds = keep_seconds
        self._stack = AsyncExitStack()
        self._listener: Listener | None = None
        self._asked_at = 0.0  # when the log was last asked for
        self._behind = True
        self._silent = False
        self.patiently = Patience(cell, feed, f"notices of {name}")

    async def start(self) -> None:
        """Ask for the notices. Without a cursor, those from now on are read."""
        if self._listener is None:
            self.patiently.begin()
            channel = self.cell.keys.live(self.cell.database, "")
            self._listener = await self._stack.enter_async_context(self._feed.listen(channel))
        newest = await self.patiently(self._ask)
        self.cursor = self.cursor or newest

    async def go_on(self) -> None:
        """Continue with what comes from now on, as after a ``StreamGap``."""
        self.cursor = await self.patiently(self._ask)

    async def aclose(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close(StopAsyncIteration())
        await self._stack.aclose()

    async def page(self) -> list[Notice]:
        """Wait for notices, and return those that are there. Raises ``StreamGap``."""
        if self._listener is None:
            await self.start()
        while True:
            if self._behind:
                found = await self.patiently(self._read)
                if found is None:
                    raise StreamGap(
                        f"The notices behind {self.cursor} of {self.name} are no longer kept: list what is of interest "
                        "(sessions, failed turns), and follow from now on."
                    )
                self._behind = len(found) == PAGE
                if found:
                    self._hurry()
                    self.cursor = found[-1].id
                    return found
            await self._wake()

    async def _wake(self) -> None:
        assert self._listener is not None
        if time.monotonic() - self._asked_at > self._keep_seconds / 4:
            await self.patiently(self._ask)
        try:
            message = await self._listener.get(self.patiently.left(SILENCE_SECONDS))
            self._behind = message == RESYNC or place(message.decode()) > place(self.cursor)
        except TimeoutError:
            self._behind = self._silent = True
        self.patiently.heard = time.monotonic()

    def _hurry(self) -> None:
        """Open the channel's connection again if it was silent although there were notices."""
        if self._silent:
            self._feed.reconnect()
        self._silent = False

    async def _ask(self) -> str:
        newest = await follow(self.cell, int(self._keep_seconds * 1000))
        self._asked_at = time.monotonic()
        return newest

    async def _read(self) -> list[Notice] | None:
        return await read_notices(self.cell, self.cursor, PAGE)


class Page(NamedTuple):
    """Notices of one cell."""

    of: CellNotices
    notices: list[Notice]


class Notices:
    """The notices of all cells, as they come. A cancelled call loses none.

    ``after`` gives entries by the names of cells; a cell without one begins with what is new. The logs are kept for
    ``keep_seconds`` after they were last asked for.
    """

    def __init__(self, connections: Connections, keep_seconds: float, after: Mapping[str, str]) -> None:
        self.of_cells = [
            CellNotices(name, cell, connections.feed_of(cell), after.get(name, ""), keep_seconds)
            for name, cell in connections.cells.named()
        ]
        self._reading: dict[CellNotices, asyncio.Task[list[Notice]]] = {}

    async def start(self) -> None:
        """Ask every cell for its notices; later ones are not missed."""
        for one in self.of_cells:
            await one.start()

    async def page(self, timeout: float | None = None) -> Page | None:
        """Wait for notices of any cell; None after ``timeout`` seconds. Raises ``StreamGap`` of one of them."""
        for one in self.of_cells:
            if one not in self._reading:
                self._reading[one] = asyncio.create_task(one.page(), name="antiphon notices")
        done, _ = await asyncio.wait(
            self._reading.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        for one, task in list(self._reading.items()):
            if task in done:
                del self._reading[one]
                return Page(one, task.result())
        return None

    async def aclose(self) -> None:
        """Stop reading."""
        tasks = [*self._reading.values()]
        self._reading.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self.of_cells:
            await one.aclose()


def place(entry_id: str) -> tuple[int, int]:
    """Return the order of an entry among the others."""
    at, _, number = entry_id.partition("-")
    return int(at or 0), int(number or 0)
