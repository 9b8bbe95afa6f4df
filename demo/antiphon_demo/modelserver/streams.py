"""Streams an answer at its pace to a client that may read slowly or disconnect. All streams share one timer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from antiphon_demo.modelserver.http import Connection


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


# How many pieces to send at once without a pace, before other streams continue.
_BATCH = 32


class AnswerStream:
    """Sends ``frames``, each as one HTTP chunk, and calls ``finish`` after the last one.

    ``sent`` is called with the number of chunks sent. The first frame is the opening. The first piece is due
    ``first_piece_seconds`` after it, and each further one ``1 / pace`` seconds later, even if earlier ones were late.
    """

    def __init__(
        self,
        connection: Connection,
        frames: Iterator[bytes],
        *,
        wheel: Wheel,
        pace: float,
        first_piece_seconds: float,
        sent: Callable[[int], None],
        finish: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._frames = frames
        self._wheel = wheel
        self._interval = 1 / pace if pace > 0 else 0.0
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + first_piece_seconds
        self._sent = sent
        self._finish = finish
        self._stopped = False
        self._parked = False

    def start(self) -> None:
        self._connection.on_writable = self._resume
        self._send(1)
        self._wheel.at(self._due, self._step)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def _resume(self) -> None:
        if self._parked:
            self._parked = False
            self._step()

    def _step(self) -> None:
        if self._stopped:
            return
        if not self._connection.writable:
            self._parked = True
            return
        if not self._interval:
            if self._send(_BATCH):
                self._loop.call_soon(self._step)
            return
        due = 0
        now = self._loop.time()
        while self._due <= now:
            self._due += self._interval
            due += 1
        if not due or self._send(due):
            self._wheel.at(self._due, self._step)

    def _send(self, count: int) -> bool:
        """Return whether there may be more."""
        frames = list(islice(self._frames, count))
        if frames:
            self._connection.write(b"".join([b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]))
            self._sent(len(frames))
        if len(frames) == count:
            return True
        self._stopped = True
        self._finish()
        return False
