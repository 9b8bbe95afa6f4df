"""Reads single keys of a terminal while something else goes on."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["keys_of"]


@contextmanager
def keys_of(descriptor: int) -> Generator[asyncio.Queue[str]]:
    """Give a queue of the keys that are pressed, and put the terminal back as it was."""
    before = termios.tcgetattr(descriptor)
    pressed: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        if not data:
            loop.remove_reader(descriptor)
        if data.startswith(b"\x1b") and len(data) > 1:
            return  # an arrow or the like
        for one in data.decode(errors="ignore"):
            pressed.put_nowait(one)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
