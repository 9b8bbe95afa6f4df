"""Ensures that no process outlives the tests: guarded processes are killed when this process ends in any way.

Each test process has one watchdog. It handles process groups, so that the children of a worker also end.
"""

import atexit
import threading
from typing import Literal

from antiphon_demo.process_guard import Watchdog

_watchdog: Watchdog | None = None
_lock = threading.Lock()


def guard(group: int) -> None:
    """Have this process group killed when the test process has ended."""
    _tell("group", group)


def release(group: int) -> None:
    """Stop guarding this process group, which has ended: its number may be reused."""
    _tell("ended", group)


def _tell(kind: Literal["group", "ended"], group: int) -> None:
    global _watchdog  # noqa: PLW0603 - one watchdog per test process
    with _lock:
        if _watchdog is None:
            _watchdog = Watchdog()
            atexit.register(_watchdog.close)
        _watchdog.tell(kind, group)
