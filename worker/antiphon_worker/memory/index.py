"""The index of a memory: its store, asked for the documents of one scope."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_core.documents import Document

    from antiphon.memory.declaration import Memory


class Index:
    """Writes, deletes and finds documents. Raises what the store raises."""

    def __init__(self, memory: Memory) -> None:
        self._store: Any = memory.store
        self._filter = memory.filter or _FILTERS.get(_kind(memory.store), _equal)
        self._in_threads = any(each.__name__ in _IN_THREADS for each in type(memory.store).__mro__)

    async def add(self, documents: Sequence[Document]) -> None:
        """Write documents. Those with a known id replace the former ones."""
        if documents:
            await self._ask("add_documents", list(documents), ids=[one.id for one in documents])

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete documents. It is no error if there are none with these ids."""
        if ids:
            await self._ask("delete", list(ids))

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return the documents with these ids. Raises ``NotImplementedError`` if the store cannot find them."""
        return await self._ask("get_by_ids", list(ids))

    async def search(self, query: str, scope: str, count: int) -> list[Document]:
        """Return the documents of a scope that are nearest to a text, whatever a store makes of the filter."""
        found = await self._ask("similarity_search", query, k=count, filter=self._filter(scope))
        return [one for one in found if one.metadata.get("scope") == scope]

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        if self._in_threads:
            return await asyncio.to_thread(getattr(self._store, method), *args, **options)
        return await getattr(self._store, f"a{method}")(*args, **options)


def _equal(scope: str) -> Mapping[str, str]:
    return {"scope": scope}


def _terms(scope: str) -> Any:
    return [{"term": {"metadata.scope.keyword": scope}}]


def _function(scope: str) -> Any:
    def matches(document: Document) -> bool:
        return document.metadata.get("scope") == scope

    return matches


def _tag(scope: str) -> Any:
    filters = import_module("redisvl.query.filter")  # it comes with the store
    return filters.Tag("scope") == scope


_IN_THREADS = ("PineconeVectorStore",)
"""Stores whose asynchronous methods share a session that each call closes. Their others may be used from any thread."""
_FILTERS = {"ElasticsearchStore": _terms, "InMemoryVectorStore": _function, "RedisVectorStore": _tag}


def _kind(store: object) -> str:
    return next((each.__name__ for each in type(store).__mro__ if each.__name__ in _FILTERS), "")
