"""Sessions saved in this process's memory."""

from __future__ import annotations

import secrets
from typing import Any

from antiphon.stores.base import SessionStore, decode_saved, encode_saved

__all__ = ["MemoryStore"]


class MemoryStore(SessionStore):
    """Stores sessions in memory. They are lost when the process ends.

    >>> store = MemoryStore()
    >>> store.save("session-1", {"version": 1})
    >>> store.load("session-1"), store.load("session-3")
    ({'version': 1}, None)
    """

    def __init__(self) -> None:
        self._saved: dict[
            str, tuple[str, bytes]
        ] = {}  # threads: each access is one atomic dictionary operation

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self.save_stamped(session_id, data)

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str:
        stamp = secrets.token_hex(8)
        self._saved[session_id] = (stamp, encode_saved(session_id, data))
        return stamp

    def load(self, session_id: str) -> dict[str, Any] | None:
        saved = self._saved.get(session_id)
        return decode_saved(session_id, saved[1]) if saved else None

    def delete(self, session_id: str) -> bool:
        return self._saved.pop(session_id, None) is not None

    def list_sessions(self) -> list[str]:
        return list(self._saved)

    def stamp(self, session_id: str) -> str | None:
        saved = self._saved.get(session_id)
        return saved[0] if saved else ""
