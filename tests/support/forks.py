"""Commands for tests, forked from one process that has imported everything: 0.05 s of CPU instead of 0.7 to 1.5 s.

``start`` works as ``subprocess.Popen`` does for a command of this environment (``antiphon worker``, ``rq worker``) and
for ``python -m MODULE`` of a module of ours; any other command is executed. The forked process has its own session,
environment, folder and streams. The processes that it starts in the same way are also forked, from itself.

Commands with settings that Python reads at its start cannot be forked and are executed: see ``_forkable``. So are
commands with ``TEST_FORKS=no`` in their environment, for a test that finds processes by their data in /proc.
"""

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

BIN = Path(sys.executable).parent
MODULES = ("antiphon", "support", "chaos", "upgrade", "bench")
AT_START = ("LD_PRELOAD", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE")  # read when a process starts
MOST_BYTES = 1 << 20
FORKS = os.environ.get("TEST_FORKS") != "no"


class Running(Protocol):
    """A process that a test has started."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A forked process, used like a ``Popen``."""

    def __init__(self, argv: Sequence[str], pid: int, line: socket.socket) -> None:
        self.args, self.pid, self.returncode = argv, pid, None
        self._line = line
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raises ``TimeoutExpired``."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._line], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
                self.returncode = json.loads(self._line.recv(64))
                self._line.close()
            return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class _Preloaded:
    """The connection of the tests to the forking process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def fork(
        self, argv: list[str], env: Mapping[str, str], cwd: str, streams: Sequence[int]
    ) -> tuple[int, socket.socket]:
        """Fork a process with these streams. Return its pid, and the socket that receives its exit code."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"argv": argv, "env": dict(env), "cwd": cwd}).encode()
        with self._lock, theirs:
            if self._socket is None:
                self._socket = self._start()
            socket.send_fds(self._socket, [request], [theirs.fileno(), *streams])
        started = ours.recv(64)
        assert started, "the process that forks has ended"
        return json.loads(started), ours

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (ours, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.Popen(
            [sys.executable, "-P", Path(__file__).with_name("fork_server.py"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        atexit.register(process.wait)
        atexit.register(ours.close)  # it ends with its socket
        return ours


_preloaded = _Preloaded()


def start(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int,
    stderr: int,
) -> Running:
    """Start a command as the leader of its own session. The streams are descriptors."""
    command, environ = [str(part) for part in argv], dict(os.environ if env is None else env)
    folder = str(cwd or Path.cwd())
    if not (FORKS and environ.get("TEST_FORKS") != "no" and _forkable(command, environ)):
        return subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    given = os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin)
    try:
        pid, line = _preloaded.fork(command, environ, folder, [given, stdout, stderr])
    finally:
        os.close(given)
    return Forked(command, pid, line)


def run(
    argv: Sequence[str | Path],
    *,
    input: str | bytes | None = None,  # noqa: A002 - named like that of subprocess.run
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    timeout: float = 120,
    text: bool = True,
    check: bool = False,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as ``subprocess.run`` does with ``capture_output``."""
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.write(files[0], input.encode() if isinstance(input, str) else input or b"")
        os.lseek(files[0], 0, os.SEEK_SET)
        process = start(
            argv, env=env, cwd=cwd, stdin=files[0],
            stdout=files[1] if stdout is None else stdout, stderr=files[2] if stderr is None else stderr,
        )  # fmt: skip
        try:
            code = process.wait(timeout)
        except BaseException:
            process.send_signal(9)
            raise
        printed = [os.pread(file, os.fstat(file).st_size, 0) for file in files[1:]]
        done = subprocess.CompletedProcess(argv, code, *(part.decode() if text else part for part in printed))
        if check:
            done.check_returncode()
        return done
    finally:
        for file in files:
            os.close(file)


def _forkable(argv: list[str], env: Mapping[str, str]) -> bool:
    if any(env.get(name, here) != here for name in AT_START for here in [os.environ.get(name)]):
        return False
    if any(
        name.startswith("PYTHON") and env[name] != os.environ.get(name) for name in env.keys() - _FOLLOWED
    ):
        return False
    return is_ours(argv)


_FOLLOWED = {"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}


def is_ours(argv: Sequence[str]) -> bool:
    """Return whether a command is a Python script of this environment, or ``python -m`` with a module of ours."""
    if argv[0] == sys.executable:
        return argv[1] == "-m" and argv[2].partition(".")[0].partition("_")[0] in MODULES
    script = Path(argv[0])
    if script.parent != BIN or not script.is_file():
        return False
    with script.open("rb") as file:
        return sys.executable.encode() in file.readline()
