"""``antiphon worker --reload``: restarts the worker when a source file changes, for development."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LOOK_SECONDS = 0.3
NO_SOURCES = ("site-packages", "node_modules", "__pycache__")


def run_and_reload(arguments: Sequence[str], folder: Path) -> int:
    """Run ``antiphon worker`` with these arguments, again after each change below the folder, until a signal stops it.

    Returns the exit code of the last worker. A worker that fails, for example with a syntax error, runs again after
    the next change.
    """
    # Python identifies compiled files by second and size: after two quick changes, it would run the old code.
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda given, _: signals.append(given))
    while True:
        before = sources(folder)
        # Ctrl-C reaches the worker once, through us: a second signal would end its turns.
        worker = subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli", "worker", *arguments], env=environ, start_new_session=True
        )
        while not signals and sources(folder) == before:
            time.sleep(LOOK_SECONDS)
        if signals:
            return _stop(worker, signals)
        print("A source file changed: the worker starts again.", file=sys.stderr, flush=True)
        worker.terminate()
        worker.wait()


def _stop(worker: subprocess.Popen[bytes], signals: list[int]) -> int:
    """Forward signals until the worker has ended. Returns its exit code."""
    while worker.poll() is None:
        while signals:
            worker.send_signal(signals.pop(0))
        time.sleep(LOOK_SECONDS / 10)
    return worker.returncode


def sources(folder: Path) -> dict[str, int]:
    """Return the Python files below the folder with their times, except those of installed packages."""
    found: dict[str, int] = {}
    for inside, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in NO_SOURCES and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(inside, name)
                found[path] = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    return found
