"""Tools that harm the process that runs them."""

import ctypes
import os
import re
import signal
from collections.abc import Callable
from typing import Any

from antiphon.tools import Tool, tool


def harmful_tools(harms: Callable[[str, str], bool]) -> list[Tool[..., Any]]:
    """Return the tools; ``harms(name, text)`` decides whether a call does harm."""

    @tool
    async def spin(text: str) -> str:
        """Keep the event loop for ever; other threads go on."""
        while harms("spin", text):
            _for_ever()
        return "spun"

    @tool
    def freeze(text: str) -> str:
        """Keep the interpreter's lock for ever: no Python runs in this process any more."""
        if harms("freeze", text):
            re.match("(a|a)*$", "a" * 64 + "b")
        return "frozen"

    @tool
    async def fork(text: str) -> str:
        """Leave a process behind that has everything open which this one had, and die.

        The C library forks: Python, which closes some of it in its own forks, does not hear of this one.
        """
        if harms("fork", text):
            if ctypes.CDLL(None).fork() == 0:
                ctypes.CDLL(None).sleep(60)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return "forked"

    @tool
    async def leave(text: str) -> str:
        """End the process with the exit code that the text begins with, as a library may that gives up."""
        if harms("leave", text):
            os._exit(int(text.split(maxsplit=1)[0]))
        return "stayed"

    return [spin, freeze, fork, leave]


def _for_ever() -> None:
    while True:
        pass
