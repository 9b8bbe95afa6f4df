"""One timer for all streams, which groups the actions that are due in the same millisecond."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable


class Wheel:
    """Coarse timers, which are never early and at most one tick late while the loop keeps up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_seconds: float = 0.001) -> None:
        self._loop = loop
        self._tick = tick_seconds
        self._slots: dict[int, list[Callable[[], None]]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call this at the time ``when`` of the loop's clock."""
        slot = int(when / self._tick) + 1
        waiting = self._slots.get(slot)
        if waiting is not None:
            waiting.append(action)
            return
        self._slots[slot] = [action]
        heapq.heappush(self._order, slot)
        if self._timer is None or slot < self._armed:
            self._arm(slot)

    def close(self) -> None:
        """Cancel all timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._order.clear()

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = slot
        self._timer = self._loop.call_at(slot * self._tick, self._turn)

    def _turn(self) -> None:
        self._timer = None
        reached = int(self._loop.time() / self._tick + 1e-6)
        while self._order and self._order[0] <= reached:
            for action in self._slots.pop(heapq.heappop(self._order)):
                action()
        if self._order and self._timer is None:
            self._arm(self._order[0])
