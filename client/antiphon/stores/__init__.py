"""Stores for saved sessions: in memory, in SQLite, in Redis, in PostgreSQL, or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon.stores.base import MemoryStore, SessionStore
    from antiphon.stores.encrypted import SealedStore
    from antiphon.stores.postgres import PostgresStore
    from antiphon.stores.redis import RedisStore
    from antiphon.stores.sqlite import SQLiteStore

__all__ = ["MemoryStore", "PostgresStore", "RedisStore", "SQLiteStore", "SealedStore", "SessionStore"]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "MemoryStore": "base",
        "PostgresStore": "postgres",
        "RedisStore": "redis",
        "SQLiteStore": "sqlite",
        "SealedStore": "encrypted",
        "SessionStore": "base",
    },
)
