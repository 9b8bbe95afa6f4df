"""Counts calls of functions, which do not depend on the machine's load."""

import asyncio
import gc
import selectors
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVENT_LOOP = (asyncio.__path__[0], selectors.__file__)
# Services of a worker that run at intervals, whatever its turns do.
BY_THE_CLOCK = ("presence", "reaper", "scheduler", "deliverer", "eraser", "batches", "lease keeper")


def by_the_clock() -> bool:
    """Return whether the current task is a service that runs at intervals."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop else None
    return task is not None and task.get_name().endswith(BY_THE_CLOCK)


@contextmanager
def counted_calls() -> Iterator[Callable[[], int]]:
    """Count calls of Python and C functions in this thread, without those whose number varies by chance.

    Not counted are calls by the event loop, by services that run at intervals, and by the garbage collector.
    """
    count = 0

    def note(frame, event, _argument) -> None:
        nonlocal count
        if event in ("call", "c_call") and not frame.f_code.co_filename.startswith(EVENT_LOOP):
            count += not by_the_clock()

    with uncollected():
        known = sys.getprofile()
        sys.setprofile(note)
        try:
            yield lambda: count
        finally:
            sys.setprofile(known)


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection, which would finalize objects of earlier tests."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
