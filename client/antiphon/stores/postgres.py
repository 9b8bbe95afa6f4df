"""Sessions saved in a PostgreSQL database, for workers on many machines."""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.errors import (
    ClientClosed,
    MissingPackage,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UsageError,
)
from antiphon.stores.base import StampedStore, decode_saved, encode_saved
from antiphon.stores.turns import PostgresTurns

try:
    import psycopg
    from psycopg import sql
    from psycopg.errors import DiskFull, OutOfMemory, ReadOnlySqlTransaction
    from psycopg_pool import ConnectionPool, PoolTimeout
except ImportError as missing:
    raise MissingPackage("PostgresStore needs psycopg: pip install 'antiphon[postgres]'.") from missing

logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # the application decides what is printed

_SCHEMA = """
CREATE TABLE IF NOT EXISTS {table} (
    session_id TEXT COLLATE "C" PRIMARY KEY,
    data TEXT NOT NULL,
    stamp TEXT NOT NULL,
    saved TIMESTAMPTZ NOT NULL DEFAULT now()
)
"""
_SAVE = """
INSERT INTO {table} (session_id, data, stamp) VALUES (%s, %s, %s)
ON CONFLICT (session_id) DO UPDATE SET data = excluded.data, stamp = excluded.stamp, saved = now()
"""
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
PAGE = 1000


class PostgresStore(StampedStore):
    """Stores sessions in a table of the PostgreSQL database at ``url``, which is created on first use.

    Any number of processes on any machines may use it at once. A call takes one of up to ``connections`` connections,
    which are opened as needed and replaced when they break; it raises ``StoreUnavailable`` if none is free within
    ``timeout`` seconds. Saved data is as durable as the database. The store works after a fork. Raises
    ``MissingPackage`` without ``antiphon[postgres]``.

    >>> store = PostgresStore("postgresql://localhost/antiphon")
    >>> store.save("session-1", {"version": 1})
    >>> store.list_sessions()
    ['session-1']
    """

    def __init__(
        self, url: str, *, table: str = "antiphon_sessions", connections: int = 8, timeout: float = 10.0
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise UsageError(f"table= must be a name of small letters, digits and '_', not {table!r}.")
        self.timeout = timeout
        self._url, self._connections = url, connections
        self._table = sql.Identifier(table)
        self._turns = f"{table[:50]}_turns"
        self._lock = threading.Lock()
        self._pool: ConnectionPool | None = None
        self._pid = 0
        self._left: list[
            ConnectionPool
        ] = []  # of the parent process: closing them here would end its connections
        self._closed = self._prepared = False

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str:
        text, stamp = encode_saved(session_id, data).decode(), secrets.token_hex(8)
        with self._connection() as connection:
            connection.execute(self._query(_SAVE), (session_id, text, stamp))
        return stamp

    def load(self, session_id: str) -> dict[str, Any] | None:
        data = self._value("SELECT data FROM {table} WHERE session_id = %s", session_id)
        return None if data is None else decode_saved(session_id, data)

    def delete(self, session_id: str) -> bool:
        with self._connection() as connection:
            query = self._query("DELETE FROM {table} WHERE session_id = %s")
            return connection.execute(query, (session_id,)).rowcount > 0

    def list_sessions(self) -> list[str]:
        return [name for page in self._pages() for name in page]

    def page_of_sessions(self, after: str = "", count: int = 1000) -> list[str]:
        """Return up to ``count`` ids after ``after``, ordered by their bytes, from the index.

        >>> store.page_of_sessions(count=1), store.page_of_sessions(after="session-1")
        (['session-1'], [])
        """
        query = "SELECT session_id FROM {table} WHERE session_id > %s ORDER BY session_id LIMIT %s"
        with self._connection() as connection:
            return [row[0] for row in connection.execute(self._query(query), (after, count))]

    def turn_index(self) -> PostgresTurns:
        """Return the full-text index of turns in this database. Workers create it.

        >>> store.turn_index().exists()
        False
        """
        return PostgresTurns(self._connection, self._query, self._turns)

    def stamp(self, session_id: str) -> str | None:
        return self._value("SELECT stamp FROM {table} WHERE session_id = %s", session_id) or ""

    def close(self) -> None:
        """Close the connections. Calls after this raise ``ClientClosed``.

        >>> with PostgresStore("postgresql://localhost/antiphon") as other:  # closed at the end
        ...     other.load("session-1")
        {'version': 1}
        """
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    def _pages(self) -> Iterator[list[str]]:
        page = self.page_of_sessions(count=PAGE)
        while page:
            yield page
            page = self.page_of_sessions(page[-1], PAGE) if len(page) == PAGE else []

    def _value(self, query: str, session_id: str) -> Any:
        with self._connection() as connection:
            row = connection.execute(self._query(query), (session_id,)).fetchone()
        return row[0] if row else None

    def _query(self, text: str) -> sql.Composed:
        turns, words = sql.Identifier(self._turns), sql.Identifier(f"{self._turns}_words")
        return sql.SQL(text).format(table=self._table, turns=turns, words=words)  # type: ignore[arg-type]

    @contextmanager
    def _connection(self) -> Generator[psycopg.Connection[Any]]:
        """Lend a connection in a transaction, which is committed at the end."""
        with _explained(), self._opened().connection() as connection:
            if not self._prepared:
                # Two processes that create the table at once would collide in the catalogue.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('antiphon'))")
                connection.execute(self._query(_SCHEMA))
                connection.commit()
                self._prepared = True
            yield connection

    def _opened(self) -> ConnectionPool:
        with self._lock:
            if self._closed:
                raise ClientClosed("This PostgresStore is closed: open a new one.")
            if self._pool is not None and self._pid != os.getpid():
                self._left.append(self._pool)
                self._pool = None
            if self._pool is None:
                self._pid = os.getpid()
                self._pool = ConnectionPool(
                    self._url, min_size=0, max_size=self._connections, timeout=self.timeout, open=True,
                    reconnect_timeout=self.timeout,  # its pauses grow: after a long outage, the next call starts over
                    check=ConnectionPool.check_connection, name="antiphon",
                    kwargs={"connect_timeout": max(2, int(self.timeout))},
                )  # fmt: skip
            return self._pool


@contextmanager
def _explained() -> Generator[None]:
    """Raise PostgreSQL's errors as errors of Antiphon, without addresses or keys."""
    try:
        yield
    except (DiskFull, OutOfMemory) as exc:
        raise StoreFull("The PostgreSQL server is full: free some space.") from exc
    except ReadOnlySqlTransaction as exc:
        raise StoreReadOnly(
            "The PostgreSQL server is read-only: check that the URL names the primary."
        ) from exc
    except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as exc:
        raise StoreUnavailable(
            f"The PostgreSQL server is unavailable ({type(exc).__name__}): check the URL, and that the server runs."
        ) from exc
    except psycopg.Error as exc:
        raise StoreError(f"The PostgreSQL server refused a statement: {type(exc).__name__}.") from exc
