"""Colours of a terminal, where they help and are wanted."""

from __future__ import annotations

import os
from typing import TextIO

from antiphon.cli.terminal import printable

__all__ = ["Paint", "coloured"]

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def coloured(out: TextIO) -> bool:
    """Whether to colour what is written there: a terminal, unless ``NO_COLOR`` is set or it is a dumb one."""
    if os.environ.get("NO_COLOR"):
        return False
    return out.isatty() and os.environ.get("TERM") != "dumb"


class Paint:
    """Colours text for one output, and removes what a terminal would obey. Where colours are not wanted, it adds none.

    >>> import io
    >>> Paint(io.StringIO())("failed", "red")
    'failed'
    """

    def __init__(self, out: TextIO) -> None:
        self._on = coloured(out)

    def __call__(self, text: str, *styles: str) -> str:
        text = printable(text)
        if not self._on or not text or not styles:
            return text
        codes = ";".join(str(_CODES[style]) for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"
