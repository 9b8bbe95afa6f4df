"""What a store of sessions does. Its data are the dictionaries that ``Session.to_dict`` gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from antiphon.errors import CorruptRecord, UsageError

__all__ = ["SessionStore", "decode_saved", "encode_saved"]


class SessionStore(ABC):
    """A place where sessions are saved. Write a subclass for a place of your own.

    The four methods below are all that is needed; they may block, because asynchronous callers run them in a
    thread, and may be called from several threads at once. ``antiphon.stores.conformance`` tests a store.

    >>> class DictStore(SessionStore):
    ...     def __init__(self):
    ...         self.saved = {}
    ...     def save(self, session_id, data):
    ...         self.saved[session_id] = data
    ...     def load(self, session_id):
    ...         return self.saved.get(session_id)
    ...     def delete(self, session_id):
    ...         return self.saved.pop(session_id, None) is not None
    ...     def list_sessions(self):
    ...         return list(self.saved)
    >>> store = DictStore()
    >>> store.save("session-1", {"version": 1})
    """

    @abstractmethod
    def save(self, session_id: str, data: dict[str, Any]) -> None:
        """Keep the data under this id, in place of what was there.

        >>> store.save("session-2", {"version": 1})
        >>> sorted(store.list_sessions())
        ['session-1', 'session-2']
        """

    @abstractmethod
    def load(self, session_id: str) -> dict[str, Any] | None:
        """The data that were saved last, or None where there are none.

        >>> store.load("session-1"), store.load("session-3")
        ({'version': 1}, None)
        """

    @abstractmethod
    def delete(self, session_id: str) -> bool:
        """Remove the data. True where there were some.

        >>> store.delete("session-1"), store.delete("session-1")
        (True, False)
        """

    @abstractmethod
    def list_sessions(self) -> list[str]:
        """The ids of all saved sessions, in no particular order.

        >>> store.list_sessions()
        ['session-1']
        """

    def stamp(self, session_id: str) -> str | None:
        """A word that differs after every ``save``, read without the data.

        None where there is no such word: the data are then loaded whenever they may have changed.

        >>> store.stamp("session-1") == store.stamp("session-1")
        True
        """
        return None

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str | None:
        """``save``, and give the stamp of what was saved.

        >>> store.save_stamped("session-1", {"version": 1}) == store.stamp("session-1")
        True
        """
        self.save(session_id, data)
        return None


def encode_saved(session_id: str, data: dict[str, Any]) -> bytes:
    """The JSON text of a session's data. Raises ``UsageError`` where they hold what JSON cannot say."""
    try:
        return msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"The session {session_id!r} cannot be saved as JSON: {exc}.") from exc


def decode_saved(session_id: str, data: bytes | str) -> dict[str, Any]:
    """Saved data as they were. Raises ``CorruptRecord``."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(
            f"What is saved of the session {session_id!r} is not readable: {exc}.", session_id=session_id
        ) from exc
