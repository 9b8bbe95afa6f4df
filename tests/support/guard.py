"""No process outlives the tests: what is guarded here is killed when this process is gone, however it ended.

Each test process has one watchdog. It works for process groups, so that the children of a worker end as well.
"""

import atexit
import threading
from typing import Literal

from antiphon_demo.process_guard import Watchdog

_watchdog: Watchdog | None = None
_lock = threading.Lock()


def guard(group: int) -> None:
    """Kill this process group when the test process is gone."""
    _tell("group", group)


def release(group: int) -> None:
    """This process group has ended; its number may be given to another."""
    _tell("ended", group)


def _tell(kind: Literal["group", "ended"], group: int) -> None:
    global _watchdog  # noqa: PLW0603 - one watchdog per test process
    with _lock:
        if _watchdog is None:
            _watchdog = Watchdog()
            atexit.register(_watchdog.close)
        _watchdog.tell(kind, group)
