"""Sockets that a fork must not keep open: the end of one is how another process notices an end."""

from __future__ import annotations

import os
import socket
import weakref

__all__ = ["close_in_forks"]

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forks(one: socket.socket) -> None:
    """Close this socket in every process that is forked from this one, as ``multiprocessing`` does."""
    one.set_inheritable(False)  # nor does a program that is executed get it
    _sockets.add(one)


def _close_all() -> None:
    """Put an empty file in the place of each: its number stays taken, so that no second close hits another file."""
    empty = os.open(os.devnull, os.O_RDWR)
    for one in list(_sockets):
        if one.fileno() >= 0:
            os.dup2(empty, one.fileno(), inheritable=False)
    os.close(empty)


os.register_at_fork(after_in_child=_close_all)
