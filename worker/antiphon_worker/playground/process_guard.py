"""Stops the child processes of this process when it ends, also after ``kill -9``.

A small process reads from a pipe whose other end dies with this one, and then kills the groups of processes and
removes the folders that it was told of.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

__all__ = ["Guard"]

_WATCH = """
import os, shutil, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups, folders = [], []
for line in sys.stdin:
    kind, _, what = line.rstrip("\\n").partition(" ")
    if kind == "group":
        groups.append(int(what))
    elif kind == "ended":
        groups.remove(int(what))
    else:
        folders.append(what)
for group in reversed(groups):
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        continue
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""
PATIENCE_SECONDS = 10.0


class Guard:
    """Starts processes in their own process groups and creates temporary folders. Leaving it removes all of them."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[Any]] = []
        self._folders: list[Path] = []
        self._watch = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _WATCH],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self) -> Path:
        """Create a temporary folder."""
        path = Path(tempfile.mkdtemp(prefix="antiphon-"))
        self._folders.append(path)
        self._tell(f"folder {path}")
        return path

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process that does not receive signals of the terminal."""
        process = subprocess.Popen(command, start_new_session=True, **options)
        self._processes.append(process)
        self._tell(f"group {process.pid}")
        return process

    def end(self, process: subprocess.Popen[Any], number: signal.Signals = signal.SIGTERM) -> None:
        """Terminate a process, wait for it, and kill the rest of its group."""
        if process not in self._processes:
            return
        self._processes.remove(process)
        with suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._tell(f"ended {process.pid}")

    def kill(self) -> None:
        """Kill all processes."""
        for process in reversed(self._processes.copy()):
            self.end(process, signal.SIGKILL)

    def close(self) -> None:
        """Stop all processes, the newest first, and remove all folders."""
        for process in reversed(self._processes.copy()):
            self.end(process)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        self._watch.wait()

    def _tell(self, line: str) -> None:
        assert self._watch.stdin is not None
        self._watch.stdin.write(f"{line}\n")
        self._watch.stdin.flush()
