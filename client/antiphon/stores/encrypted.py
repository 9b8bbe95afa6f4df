"""``SealedStore``: encrypts the data that another store saves."""

from __future__ import annotations

from typing import Any

from antiphon.encryption.keyring import Keyring
from antiphon.encryption.records import sealer_of
from antiphon.errors import CorruptRecord
from antiphon.stores.base import SessionStore, decode_saved, encode_saved
from antiphon.stores.turns import TurnIndex
from antiphon.text import text_of

KIND = "archive"
FORM = 1000
"""The version of the encrypted form: releases without encryption report that a newer release saved it."""


class SealedStore(SessionStore):
    """Encrypts the data of sessions before another store saves it, and decrypts it. Ids stay in plain text.

    Workers and local sessions wrap every store in it while ``ANTIPHON_ENCRYPTION_KEYS`` is set. Use it yourself for
    dictionaries that you save. Without keys, data stays unchanged. With keys, ``load`` raises ``NotEncrypted`` for
    data that was saved without them, ``KeyMissing`` and ``SealBroken``.

    >>> from antiphon.encryption import Keyring
    >>> from antiphon.stores import MemoryStore
    >>> inner = MemoryStore()
    >>> store = SealedStore(inner, Keyring([("2026-11", bytes(range(32)))]))
    >>> store.save("session-1", {"version": 1})
    >>> sorted(inner.load("session-1")), store.load("session-1")
    (['messages', 'sealed', 'session_id', 'version'], {'version': 1})
    """

    def __init__(self, store: SessionStore, keys: Keyring | None = None) -> None:
        self._store = store
        self._seal = sealer_of(keys)

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self._store.save(session_id, self._sealed(session_id, data))

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str | None:
        return self._store.save_stamped(session_id, self._sealed(session_id, data))

    def load(self, session_id: str) -> dict[str, Any] | None:
        data = self._store.load(session_id)
        sealed = data.get("sealed") if data is not None and data.get("version") == FORM else None
        if sealed is None:
            return data and self._seal.plain(KIND, data)
        if not isinstance(sealed, str):
            raise CorruptRecord("The encrypted data of a session is damaged.", session_id=session_id)
        return decode_saved(session_id, self._seal.decrypted(session_id, KIND, sealed.encode()))

    def delete(self, session_id: str) -> bool:
        return self._store.delete(session_id)

    def list_sessions(self) -> list[str]:
        return self._store.list_sessions()

    def page_of_sessions(self, after: str = "", count: int = 1000) -> list[str]:
        return self._store.page_of_sessions(after, count)

    def turn_index(self) -> TurnIndex | None:
        """Return the index of the other store; None with keys, because it would hold the content in plain text.

        >>> store.turn_index() is None
        True
        """
        return None if self._seal.on else self._store.turn_index()

    def stamp(self, session_id: str) -> str | None:
        return self._store.stamp(session_id)

    def close(self) -> None:
        """Close the other store, if it has connections.

        >>> store.close()
        """
        close = getattr(self._store, "close", None)
        if close is not None:
            close()

    def _sealed(self, session_id: str, data: dict[str, Any]) -> dict[str, Any]:
        if not self._seal.on:
            return data
        sealed = self._seal.encrypted(session_id, KIND, encode_saved(session_id, data))
        return {"version": FORM, "session_id": session_id, "messages": [], "sealed": text_of(sealed)}
