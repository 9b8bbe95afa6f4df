"""Finds the Redis that holds a session.

A deployment that outgrows one Redis uses several cells, whose names determine the cell of a session. With a list of
URLs, each is a cell: rendezvous hashing of the session's id chooses it, and a new cell takes over only the sessions
whose ids it wins. On a Redis Cluster the number of cells is fixed, and the cluster moves them between its nodes:
numbered cells are chosen by the remainder of a hash.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypedDict, Unpack

from antiphon.errors import SettingsError, UsageError
from antiphon.input.ids import cell_hash
from antiphon.stores.base import SessionStore
from antiphon.wire.cell import Cell
from antiphon.wire.connection.names import in_order, names_beside, place_of_cell
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

    ``archive`` is the store in which workers keep sessions after they expire from Redis, or its URL.
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
            if same is not cell and place_of_cell(same.redis) != place_of_cell(cell.redis):
                one, other = place_of_cell(same.redis), place_of_cell(cell.redis)
                raise SettingsError(f"{one} and {other} have the same name: {cell.name}.")
        self._names = [*self._cells]
        """The names of the deployment's cells, as far as the URLs name them."""
        self._numbered: Sequence[str] = ()
        if cells[0].has_disk:  # the cell of this process is the only one
            clusters = {id(names): names for names in (names_beside(cell.redis) for cell in cells)}.values()
            self._names = list(dict.fromkeys(chain(self._cells, *clusters)))
            self._numbered = in_order(self._names)

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells.values())

    def named(self) -> Iterable[tuple[str, Cell]]:
        """Return the cells with their names, which do not depend on the order of the URLs."""
        return self._cells.items()

    def of_session(self, session: str) -> Cell:
        """Return the cell of a session."""
        return self.of_hash(cell_hash(session))

    def of_turn(self, turn_id: str) -> Cell:
        """Return the cell of a turn, which its id alone determines."""
        return self.of_hash(turn_id[:10])

    def of_hash(self, session_hash: str) -> Cell:
        """Return the cell of the sessions with this hash.

        Raises ``UsageError`` if it is on a cluster and the URL names only other cells of that cluster.
        """
        if len(self._names) == 1:
            return next(iter(self._cells.values()))
        name = self._name_of_hash(session_hash)
        if name not in self._cells:
            raise UsageError(
                f"This lives on the cell {name}, which cell= in the Redis URL leaves out: give the URL of the whole "
                "cluster, in a worker in ANTIPHON_CELLS."
            )
        return self._cells[name]

    def _name_of_hash(self, session_hash: str) -> str:
        if self._numbered:
            number = int.from_bytes(hashlib.sha256(session_hash.encode()).digest()[:8])
            return self._numbered[number % len(self._numbered)]
        return max(self._names, key=lambda name: hashlib.sha256(f"{name}|{session_hash}".encode()).digest())

    def check_place(self, cell: Cell, session: str, turn_id: str) -> None:
        """Raise ``UsageError`` if readers would look for this session or this turn on another cell."""
        if len(self._names) == 1:
            return
        home, here = self._name_of_hash(cell_hash(session)), cell.name
        if home != here and not self._is_at(home, cell):
            raise UsageError(
                f"The session {session!r} lives on the cell {home}, not on {here}: push its jobs to {home}."
            )
        beginning = cell_hash(session)
        if not turn_id.startswith(beginning):
            raise UsageError(
                f"With several cells, the id of a job of the session {session!r} must begin with {beginning!r}."
            )

    def _is_at(self, name: str, cell: Cell) -> bool:
        """Return whether the cell with this name is where ``cell`` is: RQ's URLs have no names of cells."""
        found = self._cells.get(name)
        return found is not None and place_of_cell(found.redis) == place_of_cell(cell.redis)


def open_cells(redis: Any, *, prefix: str | None = None, **options: Unpack[ServerOptions]) -> Cells:
    """Make cells from a URL, a list of URLs or a redis-py client, without connecting.

    The default is ``ANTIPHON_REDIS_URL``. Raises ``SettingsError`` if there is none.
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
