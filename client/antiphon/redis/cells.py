"""Finds the Redis that holds a session.

A deployment that outgrows one Redis uses several cells, whose names determine that of a session. With a list of URLs,
each is a cell: rendezvous hashing of the session's id chooses it, and a new cell takes over only the sessions whose ids
it wins. On a Redis Cluster the number of cells is fixed, and the cluster moves them between its nodes: numbered cells
are chosen by the remainder of a hash.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypedDict, Unpack

from antiphon.errors import SettingsError, UsageError
from antiphon.input.ids import cell_hash
from antiphon.stores.base import SessionStore
from antiphon.wire.cell import Cell
from antiphon.wire.connection.names import in_order
from antiphon.wire.connection.open import cell_urls, open_like, open_redis
from antiphon.wire.keys import PREFIX

URL_VARIABLE = "ANTIPHON_REDIS_URL"
PREFIX_VARIABLE = "ANTIPHON_PREFIX"
_PREFIX = re.compile(r"[A-Za-z0-9_.-]+")


def prefix_of(given: object = None) -> str:
    """Return the first part of every key: the given one, ``ANTIPHON_PREFIX`` or ``ant``. Raises ``SettingsError``."""
    prefix = (os.environ.get(PREFIX_VARIABLE) or PREFIX) if given is None else given
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise SettingsError(
            f"prefix= ({PREFIX_VARIABLE}) may contain letters, digits, '_', '.' and '-' only, not {prefix!r}."
        )
    return prefix


class ServerOptions(TypedDict, total=False):
    """Settings of the connections to each Redis server. ``durability`` is ``replicated`` or ''."""

    max_connections: int
    timeout_seconds: float
    retries: int
    durability: str


class ConnectionOptions(ServerOptions, total=False):
    """The keywords of a client: those of a connection, the prefix of its keys and the default queue of its turns.

    ``archive`` is the store in which the workers keep sessions after their life in Redis, or its URL.
    """

    prefix: str | None
    queue: str
    archive: SessionStore | str | None


class Cells:
    """All cells of one deployment, in any order."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        if not cells:
            raise SettingsError("No Redis given: pass a URL, a list of URLs or a redis-py client.")
        self._cells: dict[str, Cell] = {}
        for cell in cells:
            same = self._cells.setdefault(cell.name, cell)
            if same is not cell and same.address != cell.address:
                raise SettingsError(f"{same.address} and {cell.address} have the same name: {cell.name}.")
        self._numbered = [self._cells[name] for name in in_order([*self._cells])]

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def named(self) -> Iterable[tuple[str, Cell]]:
        """The cells with their names, which do not depend on the order of the URLs."""
        return self._cells.items()

    def of_session(self, session: str) -> Cell:
        """Return the cell of a session."""
        return self.of_hash(cell_hash(session))

    def of_turn(self, turn_id: str) -> Cell:
        """Return the cell of a turn, which its id alone determines."""
        return self.of_hash(turn_id[:10])

    def of_hash(self, session_hash: str) -> Cell:
        if len(self._cells) == 1:
            return next(iter(self._cells.values()))
        if self._numbered:
            number = int.from_bytes(hashlib.sha256(session_hash.encode()).digest()[:8])
            return self._numbered[number % len(self._numbered)]
        winner = max(self._cells, key=lambda name: hashlib.sha256(f"{name}|{session_hash}".encode()).digest())
        return self._cells[winner]

    def check_place(self, cell: Cell, session: str, turn_id: str) -> None:
        """Raise ``UsageError`` if readers would look for this session or this turn on another cell."""
        if len(self._cells) == 1:
            return
        home, here = self.of_session(session).address, cell.address
        if home != here:
            raise UsageError(
                f"The session {session!r} lives on the cell {home}, not on {here}: push its jobs to {home}."
            )
        beginning = cell_hash(session)
        if not turn_id.startswith(beginning):
            raise UsageError(
                f"With several cells, the id of a job of the session {session!r} must begin with {beginning!r}."
            )


def open_cells(redis: Any, *, prefix: str | None = None, **options: Unpack[ServerOptions]) -> Cells:
    """Make cells from a URL, a list of URLs or a redis-py client, without connecting.

    Without them, from ``ANTIPHON_REDIS_URL``. Raises ``SettingsError`` if there is none.
    """
    first = prefix_of(prefix)
    redis = os.environ.get(URL_VARIABLE) if redis is None else redis
    if redis is None or redis == "":
        raise SettingsError(
            f'Pass the URL of Redis, such as "redis://localhost:6379/0", or set {URL_VARIABLE}.'
        )
    given = redis if isinstance(redis, list | tuple) else [redis]
    places = [one for place in given for one in (cell_urls(place) if isinstance(place, str) else [place])]
    opened = [
        open_redis(place, **options) if isinstance(place, str) else open_like(place, **options)
        for place in places
    ]
    return Cells([Cell(one, prefix=first) for one in opened])
