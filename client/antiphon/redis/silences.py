"""Checks many silent sessions in one round trip, and wakes up only the readers of changed ones.

All readers of an event loop share one timer. Messages do not reset it: it checks when each reader last heard
something, and waits again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary, ref

from antiphon.errors import AgentError
from antiphon.input.ids import SessionId
from antiphon.wire.cell import Cell

TICK_SECONDS = 0.25
"""Readers that are due within this time are checked together."""
AT_ONCE = 500
FIELDS = ("seq", "created", "life", "tenant")

Found = list[bytes | None] | Exception
"""The ``FIELDS`` of a session, or the error of reading them."""


class Reader(Protocol):
    """A reader of a session."""

    cell: Cell
    session_id: SessionId

    @property
    def due(self) -> float | None:
        """The time from which it has been silent for too long; None once it has ended."""
        ...

    def look(self, found: Found) -> None:
        """Process the result of a check after a silence. ``due`` is later after this call."""
        ...


class Silences:
    """The readers of one event loop, by the tick of the clock at which each is due."""

    def __init__(self) -> None:
        self._due: defaultdict[int, list[ref[Reader]]] = defaultdict(list)
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0  # the tick at which the timer ends
        self._looking: set[asyncio.Task[None]] = set()

    def watch(self, reader: Reader) -> None:
        """Check this reader whenever it is due, until it ends or is garbage collected."""
        if (due := reader.due) is not None:
            tick = math.ceil(due / TICK_SECONDS)
            self._due[tick].append(ref(reader))
            if self._timer is None or tick < self._next:
                self._set_timer(tick)

    def _set_timer(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = max(tick * TICK_SECONDS - time.monotonic(), 0)
        self._next, self._timer = tick, asyncio.get_running_loop().call_later(left, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        silent: dict[Cell, list[Reader]] = defaultdict(list)
        for tick in [one for one in self._due if one * TICK_SECONDS <= now]:
            for known in self._due.pop(tick):
                reader = known()
                if reader is None:
                    continue
                if reader.due is not None and reader.due <= now:
                    silent[reader.cell].append(reader)
                else:
                    self.watch(reader)
        for cell, readers in silent.items():
            task = asyncio.create_task(self.look_at(cell, readers), name="antiphon silences")
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        if self._due:
            self._set_timer(min(self._due))

    async def look_at(self, cell: Cell, readers: Sequence[Reader]) -> None:
        """Check the sessions of these readers, and keep watching them."""
        for start in range(0, len(readers), AT_ONCE):
            some = [reader for reader in readers[start : start + AT_ONCE] if reader.due is not None]
            found: list[Found]
            try:
                found = await cell.fields_of_sessions([reader.session_id for reader in some], *FIELDS)
            except AgentError as exc:  # each reader then tries by itself, and logs it
                found = [exc] * len(some)
            for reader, fields in zip(some, found, strict=True):
                reader.look(fields)
                self.watch(reader)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Silences] = WeakKeyDictionary()


def silences() -> Silences:
    """Return the ``Silences`` of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Silences()
    return found
