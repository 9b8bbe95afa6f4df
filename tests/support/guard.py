"""No process outlives the tests: what is guarded here is killed when this process is gone, however it went.

One small process per test process reads from a pipe whose other end dies with the test process. It works for
process groups, so that the children of a worker go with it.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading

__all__ = ["guard", "release"]

_WATCH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    sign, group = line[0], int(line[1:])
    groups.add(group) if sign == "+" else groups.discard(group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        continue
"""

_watchdog: subprocess.Popen[str] | None = None
_lock = threading.Lock()


def guard(group: int) -> None:
    """Kill this process group when the test process is gone."""
    _tell("+", group)


def release(group: int) -> None:
    """This process group has ended; its number may be given to another."""
    _tell("-", group)


def _tell(sign: str, group: int) -> None:
    global _watchdog  # noqa: PLW0603 - one watchdog per test process
    with _lock:
        if _watchdog is None:
            _watchdog = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _WATCH],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            atexit.register(_end, _watchdog)
        assert _watchdog.stdin is not None
        _watchdog.stdin.write(f"{sign}{group}\n")
        _watchdog.stdin.flush()


def _end(watchdog: subprocess.Popen[str]) -> None:
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait(timeout=5)
