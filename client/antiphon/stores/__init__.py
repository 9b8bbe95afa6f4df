"""Stores for saved sessions: in memory, in SQLite, in Redis, in PostgreSQL, or your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.stores.base import MemoryStore, SessionStore
    from antiphon.stores.encrypted import SealedStore
    from antiphon.stores.postgres import PostgresStore
    from antiphon.stores.redis import RedisStore
    from antiphon.stores.sqlite import SQLiteStore

__all__ = ["MemoryStore", "PostgresStore", "RedisStore", "SQLiteStore", "SealedStore", "SessionStore"]

_MODULES = {
    "MemoryStore": "base",
    "PostgresStore": "postgres",
    "RedisStore": "redis",
    "SQLiteStore": "sqlite",
    "SealedStore": "encrypted",
    "SessionStore": "base",
}


def __getattr__(name: str) -> Any:
    """Import a store on first access, so that unused stores cost no import time."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
