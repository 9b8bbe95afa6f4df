"""Full-text search over finished turns in an archive's SQLite file (FTS5).

It is a separate module so that a worker without such an archive does not load SQLite.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from antiphon.stores.turns import COLUMNS, IndexedTurn, TurnIndex
from antiphon.stores.words import Query, words_of

SQLITE_TABLES = (
    """
CREATE TABLE IF NOT EXISTS antiphon_turns (
    id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, turn_id TEXT NOT NULL, tenant TEXT, agent TEXT,
    created INTEGER NOT NULL, text TEXT NOT NULL, UNIQUE (session_id, turn_id)
)""",
    # The words come from `words_of`: for this tokenizer, all non-ASCII characters are letters.
    "CREATE VIRTUAL TABLE IF NOT EXISTS antiphon_words USING fts5(words, tokenize = 'ascii')",
)
SECURE_DELETE = (3, 42, 0)
"""The first version of SQLite whose index overwrites the words of a removed row. Older ones rewrite the index."""


class SQLiteTurns(TurnIndex):
    """The index in an SQLite file. ``connection`` lends connections."""

    def __init__(self, connection: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        self._connection = connection

    def prepare(self) -> None:
        with self._connection() as connection, connection:
            for table in SQLITE_TABLES:
                connection.execute(table)
            if sqlite3.sqlite_version_info >= SECURE_DELETE:
                connection.execute(
                    "INSERT INTO antiphon_words(antiphon_words, rank) VALUES ('secure-delete', 1)"
                )

    def exists(self) -> bool:
        with self._connection() as connection:
            named = "SELECT 1 FROM sqlite_master WHERE name = 'antiphon_words'"
            return connection.execute(named).fetchone() is not None

    def put(self, turns: Sequence[IndexedTurn]) -> None:
        with self._connection() as connection, connection:
            _remove(connection, [(one.session_id, one.turn_id) for one in turns])
            for one in turns:
                values = (one.session_id, one.turn_id, one.tenant, one.agent, one.created, one.text)
                added = connection.execute(
                    f"INSERT INTO antiphon_turns ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values
                )
                words = " ".join(word.text for word in words_of(one.text))
                connection.execute(
                    "INSERT INTO antiphon_words (rowid, words) VALUES (?, ?)", (added.lastrowid, words)
                )

    def remove(self, turns: Sequence[tuple[str, str]]) -> None:
        with self._connection() as connection:
            with connection:
                _remove(connection, turns)
            empty_log(connection)

    def find(
        self, query: Query, *, tenant: str | None, session: str | None, start: int, count: int
    ) -> list[IndexedTurn]:
        sql = f"""
SELECT {COLUMNS} FROM antiphon_words JOIN antiphon_turns ON id = antiphon_words.rowid
WHERE antiphon_words MATCH ? AND (? IS NULL OR tenant = ?) AND (? IS NULL OR session_id = ?)
ORDER BY antiphon_words.rank, created DESC, id LIMIT ? OFFSET ?"""
        phrases = [f'"{" ".join(phrase)}"' for phrase in query.phrases]
        matched = " AND ".join(phrases) + (" *" if query.prefix else "")
        values = (matched, tenant, tenant, session, session, count, start)
        with self._connection() as connection:
            return [IndexedTurn(*row) for row in connection.execute(sql, values)]


def empty_log(connection: sqlite3.Connection) -> None:
    """Remove deleted data from the write-ahead log, which otherwise keeps it until it is overwritten.

    Waits for readers up to the timeout of the connection. If they are still reading then, the next call empties the
    log.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _remove(connection: sqlite3.Connection, turns: Sequence[tuple[str, str]]) -> None:
    removed = False
    for turn in turns:
        row = connection.execute(
            "DELETE FROM antiphon_turns WHERE (session_id, turn_id) = (?, ?) RETURNING id", turn
        )
        for (number,) in row.fetchall():
            connection.execute("DELETE FROM antiphon_words WHERE rowid = ?", (number,))
            removed = True
    if removed and sqlite3.sqlite_version_info < SECURE_DELETE:
        connection.execute("INSERT INTO antiphon_words (antiphon_words) VALUES ('optimize')")
