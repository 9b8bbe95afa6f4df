"""The pulse of a process: how its supervisor, or where there is none the kernel, notices that it stands still.

A tool that never returns stops the event loop, and where it holds the interpreter's lock the whole process: then
nothing in the process can say so. A process therefore shares a page of memory with the process that started it. Two
counters in it go up while all is well, one written by the event loop, one by a thread; whoever started the process
ends it when one of them stands still. SIGALRM ends it, because ``faulthandler`` answers that signal without the
interpreter's lock: it writes the stacks of all threads to standard error first. The loop also pushes a timer of the
kernel's ahead of itself, which sends the same signal: a process that hangs ends without a supervisor too.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import mmap
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

__all__ = ["STALL_SIGNAL", "Page", "Patience", "beating", "beating_in_stock_worker", "standing_still"]

STALL_SIGNAL = signal.SIGALRM
BEAT_SECONDS = 0.25
SHORTEST_FROZEN_SECONDS = 5.0
TIMER_EXTRA_SECONDS = 1.0  # whoever started the process is to notice first
_COUNTERS = struct.Struct("=QQ")


class Page:
    """The shared memory: two counters, then the tool calls under way as text."""

    SIZE = mmap.PAGESIZE

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)

    @staticmethod
    def new_descriptor() -> int:
        """An empty page that a child process can be given. Raises ``OSError``."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("antiphon pulse")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, Page.SIZE)
        return descriptor

    @property
    def counters(self) -> tuple[int, int]:
        """How often the event loop and the thread have beaten; 0 before the first time."""
        loop, thread = _COUNTERS.unpack_from(self._memory)
        return loop, thread

    def count(self, which: int, number: int) -> None:
        struct.pack_into("=Q", self._memory, which * 8, number)

    @property
    def calls(self) -> str:
        """The tool calls under way, as they were last written."""
        return self._memory[_COUNTERS.size :].partition(b"\0")[0].decode(errors="replace")

    def write_calls(self, calls: Iterable[str]) -> None:
        """Say which tool calls are under way; what does not fit is left out."""
        text = ", ".join(calls).encode(errors="replace")[: self.SIZE - _COUNTERS.size - 1]
        self._memory[_COUNTERS.size : _COUNTERS.size + len(text) + 1] = text + b"\0"

    def close(self) -> None:
        self._memory.close()


class Patience:
    """How long a process may stand still, in seconds.

    ``loop`` is for its event loop: a thread of its own renews its leases meanwhile. ``whole`` is for all of it: past
    its lease it has lost what it holds, so it is ended shortly before.
    """

    def __init__(self, stall_timeout: float, lease: float) -> None:
        self.loop = stall_timeout
        self.whole = min(stall_timeout, max(0.7 * lease, SHORTEST_FROZEN_SECONDS))


async def standing_still(page: Page, patience: Patience) -> float:
    """Return when the process has stood still for too long: for how many seconds.

    Only the time counts in which this loop looks on: when the whole machine was paused, nobody has stood still.
    """
    still, before, looked = [0.0, 0.0], page.counters, time.monotonic()
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        now, counters = time.monotonic(), page.counters
        passed, looked = min(now - looked, 2 * BEAT_SECONDS), now
        for which in (0, 1):
            moved = counters[which] != before[which] or not counters[which]
            still[which] = 0.0 if moved else still[which] + passed
        before = counters
        if patience.loop and (still[0] >= patience.loop or still[1] >= patience.whole):
            return max(still)


@asynccontextmanager
async def beating(page: Page | None, stall_timeout: float) -> AsyncGenerator[None]:
    """Within this, this process has a pulse; 0 seconds turn it off. The last beat's timer goes on afterwards."""
    if not stall_timeout:
        yield
        return
    faulthandler.register(STALL_SIGNAL, all_threads=True, chain=True)
    if page is not None:
        threading.Thread(target=_beat_of_thread, args=(page,), name="antiphon pulse", daemon=True).start()

    def beat(number: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, stall_timeout + TIMER_EXTRA_SECONDS)
        if page is not None:
            page.count(0, number)

    async with _repeating(beat):
        yield


@asynccontextmanager
async def beating_in_stock_worker(stall_timeout: float) -> AsyncGenerator[None]:
    """The same for a turn in RQ's own worker, which uses SIGALRM itself and has no supervisor of ours."""
    if not stall_timeout:
        yield
        return

    def beat(_: int) -> None:
        faulthandler.dump_traceback_later(stall_timeout, exit=True)

    try:
        async with _repeating(beat):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@asynccontextmanager
async def _repeating(beat: Callable[[int], None]) -> AsyncGenerator[None]:
    async def repeat() -> None:
        for number in itertools.count(1):
            beat(number)
            await asyncio.sleep(BEAT_SECONDS)

    task = asyncio.create_task(repeat(), name="antiphon pulse")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _beat_of_thread(page: Page) -> None:
    for number in itertools.count(1):
        page.count(1, number)
        time.sleep(BEAT_SECONDS)
