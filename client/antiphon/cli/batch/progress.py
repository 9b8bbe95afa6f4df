"""A progress bar on a terminal."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from antiphon.cli.terminal import printable

__all__ = ["Progress"]

EVERY_SECONDS = 0.1
WIDTH = 30


class Progress:
    """How many of ``total`` are done and have failed. A terminal gets a bar of one line, a pipe nothing."""

    def __init__(self, out: TextIO, total: int, done: int = 0, failed: int = 0) -> None:
        self.done = done
        self.failed = failed
        self._out = out
        self._total = total
        self._before = done
        self._shown = out.isatty()
        self._began = time.monotonic()
        self._next = 0.0

    def advance(self, *, failed: bool) -> None:
        """One more is done."""
        self.done += 1
        self.failed += failed
        if self._shown and time.monotonic() >= self._next:
            self._show()

    def note(self, text: str) -> None:
        """Say why it does not go on, above the bar."""
        if self._shown:
            self._out.write(f"\r\x1b[K{printable(text)}\n")
            self._show()

    def end(self) -> None:
        """Leave the line as it is now."""
        if self._shown:
            self._show()
            self._out.write("\n")
            self._out.flush()

    def _show(self) -> None:
        now = time.monotonic()
        self._next = now + EVERY_SECONDS
        rate = (self.done - self._before) / max(now - self._began, 0.001)
        filled = WIDTH * self.done // max(self._total, 1)
        text = f"[{'#' * filled}{'.' * (WIDTH - filled)}] {self.done:,}/{self._total:,}  {rate:,.0f}/s"
        if self.failed:
            text += f"  {self.failed:,} failed"
        if rate and self.done < self._total:
            seconds = (self._total - self.done) / rate
            text += f"  {seconds // 60:.0f}:{seconds % 60:02.0f} left"
        self._out.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        self._out.flush()
