"""``FaissStore``: a vector store in a folder, for the processes of one machine."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from heapq import nlargest
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
_SINCE = "SELECT place, id, metadata, vector FROM documents WHERE place > ? ORDER BY place"
_Row: TypeAlias = tuple[str, str, str]

MOST_NUMBERS = 4_000_000  # in the vectors that are searched on the event loop, which takes about 0.3 ms
MOST_CHANGES = 64  # that are read on the event loop


class FaissStore(VectorStore):
    """A vector store in a folder, which several processes of one machine may use at once. FAISS searches it.

    An SQLite file in the folder contains the documents. Each process keeps their vectors in memory, and reads the
    changes of other processes before each search. When ``add_documents`` returns, the documents survive a crash. A
    document whose id exists is replaced; ``delete`` ignores unknown ids. ``filter=`` is a dictionary of metadata that
    must be equal. ``timeout`` is how long to wait for other writers, in seconds.

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
        """The embeddings of the store.

        >>> store.embeddings.size
        512
        """
        return self._embeddings

    def add_texts(
        self, texts: Iterable[str], metadatas: list[dict[str, Any]] | None = None, *,
        ids: Sequence[str | None] | None = None, **kwargs: Any,
    ) -> list[str]:  # fmt: skip
        """Embed texts and save all of them or none. Return their ids. Raises ``StoreUnavailable``.

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
        """Delete documents, ignoring unknown ids. None deletes all. Raises ``StoreUnavailable``.

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
            if known:  # delete them from the write-ahead log, too
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, without those that do not exist.

        >>> [found.page_content for found in store.get_by_ids(["a", "unknown"])]
        ['I drink green tea.']
        """
        with self._open() as database:
            rows = [_row(database, one) for one in ids]
        return [_document(row) for row in rows if row]

    def similarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any  # noqa: A002
    ) -> list[Document]:  # fmt: skip
        """Return the ``k`` documents nearest to a text, the nearest first.

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
        return self._nearest(self._embeddings.embed_query(query), k, filter or {})

    async def asimilarity_search(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any  # noqa: A002
    ) -> list[Document]:  # fmt: skip
        """``similarity_search``, awaited. Only a search that may take long uses a thread.

        >>> await store.asimilarity_search("tea", filter={"user": "alice"})
        []
        """
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, filter)]

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, filter: Mapping[str, Any] | None = None, **kwargs: Any  # noqa: A002
    ) -> list[tuple[Document, float]]:  # fmt: skip
        """``similarity_search_with_score``, awaited.

        >>> [(found.id, round(cosine, 2)) for found, cosine in await store.asimilarity_search_with_score("tea")]
        [('a', 0.35)]
        """
        vector, having = await self._embeddings.aembed_query(query), filter or {}
        found = self._nearest_at_once(vector, k, having)
        return await asyncio.to_thread(self._nearest, vector, k, having) if found is None else found

    def _nearest(
        self, vector: Sequence[float], k: int, having: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        with self._open() as database:
            self._vectors.read(database.execute(_SINCE, (self._vectors.read_to,)).fetchall())
            return self._vectors.documents(database, vector, k, having)

    def _nearest_at_once(
        self, vector: Sequence[float], k: int, having: Mapping[str, Any]
    ) -> list[tuple[Document, float]] | None:
        """``_nearest``, or None if another thread has the database, or the search may take long."""
        if self._pid != os.getpid() or not self._lock.acquire(blocking=False):
            return None
        try:
            database = self._database
            if database is None or self._vectors.numbers(having) > MOST_NUMBERS:
                return None
            changes = database.execute(_SINCE, (self._vectors.read_to,)).fetchmany(MOST_CHANGES + 1)
            if len(changes) > MOST_CHANGES:
                return None
            self._vectors.read(changes)
            with _on_this_core():
                return self._vectors.documents(database, vector, k, having)
        except sqlite3.OperationalError:
            return None  # the thread retries, and reports the error
        finally:
            self._lock.release()

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda cosine: max(0.0, min(1.0, cosine))

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: list[dict[str, Any]] | None = None, *,
        ids: list[str] | None = None, folder: str | os.PathLike[str] = "memory", **kwargs: Any,
    ) -> Self:  # fmt: skip
        """Create a store with these texts in ``folder``.

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
        """Lend the database to one thread at a time. A forked process opens its own."""
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
    """The vectors of a process and their metadata. Each change is read once, by its place in the file.

    Each value of the metadata ``scope`` has its own index, so the time of a search depends on the size of its scope.
    """

    def __init__(self) -> None:
        self.read_to = -1
        self._indexes: dict[Any, Any] = {}
        self._places: dict[str, int] = {}
        self._having: dict[tuple[str, Any], set[int]] = {}
        self._metadata: dict[int, dict[str, Any]] = {}

    def read(self, rows: Sequence[Any]) -> None:
        """Read the changes since the last call. Each change has a higher place than all earlier ones."""
        if not rows:
            return
        self._remove([row[1] for row in rows])
        added: dict[Any, list[tuple[int, bytes]]] = {}
        for place, name, metadata, vector in rows:
            if vector is not None:
                self._places[name] = place
                self._metadata[place] = about = json.loads(metadata)
                for item in _comparable(about):
                    self._having.setdefault(item, set()).add(place)
                added.setdefault(_scope(about), []).append((place, vector))
        for scope, vectors in added.items():
            self._add(scope, vectors)
        self.read_to = rows[-1][0]

    def numbers(self, having: Mapping[str, Any]) -> int:
        """Count the numbers of the vectors that a search compares."""
        return sum(index.ntotal * index.d for index in self._searched(having))

    def documents(
        self, database: sqlite3.Connection, vector: Sequence[float], k: int, having: Mapping[str, Any]
    ) -> list[tuple[Document, float]]:
        """Return the nearest documents with this metadata, and the cosines."""
        found = self._nearest(_unit(np.asarray(vector, np.float32)[None, :]), k, having)
        rows = _rows_at(database, [place for place, _ in found])
        return [
            (_with_text(*rows[place], self._metadata[place]), score)
            for place, score in found
            if place in rows
        ]

    def _nearest(self, vector: Any, k: int, having: Mapping[str, Any]) -> list[tuple[int, float]]:
        """Return the places of the nearest vectors with this metadata, and the cosines."""
        options = self._selected(having)
        found: list[tuple[int, float]] = []
        if options is None or k < 1:
            return found
        for index in self._searched(having):
            scores, places = index.search(vector, min(k, index.ntotal), **options)
            found += zip(places[0].tolist(), scores[0].tolist(), strict=True)
        return nlargest(k, (one for one in found if one[0] >= 0), key=lambda one: one[1])

    def _searched(self, having: Mapping[str, Any]) -> list[Any]:
        if "scope" not in having:
            return [*self._indexes.values()]
        index = self._indexes.get(_scope(having))
        return [] if index is None else [index]

    def _selected(self, having: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the options that limit an index's search to this metadata, or None if no document has it."""
        if having.keys() <= {"scope"} and having.get("scope", "") is not None:
            return {}  # the index has no other documents
        sets = [self._having.get((key, _frozen(value)), set[int]()) for key, value in having.items()]
        places: set[int] = set.intersection(*sets)
        if not places:
            return None
        known: Any = faiss  # its types leave keywords out
        selector = known.IDSelectorBatch(np.fromiter(places, np.int64, len(places)))
        return {"params": known.SearchParameters(sel=selector)}

    def _add(self, scope: Any, vectors: Sequence[tuple[int, bytes]]) -> None:
        numbers = np.stack([np.frombuffer(vector, np.float32) for _, vector in vectors])
        if scope not in self._indexes:
            self._indexes[scope] = faiss.IndexIDMap2(faiss.IndexFlatIP(numbers.shape[1]))
        places = np.array([place for place, _ in vectors], np.int64)
        self._indexes[scope].add_with_ids(_unit(numbers), places)

    def _remove(self, names: Iterable[str]) -> None:
        gone: dict[Any, list[int]] = {}
        for name in dict.fromkeys(names):
            if (place := self._places.pop(name, None)) is not None:
                about = self._metadata.pop(place)
                for item in _comparable(about):
                    self._having[item].discard(place)
                gone.setdefault(_scope(about), []).append(place)
        for scope, places in gone.items():
            index = self._indexes[scope]
            index.remove_ids(np.array(places, np.int64))
            if not index.ntotal:
                del self._indexes[scope]


@contextmanager
def _on_this_core() -> Generator[None]:
    """Let FAISS search without OpenMP threads: a short search would mostly wait for them to start."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # for this thread only
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _unit(vectors: Any) -> Any:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _comparable(metadata: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, _frozen(value)) for key, value in metadata.items()]


def _frozen(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value, sort_keys=True)


def _scope(metadata: Mapping[str, Any]) -> Any:
    return _frozen(metadata.get("scope"))


def _row(database: sqlite3.Connection, name: str) -> _Row | None:
    query = "SELECT id, text, metadata FROM documents WHERE id = ? AND text IS NOT NULL"
    return cast("_Row | None", database.execute(query, (name,)).fetchone())


def _rows_at(database: sqlite3.Connection, places: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return the ids and texts of the documents at these places, without those that do not exist."""
    wanted = json.dumps(places)
    query = "SELECT place, id, text FROM documents WHERE place IN (SELECT value FROM json_each(?))"
    return {
        place: (name, text) for place, name, text in database.execute(query, (wanted,)) if text is not None
    }


def _document(row: _Row) -> Document:
    return _with_text(row[0], row[1], json.loads(row[2]))


def _with_text(name: str, text: str, metadata: Mapping[str, Any]) -> Document:
    return Document(id=name, page_content=text, metadata={**metadata})
