"""Sockets that a fork must not keep open, because another process notices an end by the closed socket."""

from __future__ import annotations

import os
import socket
import weakref

__all__ = ["close_in_forks"]

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forks(one: socket.socket) -> None:
    """Close this socket in every process that is forked from this one, as ``multiprocessing`` does."""
    one.set_inheritable(False)  # an executed program does not get it either
    _sockets.add(one)


def _close_all() -> None:
    """Replace each with an empty file, which keeps the number in use, so that a second close hits no other file."""
    empty = os.open(os.devnull, os.O_RDWR)
    for one in list(_sockets):
        if one.fileno() >= 0:
            os.dup2(empty, one.fileno(), inheritable=False)
    os.close(empty)


os.register_at_fork(after_in_child=_close_all)
