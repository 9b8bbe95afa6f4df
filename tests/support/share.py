"""Measures the share of a processor that a process gets here, so that tests can scale limits of an idle machine."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.eventually import wait_until
from support.processes import Processes


@contextmanager
def share_of_processor(processes: Processes) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the fraction of time since the beginning that a busy process has run.

    It is 1 on an idle machine, and 0.2 if five such processes share each processor.
    """
    spinning = processes.start(sys.executable, "-ISc", "while True: pass", name="spinning")
    try:
        wait_until(lambda: _seconds_run(spinning.pid), 20, "it spins")
        began, before = time.monotonic(), _seconds_run(spinning.pid)
        yield lambda: (_seconds_run(spinning.pid) - before) / (time.monotonic() - began)
    finally:
        spinning.kill()


def _seconds_run(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
