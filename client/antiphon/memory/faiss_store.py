"""``FaissStore``: a vector store in a folder, for the processes of one machine."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias, cast

import faiss  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from antiphon.errors import StoreUnavailable, UsageError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    text TEXT,
    metadata TEXT,
    vector BLOB
)
"""
_WRITE = "INSERT OR REPLACE INTO documents (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
_Row: TypeAlias = tuple[str, str, str]


class FaissStore(VectorStore):
    """A vector store in a folder, which several processes of one machine may use at once. FAISS searches it.

    The documents stand in an SQLite file of the folder; each process keeps their vectors in memory, and reads before
    each search what others have changed. What ``add_documents`` has returned survives a crash. A document with a known
    id replaces the one before, and an unknown id is no error for ``delete``. ``filter=`` is a dictionary of metadata
    that must be equal. ``timeout`` is how long to wait for other writers, in seconds.

    >>> from antiphon.memory import WordEmbeddings
    >>> store = FaissStore("recollections", WordEmbeddings())
    >>> store.add_texts(["I drink green tea."], ids=["a"])
    ['a']
    >>> [found.page_content for found in store.similarity_search("tea?")]
    ['I drink green tea.']
    """

    def __init__(
        self, folder: str | os.PathLike[str], embeddings: Embeddings, *, timeout: float = 10.0
    ) -> None:
        self.folder = Path(folder)
        self.timeout = timeout
        self._embeddings = embeddings
        self._lock = threading.Lock()
        self._vectors = _Vectors()
        self._pid = 0
        self._database: sqlite3.Connection | None = None

    @property
    def embeddings(self) -> Embeddings:
        """What embeds the texts.

        >>> store.embeddings.size
        512
        """
        return self._embeddings

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, *,
        ids: Sequence[str | None] | None = None, **kwargs: Any,
    ) -> list[str]:  # fmt: skip
        """Embed texts and save them; all of them, or none. Returns their ids. Raises ``StoreUnavailable``.

        >>> store.add_texts(["I drink black tea."], [{"user": "alice"}], ids=["a"])  # in the place of the former
        ['a']
        """
        contents = list(texts)
        known = [*(ids or [None] * len(contents))]
        about = metadatas or [{} for _ in contents]
        if not len(contents) == len(known) == len(about):
            raise UsageError("Give as many ids and metadatas as texts.")
        named = [one or str(uuid.uuid4()) for one in known]
        vectors = [
            np.asarray(each, np.float32).tobytes() for each in self._embeddings.embed_documents(contents)
        ]
        rows = zip(named, contents, map(json.dumps, about), vectors, strict=True)
        with self._open() as database, database:
            database.executemany(_WRITE, rows)
        return named

    def delete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents; unknown ids are passed over. None deletes all. Raises ``StoreUnavailable``.

        >>> store.delete(["a", "unknown"])
        True
        """
        with self._open() as database:
            with database:
                if ids is None:
                    ids = [
                        row[0] for row in database.execute("SELECT id FROM documents WHERE text IS NOT NULL")
                    ]
                known = [one for one in ids if _row(database, one)]
                database.executemany(_WRITE, [(one, None, None, None) for one in known])
            if known:  # nor in the write-ahead log
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids that there are.

        >>> [found.page_content for found in store.get_by_ids(["a", "unknown"])]
        ['I drink green tea.']
        """
        with self._open() as database:
            rows = [_row(database, one) for one in ids]
        return [_document(row) for row in rows if row]

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any  # noqa: A002
    ) -> list[Document]:  # fmt: skip
        """Return the ``k`` documents that are nearest to a text, the nearest first.

        >>> store.similarity_search("tea", filter={"user": "alice"})
        []
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, filter)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any  # noqa: A002
    ) -> list[tuple[Document, float]]:  # fmt: skip
        """``similarity_search``, with the cosine of the angle between the text and each document.

        >>> [(found.id, round(cosine, 2)) for found, cosine in store.similarity_search_with_score("tea")]
        [('a', 0.35)]
        """
        vector = np.asarray(self._embeddings.embed_query(query), np.float32)
        with self._open() as database:
            self._vectors.read(database)
            found = self._vectors.nearest(vector, k, filter or {})
            rows = [(_row_at(database, place), score) for place, score in found]
        return [(_document(row), score) for row, score in rows if row]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: max(0.0, min(1.0, cosine))

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, *,
        ids: list[str] | None = None, folder: str | os.PathLike[str] = "memory", **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Make a store of these texts in ``folder``.

        >>> other = FaissStore.from_texts(["One."], WordEmbeddings(), folder="others")
        """
        store = cls(folder, embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def close(self) -> None:
        """Close the file. The next call opens it again.

        >>> store.close()
        """
        with self._lock:
            if self._database is not None and self._pid == os.getpid():
                self._database.close()
            self._database, self._vectors = None, _Vectors()

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        """Hold the database, for one thread at a time. A process that was forked opens its own."""
        with self._lock:
            try:
                if self._database is None or self._pid != os.getpid():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._database, self._pid, self._vectors = self._connect(), os.getpid(), _Vectors()
                yield self._database
            except (sqlite3.OperationalError, OSError) as exc:
                raise StoreUnavailable(f"The memory in {str(self.folder)!r} is unavailable: {exc}.") from exc

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.folder / "memory.db", timeout=self.timeout, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA secure_delete=ON")  # what was deleted is not left in the file
        database.execute(_SCHEMA)
        return database


class _Vectors:
    """The vectors of a process, and which metadata they have: a change is read once, by its place in the file."""

    def __init__(self) -> None:
        self._read_to = -1
        self._index: Any = None
        self._places: dict[str, int] = {}
        self._having: dict[tuple[str, Any], set[int]] = {}
        self._metadata: dict[int, dict[str, Any]] = {}

    def read(self, database: sqlite3.Connection) -> None:
        """Read what has changed since the last time. A change has a higher place than all before it."""
        rows = database.execute(
            "SELECT place, id, metadata, vector FROM documents WHERE place > ? ORDER BY place",
            (self._read_to,),
        ).fetchall()
        if not rows:
            return
        self._read_to = rows[-1][0]
        self._remove([row[1] for row in rows])
        kept = [row for row in rows if row[3] is not None]
        for place, name, metadata, _ in kept:
            self._places[name] = place
            self._metadata[place] = about = json.loads(metadata)
            for item in _comparable(about):
                self._having.setdefault(item, set()).add(place)
        if kept:
            vectors = np.stack([np.frombuffer(row[3], np.float32) for row in kept])
            self._add(vectors, np.array([row[0] for row in kept], np.int64))

    def nearest(self, vector: Any, k: int, having: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Return the places of the nearest vectors with this metadata, and the cosines."""
        if self._index is None or not self._index.ntotal or k < 1:
            return []
        options: dict[str, Any] = {}
        if having:
            sets = [self._having.get((key, _frozen(value)), set[int]()) for key, value in having.items()]
            places: set[int] = set.intersection(*sets)
            if not places:
                return []
            known: Any = faiss  # its types leave keywords out
            selector = known.IDSelectorBatch(np.fromiter(places, np.int64, len(places)))
            options["params"] = known.SearchParameters(sel=selector)
        scores, found = self._index.search(_unit(vector[None, :]), min(k, self._index.ntotal), **options)
        pairs = zip(found[0].tolist(), scores[0].tolist(), strict=True)
        return [(place, score) for place, score in pairs if place >= 0]

    def _add(self, vectors: Any, places: Any) -> None:
        if self._index is None:
            self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(vectors.shape[1]))
        self._index.add_with_ids(_unit(vectors), places)

    def _remove(self, names: Iterable[str]) -> None:
        gone = [self._places.pop(name) for name in dict.fromkeys(names) if name in self._places]
        for place in gone:
            for item in _comparable(self._metadata.pop(place)):
                self._having[item].discard(place)
        if gone:
            self._index.remove_ids(np.array(gone, np.int64))


def _unit(vectors: Any) -> Any:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _comparable(metadata: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, _frozen(value)) for key, value in metadata.items()]


def _frozen(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value, sort_keys=True)


def _row(database: sqlite3.Connection, name: str) -> _Row | None:
    return _first(database, "id", name)


def _row_at(database: sqlite3.Connection, place: int) -> _Row | None:
    return _first(database, "place", place)


def _first(database: sqlite3.Connection, column: str, value: object) -> _Row | None:
    query = f"SELECT id, text, metadata FROM documents WHERE {column} = ? AND text IS NOT NULL"
    return cast("_Row | None", database.execute(query, (value,)).fetchone())


def _document(row: _Row) -> Document:
    return Document(id=row[0], page_content=row[1], metadata=json.loads(row[2]))
