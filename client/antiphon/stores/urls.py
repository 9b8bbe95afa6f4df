"""Stores by their URLs."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import SettingsError
from antiphon.stores.base import SessionStore


def store_at(url: str, setting: str = "ANTIPHON_ARCHIVE (--archive)") -> SessionStore:
    """Open the store at a URL (``sqlite:///path``, ``redis://…``, ``postgresql://…``).

    ``setting`` is the setting that the error names. Raises ``SettingsError``.
    """
    scheme, _, path = url.partition("://")
    if scheme == "sqlite" and path:
        from antiphon.stores.sqlite import SQLiteStore

        if not Path(path).parent.is_dir():
            raise SettingsError(f"{setting} names {path!r}, whose directory does not exist: create it.")
        return SQLiteStore(path)
    if scheme in ("postgresql", "postgres"):
        from antiphon.stores.postgres import PostgresStore

        return PostgresStore(url)
    if scheme in ("redis", "rediss", "unix"):
        from antiphon.stores.redis import RedisStore

        return RedisStore(url)
    raise SettingsError(
        f"{setting} must be sqlite:///path/of/a/file, redis://host:6379/0 or postgresql://host/database; "
        "give any other store to the App: App(store=…)."
    )
