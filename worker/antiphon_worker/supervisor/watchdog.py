"""The watchdog of a process: lets its supervisor (or, without one, the kernel) detect that it is blocked.

A tool that never returns blocks the event loop. If it holds the interpreter's lock, it blocks the whole process,
which then cannot report anything. Therefore a process shares a page of memory with its parent. The event loop
increments one counter in it, and a thread the other; the parent kills the process when one of them stops changing. It
sends SIGALRM, because ``faulthandler`` handles that signal without the interpreter's lock and first writes the stacks
of all threads to standard error. The loop also keeps postponing a kernel timer that sends the same signal, so a
process that hangs ends without a supervisor too.
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
from contextlib import asynccontextmanager, suppress
from enum import IntEnum
from pathlib import Path

STALL_SIGNAL = signal.SIGALRM
BEAT_SECONDS = 0.25
SHORTEST_FROZEN_SECONDS = 5.0
TIMER_EXTRA_SECONDS = 1.0  # the parent should notice first
_COUNTERS = struct.Struct("=QQ")
_STATE = struct.Struct("=B")
_CALLS_AT = _COUNTERS.size + _STATE.size


class State(IntEnum):
    """The progress of a process. Exit codes do not show it, because the code of an App may exit with any of them."""

    LOADING = 0
    SERVING = 1
    DONE = 2


class Page:
    """The shared memory: two counters, the state of the process, and the running tool calls as text."""

    SIZE = mmap.PAGESIZE

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self.SIZE)

    @staticmethod
    def new_descriptor() -> int:
        """Make an empty page for a child process. Raises ``OSError``."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("antiphon pulse")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, Page.SIZE)
        return descriptor

    @property
    def counters(self) -> tuple[int, int]:
        """Return the counters of the event loop and of the thread; 0 before the first beat."""
        loop, thread = _COUNTERS.unpack_from(self._memory)
        return loop, thread

    @property
    def begun(self) -> bool:
        """Whether the event loop has begun to count; False again after the process has ended."""
        return not self._memory.closed and self.counters[0] > 0

    def count(self, which: int, number: int) -> None:
        struct.pack_into("=Q", self._memory, which * 8, number)

    @property
    def state(self) -> State:
        return State(*_STATE.unpack_from(self._memory, _COUNTERS.size))

    def enter(self, state: State) -> None:
        _STATE.pack_into(self._memory, _COUNTERS.size, state)

    @property
    def calls(self) -> str:
        """Return the running tool calls, as last written."""
        return self._memory[_CALLS_AT:].partition(b"\0")[0].decode(errors="replace")

    def write_calls(self, calls: Iterable[str]) -> None:
        """Write the running tool calls; omit what does not fit."""
        text = ", ".join(calls).encode(errors="replace")[: self.SIZE - _CALLS_AT - 1]
        self._memory[_CALLS_AT : _CALLS_AT + len(text) + 1] = text + b"\0"

    def close(self) -> None:
        self._memory.close()


class Patience:
    """How long a process may be blocked, in seconds.

    ``loop`` applies to the event loop, while a thread renews the leases. ``whole`` applies to the whole process,
    which is killed shortly before its leases expire.
    """

    def __init__(self, stall_timeout: float, lease: float) -> None:
        self.loop = stall_timeout
        self.whole = min(stall_timeout, max(0.7 * lease, SHORTEST_FROZEN_SECONDS))


def waited_for_processor(pid: int) -> float:
    """Return for how many seconds in total the threads of a process were ready but had no processor.

    Only Linux provides this; 0 elsewhere.
    """
    waited = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has just ended
            waited += int(file.read_text().split()[1])
    return waited / 1e9


async def standing_still(page: Page, patience: Patience, waited: Callable[[], float] = float) -> float:
    """Wait until the process has been blocked for too long, and return for how many seconds.

    Only time in which this loop runs counts, so that a pause of the whole machine does not. Neither does time in
    which the process had no processor (``waited``, in seconds since its start): it is not blocked then.
    """
    still, before, looked = [0.0, 0.0], page.counters, time.monotonic()
    without: float | None = None  # at the last check of a process that may be blocked
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        now, counters = time.monotonic(), page.counters
        passed, looked = min(now - looked, 2 * BEAT_SECONDS), now
        if all(counter != last for counter, last in zip(counters, before, strict=True)):
            without = None
        elif patience.loop:
            last, without = without, waited()
            passed = max(0.0, passed - (without - last)) if last is not None else passed
        for which in (0, 1):
            moved = counters[which] != before[which] or not counters[which]
            still[which] = 0.0 if moved else still[which] + passed
        before = counters
        if patience.loop and (still[0] >= patience.loop or still[1] >= patience.whole):
            return max(still)


@asynccontextmanager
async def beating(page: Page | None, stall_timeout: float) -> AsyncGenerator[None]:
    """Count for the watchdog inside this context; 0 seconds turn it off. The timer of the last beat keeps running."""
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
async def beating_under_rq(stall_timeout: float) -> AsyncGenerator[None]:
    """Do the same under RQ's command line: its own worker uses SIGALRM, and there is no supervisor."""
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
