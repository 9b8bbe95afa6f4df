"""Chunks of turns as documents of a memory's store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from antiphon.encryption.keyring import Keyring
from antiphon.encryption.values import Values
from antiphon.errors import CorruptRecord, StoreUnavailable
from antiphon.wire.lists.memories import TakenSession
from antiphon_worker.loop.toolbox import is_stop
from antiphon_worker.memory.passages import MOST_PASSAGES, Plan, TurnText, document_id

if TYPE_CHECKING:
    from langchain_core.documents import Document

    from antiphon.memory.declaration import Memory


log = logging.getLogger("antiphon.memory")

STORE_SECONDS = 30.0


class Documents:
    """The ``Work`` of an ``Indexer`` for a memory: the documents of each turn, under ids that never change."""

    at_once = 32
    lease_seconds = 60.0
    most_turns: int | None = None

    def __init__(self, prefix: str, memory: Memory, seal: Values) -> None:
        self.cursor = memory.name
        self.replaces: Memory | None = memory.replaces
        self._prefix = prefix
        self._memory = memory
        self._seal = seal
        self._index = Index(memory, seal.ring)
        self._former = None if memory.replaces is None else Index(memory.replaces, seal.ring)
        self._warned = False

    def value(self, taken: TakenSession, text: TurnText) -> str:
        """Return what Redis keeps of a turn: it changes with the chunks, and with the key that encrypts them."""
        if not self._seal.on:
            return text.digest
        count, _, digest = text.digest.partition(":")
        return f"{count}:{self._seal.digests(taken.session_id, digest)[0][:12]}"

    async def write(self, plans: Sequence[Plan]) -> None:
        """Delete and write the documents of these plans, all at once. Raises what the store raises."""
        forgotten = [one for plan in plans for one in self._ids(plan.taken.session_id, plan.replaced)]
        documents = [
            one for plan in plans for text in plan.texts for one in self._documents(plan.taken, text)
        ]
        async with asyncio.timeout(STORE_SECONDS):
            await self._index.delete(forgotten)
            await self._index.add(documents)

    async def undo(self, plan: Plan, turns: Sequence[str]) -> None:
        """Delete the documents of turns that were written too late. Raises what the store raises."""
        async with asyncio.timeout(STORE_SECONDS):
            await self._index.delete(self._ids(plan.taken.session_id, turns))

    async def former(self, taken: TakenSession, turn: str) -> TurnText | None:
        """Return the text of a turn in the memory that this one replaces, or None.

        Raises ``StoreUnavailable``.
        """
        if self.replaces is None or self._former is None:
            return None
        ids = _ids(self._prefix, self.replaces, taken.session_id, turn)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                found = {one.id: one for one in await self._former.documents(ids)}
        except NotImplementedError:
            self._warn(self.replaces.name)
            return None
        except BaseException as exc:
            if is_stop(exc):
                raise
            raise StoreUnavailable(
                f"The memory {self.replaces.name} is unavailable: {type(exc).__name__}."
            ) from exc
        passages = [found[one] for one in ids if one in found]
        if not passages:
            return None
        about, texts = passages[0].metadata, [one.page_content for one in passages]
        return TurnText(turn, about["agent"] or None, about["created"], texts, about["tenant"] or None)

    def _warn(self, former: str) -> None:
        if not self._warned:
            log.warning(
                "the store of the memory %s cannot return documents by their ids: turns that Redis no longer has "
                "are not taken over", former, extra={"action": "memory_left_behind"},
            )  # fmt: skip
        self._warned = True

    def _documents(self, taken: TakenSession, text: TurnText) -> list[Document]:
        from langchain_core.documents import Document  # workers without a memory do not have it

        tenant = text.tenant or taken.tenant
        about = {
            "scope": self._memory.scope_key(self._prefix, tenant, text.agent, taken.session_id),
            "session_id": taken.session_id,
            "turn_id": text.turn_id,
            "tenant": tenant or "",
            "agent": text.agent or "",
            "created": text.created,
        }
        return [
            Document(
                id=document_id(self._prefix, self._memory, taken.session_id, text.turn_id, number),
                page_content=passage,
                metadata=dict(about),
            )
            for number, passage in enumerate(text.passages)
        ]

    def _ids(self, session_id: str, turns: Sequence[str]) -> list[str]:
        return [one for turn in turns for one in _ids(self._prefix, self._memory, session_id, turn)]


def _ids(prefix: str, memory: Memory, session_id: str, turn: str) -> list[str]:
    """Return all ids that documents of a turn may have."""
    return [document_id(prefix, memory, session_id, turn, number) for number in range(MOST_PASSAGES)]


class Index:
    """Writes, deletes and finds documents, encrypted with the keys of ``ring``. Raises what the store raises."""

    def __init__(self, memory: Memory, ring: Keyring | None = None) -> None:
        self._ring = ring
        self._store: Any = memory.store
        self._filter = memory.filter or _FILTERS.get(_kind(memory.store), _equal)
        self._in_threads = any(each.__name__ in _IN_THREADS for each in type(memory.store).__mro__)

    async def add(self, documents: Sequence[Document]) -> None:
        """Write documents. A document whose id exists is replaced."""
        if documents:
            sealed = [self._sealed(one) for one in documents]
            await self._ask("add_documents", sealed, ids=[one.id for one in documents])

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete documents. Ids without a document are ignored."""
        if ids:
            await self._ask("delete", list(ids))

    async def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return the documents with these ids. Raises ``NotImplementedError`` if the store cannot find them."""
        return self._opened(await self._ask("get_by_ids", list(ids)))

    async def search(self, query: str, scope: str, count: int) -> list[Document]:
        """Return the documents of a scope that are nearest to a text, even if the store ignores the filter."""
        if self._ring is None:
            return await self._search(query, scope, count)
        from antiphon.memory.sealed import scope_of, sealed_text

        found: list[list[Document]] = []
        for key in [*self._ring.keys]:  # each has documents and vectors of its own
            own = scope_of(scope, key)
            asked = sealed_text(self._ring, key, own, query)
            found.append(self._opened(await self._search(asked, own, count)))
        return [one for rank in zip_longest(*found) for one in rank if one is not None]

    async def _search(self, query: str, scope: str, count: int) -> list[Document]:
        found = await self._ask("similarity_search", query, k=count, filter=self._filter(scope))
        return [one for one in found if one.metadata.get("scope") == scope]

    def _sealed(self, document: Document) -> Document:
        if self._ring is None:
            return document
        from antiphon.memory.sealed import scope_of, sealed_text

        key = self._ring.sealing
        scope = scope_of(document.metadata["scope"], key)
        text = sealed_text(self._ring, key, scope, document.page_content)
        return document.model_copy(
            update={"page_content": text, "metadata": {**document.metadata, "scope": scope}}
        )

    def _opened(self, documents: Sequence[Document]) -> list[Document]:
        """Return the documents in plain text. With keys, those that cannot be decrypted are left out."""
        if self._ring is None:
            return [*documents]
        from antiphon.memory.sealed import opened_text

        found: list[Document] = []
        for one in documents:
            with suppress(CorruptRecord):
                text, key = opened_text(one.page_content, one.metadata.get("scope"))
                if key is not None:
                    found.append(one.model_copy(update={"page_content": text}))
        return found

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
"""Stores whose asynchronous methods share a session that each call closes. The others may be used from any thread."""
_FILTERS = {"ElasticsearchStore": _terms, "InMemoryVectorStore": _function, "RedisVectorStore": _tag}


def _kind(store: object) -> str:
    return next((each.__name__ for each in type(store).__mro__ if each.__name__ in _FILTERS), "")
