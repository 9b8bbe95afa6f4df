"""A real terminal for a command: a pty, and the contents of its screen."""

import fcntl
import os
import pty
import signal
import struct
import termios
import threading
from collections.abc import Mapping
from typing import Self

import pyte
from support import forks
from support.eventually import patience, wait_until
from support.guard import guard, release
from support.processes import COMMAND


class Terminal:
    """``antiphon …`` in its own terminal."""

    def __init__(
        self, *argv: str, env: Mapping[str, str] | None = None, columns: int = 130, lines: int = 40
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        variables = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        for name in ("COLUMNS", "LINES"):
            variables.pop(name, None)
        self._process = forks.start([COMMAND, *argv], stdin=slave, stdout=slave, stderr=slave, env=variables)
        guard(self._process.pid)
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        release(self._process.pid)
        self._reader.join(patience(5))
        os.close(self._master)

    @property
    def text(self) -> str:
        """The text on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Return the text on the screen, once it shows this."""
        return self.wait(lambda shown: text in shown, f"the screen shows {text!r}")

    def wait(self, condition, what: str) -> str:
        try:
            wait_until(lambda: condition(self.text), 5, what)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.text}") from None
        return self.text

    def ended(self) -> int:
        """Return the exit code, once it has ended."""
        return self._process.wait(patience(30))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the command has ended
                return
            if not data:
                return
            self.raw += data
            self._stream.feed(data)
