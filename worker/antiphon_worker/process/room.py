"""What the workers of one process share; each serves one cell, in the same event loop."""

from __future__ import annotations

import asyncio

from antiphon.redis.cells import Cells
from antiphon_worker.process.budgets import Budgets
from antiphon_worker.process.service import Service
from antiphon_worker.settings import Settings


class Room:
    """The places of a process. A claim reserves some before it is sent, because other cells claim concurrently.

    While a process waits for turns, each of its claims waits in Redis: with several cells, each claim reserves one
    place.
    """

    def __init__(self, places: int, cells: int = 1) -> None:
        self._free = places
        self._shared = cells > 1
        self._left = asyncio.Event()

    async def reserve(self, most: int, more: bool) -> tuple[int, bool]:
        """Take up to ``most`` places for a claim, as soon as one is free.

        ``more`` is whether there may be turns to claim now; otherwise the claim waits. Returns the number of places,
        and ``more``, which is True after a wait for a place.
        """
        most = most if more or not self._shared else 1
        while self._free <= 0:
            self._left.clear()
            await self._left.wait()
            more = True
        taken = min(most, self._free)
        self._free -= taken
        return taken, more

    def enter(self) -> None:
        """Take a place for a claimed turn, even if none is free."""
        self._free -= 1

    def leave(self, places: int = 1) -> None:
        """Release places."""
        self._free += places
        self._left.set()


class Shared:
    """Connections to all cells of the deployment, the known budgets, and the room for turns."""

    def __init__(self, settings: Settings, cells: Cells, workers: int = 1) -> None:
        self.cells = cells
        self.budgets = Budgets(cells)
        self.room = Room(settings.concurrency, workers)
        self._announced = False

    def announces(self) -> bool:
        """Return True on the first call only: one worker announces the start of the process."""
        first, self._announced = not self._announced, True
        return first

    async def run(self) -> None:
        """Keep the known budgets up to date until cancelled; then close the connections."""
        try:
            await Service(self.budgets.run, "budgets").run()
        finally:
            for cell in self.cells:
                await cell.redis.aclose()
