"""Sessions saved in an SQLite database, for one process or several on one machine."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.errors import ClientClosed, StoreError, StoreFull, StoreReadOnly, StoreUnavailable, UsageError
from antiphon.stores.base import StampedStore, decode_saved, encode_saved
from antiphon.stores.sqlite_turns import SQLiteTurns, empty_log

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT PRIMARY KEY,
    data TEXT NOT NULL,
    stamp TEXT NOT NULL
) WITHOUT ROWID
"""
_SAVE = """
INSERT INTO sessions (session_id, data, stamp) VALUES (?, ?, ?)
ON CONFLICT (session_id) DO UPDATE SET data = excluded.data, stamp = excluded.stamp
"""
RETRY_SECONDS = 0.02


class SQLiteStore(StampedStore):
    """Stores sessions in the SQLite file ``path``, which is created on first use.

    The database uses write-ahead logging: readers do not wait for writers. Several processes can use it at once; each
    waits up to ``timeout`` seconds to write, and then raises ``StoreUnavailable``. The store works after a fork.

    >>> store = SQLiteStore("sessions.db")
    >>> store.save("session-1", {"version": 1})
    >>> SQLiteStore("sessions.db").list_sessions()
    ['session-1']
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        self.path = os.fspath(path)
        self.timeout = timeout
        self._lock = threading.Lock()
        self._shared = (
            threading.Lock() if self.path == ":memory:" else None
        )  # an in-memory database exists only in its one connection
        self._idle: list[
            sqlite3.Connection
        ] = []  # guarded by the lock; only one thread uses a connection at a time
        self._left: list[
            sqlite3.Connection
        ] = []  # connections of the parent process: closing them here would release its file locks
        self._pid = os.getpid()
        self._closed = False

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str:
        text, stamp = encode_saved(session_id, data).decode(), secrets.token_hex(8)
        with self._connection() as connection, connection:
            connection.execute(_SAVE, (session_id, text, stamp))
        return stamp

    def load(self, session_id: str) -> dict[str, Any] | None:
        data = self._value("SELECT data FROM sessions WHERE session_id = ?", session_id)
        return None if data is None else decode_saved(session_id, data)

    def delete(self, session_id: str) -> bool:
        with self._connection() as connection:
            with connection:
                deleted = connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
            empty_log(connection)
            return deleted.rowcount > 0

    def list_sessions(self) -> list[str]:
        with self._connection() as connection:
            return [row[0] for row in connection.execute("SELECT session_id FROM sessions")]

    def page_of_sessions(self, after: str = "", count: int = 1000) -> list[str]:
        query = "SELECT session_id FROM sessions WHERE session_id > ? ORDER BY session_id LIMIT ?"
        with self._connection() as connection:
            return [row[0] for row in connection.execute(query, (after, count))]

    def turn_index(self) -> SQLiteTurns:
        """Return the full-text index of turns in this database. Workers create it.

        >>> store.turn_index().exists()
        False
        """
        return SQLiteTurns(self._connection)

    def stamp(self, session_id: str) -> str | None:
        return self._value("SELECT stamp FROM sessions WHERE session_id = ?", session_id) or ""

    def close(self) -> None:
        """Close the database. Calls after this raise ``ClientClosed``.

        >>> with SQLiteStore(":memory:") as other:  # closed at the end
        ...     other.save("session-1", {"version": 1})
        """
        with self._lock:
            self._closed = True
            connections, self._idle = self._idle, []
        if self._pid == os.getpid():
            for connection in connections:
                connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    def _value(self, query: str, session_id: str) -> Any:
        with self._connection() as connection:
            row = connection.execute(query, (session_id,)).fetchone()
        return row[0] if row else None

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        if self._shared is not None:
            with self._shared, self._borrowed() as connection:
                yield connection
        else:
            with self._borrowed() as connection:
                yield connection

    @contextmanager
    def _borrowed(self) -> Generator[sqlite3.Connection]:
        with _explained(self.path):
            connection = self._take()
            try:
                yield connection
            except BaseException:
                if self._shared is None:
                    connection.close()
                else:
                    self._give_back(connection)
                raise
            self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise ClientClosed("This SQLiteStore is closed: open a new one.")
            if self._pid != os.getpid() and self._shared is None:
                self._left += self._idle
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._shared is None and not Path(self.path).parent.is_dir():
            raise UsageError(f"The directory of the SQLiteStore {self.path!r} does not exist.")
        connection = sqlite3.connect(self.path, timeout=self.timeout, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Set the journal mode and create the table. Retries, because SQLite does not wait for other processes here."""
        until = time.monotonic() + self.timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA secure_delete = ON")  # overwrite deleted data in the file
                with connection:
                    connection.execute(_SCHEMA)
                return
            except sqlite3.OperationalError as exc:
                if not _is_busy(exc) or time.monotonic() > until:
                    raise
                time.sleep(RETRY_SECONDS)


def _is_busy(exc: sqlite3.Error) -> bool:
    return (getattr(exc, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _explained(path: str) -> Generator[None]:
    """Raise SQLite's errors as errors of Antiphon."""
    try:
        yield
    except sqlite3.Error as exc:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if _is_busy(exc):
            raise StoreUnavailable(f"The database {path!r} is locked by another process: try again.") from exc
        if code == sqlite3.SQLITE_FULL:
            raise StoreFull(f"The disk of the database {path!r} is full: free some space.") from exc
        if code == sqlite3.SQLITE_READONLY:
            raise StoreReadOnly(f"The database {path!r} is read-only: check its permissions.") from exc
        raise StoreError(f"The database {path!r} is unusable: {exc}.") from exc
