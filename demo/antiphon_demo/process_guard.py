"""Stops the child processes of this process when it ends, even after ``kill -9``.

A small process reads from a pipe. When the pipe closes with the end of this process, it kills the registered groups of
processes and removes the registered folders.
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
from typing import Any, Literal, Self

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
        groups = [group for group in groups if group != int(what)]
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


class Watchdog:
    """A process that kills registered process groups and removes registered folders after this process has ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _WATCH],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def tell(self, kind: Literal["group", "ended", "folder"], what: object) -> None:
        """Register a process group or a folder, or the end of a group."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {what}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill and remove what is left, and return when that is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Guard:
    """Starts processes in their own process groups and creates temporary folders. Leaving it stops and removes all."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[Any]] = []
        self._folders: list[Path] = []
        self._watchdog = Watchdog()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self) -> Path:
        """Create a temporary folder."""
        path = Path(tempfile.mkdtemp(prefix="antiphon-"))
        self._folders.append(path)
        self._watchdog.tell("folder", path)
        return path

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process that does not receive signals of the terminal."""
        process = subprocess.Popen(command, start_new_session=True, **options)
        self._processes.append(process)
        self._watchdog.tell("group", process.pid)
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
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()
        self._watchdog.tell("ended", process.pid)

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
        self._watchdog.close()
