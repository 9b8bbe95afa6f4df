"""Sockets that a fork must not keep open: whoever is at the other end has to notice when this process ends."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["close_in_forks"]


class HasNumber(Protocol):
    def fileno(self) -> int:
        """Return the number of the open file, or -1."""
        ...


_open: weakref.WeakSet[HasNumber] = weakref.WeakSet()


def close_in_forks(one: HasNumber) -> None:
    """Close this socket in every process that is forked from this one, as ``multiprocessing`` does."""
    os.set_inheritable(one.fileno(), False)  # an executed program does not get it either
    _open.add(one)


def _close_all() -> None:
    """Replace each with an empty file, which keeps the number in use, so that a second close hits no other file."""
    empty = os.open(os.devnull, os.O_RDWR)
    for one in list(_open):
        number = one.fileno()
        if number >= 0:
            os.dup2(empty, number, inheritable=False)
    os.close(empty)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
