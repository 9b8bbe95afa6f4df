"""Worker processes that a test starts, stops, freezes and kills; what they printed is shown when it fails."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from support import forks
from support.eventually import patience, wait_until
from support.guard import guard, release

COMMAND = Path(sys.executable).parent / "antiphon"


class Process:
    """A running command, leader of its own process group."""

    def __init__(self, name: str, argv: list[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        self._swept = False
        with log.open("ab") as output:
            self._process = forks.start(argv, env=env, stdout=output.fileno(), stderr=output.fileno())
        guard(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """Its output so far, including errors."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[int]:
        """Return its child processes that still run (the worker processes of a supervisor)."""
        listing = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in listing.read_text().split()] if listing.exists() else []

    def workers(self) -> list[int]:
        """Return the worker processes of a supervisor that take turns, without standby processes."""
        output = self.output
        return [
            pid
            for pid in self.children()
            if (name := worker_name(pid)) and f"worker {name} takes turns" in output
        ]

    def wait_for_output(self, text: str, timeout: float = 20.0) -> str:
        """Return everything printed once it contains ``text``; fail as soon as the process ends without it."""

        def printed() -> bool:
            ended = not self.running
            if text in self.output:
                return True
            assert not ended, f"{self.name} ended with code {self._process.returncode}:\n{self.output}"
            return False

        wait_until(printed, timeout, f"{self.name} prints {text!r}")
        return self.output

    def wait(self, timeout: float = 30.0) -> int:
        """Return the exit code, once it has ended; ``patience`` extends the limit."""
        try:
            return self._process.wait(patience(timeout))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} did not end within {patience(timeout):g} s:\n{self.output}"
            ) from None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process only, not to its children."""
        self._process.send_signal(number)

    def terminate(self, timeout: float = 30.0) -> int:
        """Send SIGTERM, as an operator does, and return the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def freeze(self) -> None:
        """Stop the whole group with SIGSTOP: it stays alive, but does nothing."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the whole group, as when a host is lost; afterwards none of it is connected any more."""
        if self._swept:
            return
        self._swept = True
        with contextlib.suppress(ProcessLookupError):  # every process of the group may have ended already
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: all(map(gone, _group(self.pid))), 10, f"{self.name} and its children are gone")
        release(self.pid)


class Processes:
    """The processes of one test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.started: list[Process] = []

    def start(self, *argv: str | Path, name: str = "", env: Mapping[str, str] | None = None) -> Process:
        """Start a command with the test's environment and ``env`` on top of it."""
        name = f"{name or Path(argv[0]).name}-{len(self.started) + 1}"
        process = Process(
            name,
            [str(part) for part in argv],
            {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            self._directory / f"{name}.log",
        )
        self.started.append(process)
        return process

    def python(self, *argv: str | Path, name: str = "", env: Mapping[str, str] | None = None) -> Process:
        """Start this interpreter: ``python("-m", "module")``."""
        return self.start(sys.executable, *argv, name=name, env=env)

    def worker(self, redis_url: str, *flags: str, env: Mapping[str, str] | None = None) -> Process:
        """Start ``antiphon worker`` on this Redis."""
        return self.start(COMMAND, "worker", "--redis-url", redis_url, *flags, name="worker", env=env)

    def close(self) -> None:
        for process in self.started:
            process.kill()

    def report(self) -> list[tuple[str, str]]:
        """Return what each process printed, for the report of a failed test."""
        return [(f"output of {process.name} (pid {process.pid})", process.output) for process in self.started]


def _links(pid: int) -> Iterator[str]:
    """Yield the targets of a process's open files, without files it closes in the meantime."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(path)


def worker_name(pid: int) -> str:
    """Return the name of a supervisor's worker process; '' if it has none or has ended."""
    with contextlib.suppress(OSError):
        forked = [
            link.removeprefix("/memfd:worker ").split()[0]
            for link in _links(pid)
            if link.startswith("/memfd:worker ")
        ]
        lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
        executed = [line.partition("=")[2] for line in lines if line.startswith("ANTIPHON_WORKER_NAME=")]
        return [*forked, *executed, ""][0]
    return ""


def _group(leader: int) -> list[int]:
    """Return the processes of a group, including indirect children of its leader."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if _stat(pid)[2:3] == [str(leader)]]


def gone(pid: int) -> bool:
    """Return whether a process has ended."""
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """Return the state, parent, group, … of a process; [] if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
