"""Memory: earlier turns that agents recall by meaning, from any LangChain vector store."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.memory.declaration import FactModel, Memory
    from antiphon.memory.faiss_store import FaissStore
    from antiphon.memory.word_embeddings import WordEmbeddings

__all__ = ["FactModel", "FaissStore", "Memory", "WordEmbeddings"]

_MODULES = {
    "FactModel": "declaration",
    "FaissStore": "faiss_store",
    "Memory": "declaration",
    "WordEmbeddings": "word_embeddings",
}


def __getattr__(name: str) -> Any:
    """Import a class on first access: LangChain is loaded only where it is used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
