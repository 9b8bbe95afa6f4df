"""Full-text search over finished turns in the database of an archive, and its form in PostgreSQL (``tsvector``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Struct

from antiphon.stores.words import Query, words_of


class IndexedTurn(Struct, frozen=True):
    """A turn in the index, with the text of its user and its model. ``created`` is in ms since 1970."""

    session_id: str
    turn_id: str
    tenant: str | None
    agent: str | None
    created: int
    text: str


class TurnIndex(ABC):
    """An index of turns. Its methods block; they may be called from several threads, and again for the same turns."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the index if it does not exist."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether a worker has created the index."""

    @abstractmethod
    def put(self, turns: Sequence[IndexedTurn]) -> None:
        """Write turns. A turn whose id exists is replaced."""

    @abstractmethod
    def remove(self, turns: Sequence[tuple[str, str]]) -> None:
        """Remove turns, named by session and id, with all of their words."""

    @abstractmethod
    def find(
        self, query: Query, *, tenant: str | None, session: str | None, start: int, count: int
    ) -> list[IndexedTurn]:
        """Return up to ``count`` matching turns from ``start`` on, the best match first."""


COLUMNS = "session_id, turn_id, tenant, agent, created, text"
POSTGRES_TABLES = (
    """
CREATE TABLE IF NOT EXISTS {turns} (
    session_id TEXT COLLATE "C", turn_id TEXT COLLATE "C", tenant TEXT, agent TEXT, created BIGINT NOT NULL,
    text TEXT NOT NULL, words TSVECTOR NOT NULL, PRIMARY KEY (session_id, turn_id)
)""",
    "CREATE INDEX IF NOT EXISTS {words} ON {turns} USING gin (words)",
)
LAST_POSITION = 16383  # of a word in a tsvector


class PostgresTurns(TurnIndex):
    """The index in a PostgreSQL database. ``connection`` lends connections, and ``query`` fills in the names of tables.

    ``name`` is the name of the table of turns.
    """

    def __init__(
        self, connection: Callable[[], AbstractContextManager[Any]], query: Callable[[str], Any], name: str
    ) -> None:
        self._connection, self._query, self._name = connection, query, name

    def prepare(self) -> None:
        with self._connection() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('antiphon'))")
            for table in POSTGRES_TABLES:
                connection.execute(self._query(table))

    def exists(self) -> bool:
        with self._connection() as connection:
            return connection.execute("SELECT to_regclass(%s) IS NOT NULL", (self._name,)).fetchone()[0]

    def put(self, turns: Sequence[IndexedTurn]) -> None:
        sql = f"""
INSERT INTO {{turns}} ({COLUMNS}, words) VALUES (%s, %s, %s, %s, %s, %s, %s::tsvector)
ON CONFLICT (session_id, turn_id) DO UPDATE SET tenant = excluded.tenant, agent = excluded.agent,
created = excluded.created, text = excluded.text, words = excluded.words"""
        with self._connection() as connection:
            for one in turns:
                text = one.text.replace("\0", " ")
                values = (
                    one.session_id,
                    one.turn_id,
                    one.tenant,
                    one.agent,
                    one.created,
                    text,
                    _vector(text),
                )
                connection.execute(self._query(sql), values)

    def remove(self, turns: Sequence[tuple[str, str]]) -> None:
        with self._connection() as connection:
            for turn in turns:
                connection.execute(
                    self._query("DELETE FROM {turns} WHERE (session_id, turn_id) = (%s, %s)"), turn
                )

    def find(
        self, query: Query, *, tenant: str | None, session: str | None, start: int, count: int
    ) -> list[IndexedTurn]:
        sql = f"""
SELECT {COLUMNS} FROM {{turns}}, (SELECT %s::tsquery AS asked) AS query
WHERE words @@ asked AND (%s::text IS NULL OR tenant = %s) AND (%s::text IS NULL OR session_id = %s)
ORDER BY ts_rank_cd(words, asked) DESC, created DESC, session_id, turn_id LIMIT %s OFFSET %s"""
        values = (_tsquery(query), tenant, tenant, session, session, count, start)
        with self._connection() as connection:
            return [IndexedTurn(*row) for row in connection.execute(self._query(sql), values)]


def _vector(text: str) -> str:
    """Return the words of a text with their positions. Words have no quotes, so nothing needs escaping."""
    places = enumerate(words_of(text), 1)
    return " ".join(f"'{word.text}':{min(place, LAST_POSITION)}" for place, word in places)


def _tsquery(query: Query) -> str:
    def parts() -> Iterator[str]:
        for number, phrase in enumerate(query.phrases):
            words = [f"'{word}'" for word in phrase]
            if query.prefix and number == len(query.phrases) - 1:
                words[-1] += ":*"
            yield f"({' <-> '.join(words)})"

    return " & ".join(parts())
