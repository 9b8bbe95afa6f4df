"""Counts calls of functions, which do not depend on the machine's load."""

import asyncio
import gc
import selectors
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVENT_LOOP = (asyncio.__path__[0], selectors.__file__)
# Services of a worker that look as often as time passes, whatever its turns do.
BY_THE_CLOCK = ("presence", "reaper", "scheduler", "deliverer", "eraser", "batches", "lease keeper")


def by_the_clock() -> bool:
    """Whether this is a service that its worker's turns do not call."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop else None
    return task is not None and task.get_name().endswith(BY_THE_CLOCK)


@contextmanager
def counted_calls() -> Iterator[Callable[[], int]]:
    """Calls of functions in this thread, Python's and C's, without those whose number is chance.

    These are the event loop's, which wakes as often as it happens, those of services that go by the clock, and those of
    objects that the garbage collector finds.
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
    """No garbage collection, which would call what earlier tests have left."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
