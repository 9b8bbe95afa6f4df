"""Memory: earlier turns that agents recall by meaning, from any LangChain vector store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon.memory.declaration import FactModel, Memory
    from antiphon.memory.faiss_store import FaissStore
    from antiphon.memory.sealed import SealedEmbeddings
    from antiphon.memory.word_embeddings import WordEmbeddings

__all__ = ["FactModel", "FaissStore", "Memory", "SealedEmbeddings", "WordEmbeddings"]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "FactModel": "declaration",
        "FaissStore": "faiss_store",
        "Memory": "declaration",
        "SealedEmbeddings": "sealed",
        "WordEmbeddings": "word_embeddings",
    },
)
