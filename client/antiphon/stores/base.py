"""``SessionStore``: the interface of stores, which save the dictionaries of ``Session.to_dict``."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import msgspec

from antiphon.errors import CorruptRecord, UsageError

if TYPE_CHECKING:
    from antiphon.stores.turns import TurnIndex


class SessionStore(ABC):
    """A store for sessions. Write a subclass for a store of your own.

    Implement the four methods below. They may block, because asynchronous callers run them in a thread. They must be
    safe to call from several threads at once. Test your store with ``antiphon.stores.conformance``.

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
        """Save the data under this id and replace earlier data.

        >>> store.save("session-2", {"version": 1})
        >>> sorted(store.list_sessions())
        ['session-1', 'session-2']
        """

    @abstractmethod
    def load(self, session_id: str) -> dict[str, Any] | None:
        """Return the data saved last, or None.

        >>> store.load("session-1"), store.load("session-3")
        ({'version': 1}, None)
        """

    @abstractmethod
    def delete(self, session_id: str) -> bool:
        """Delete the data. Return True if there was any.

        >>> store.delete("session-1"), store.delete("session-1")
        (True, False)
        """

    @abstractmethod
    def list_sessions(self) -> list[str]:
        """Return the ids of all saved sessions, in any order.

        >>> store.list_sessions()
        ['session-1']
        """

    def page_of_sessions(self, after: str = "", count: int = 1000) -> list[str]:
        """Return up to ``count`` ids of saved sessions after ``after``, ordered by their characters.

        Override it if the store can do so without listing all sessions.

        >>> store.page_of_sessions(count=1), store.page_of_sessions(after="session-1")
        (['session-1'], [])
        """
        return sorted(one for one in self.list_sessions() if one > after)[:count]

    def turn_index(self) -> TurnIndex | None:
        """Return the full-text index of turns in this store's database, or None if the store cannot have one.

        >>> store.turn_index() is None
        True
        """
        return None

    def stamp(self, session_id: str) -> str | None:
        """Return a text that changes with every ``save``, without loading the data.

        Return None if the store has no such text: the data is then loaded whenever it may have changed.

        >>> store.stamp("session-1") == store.stamp("session-1")
        True
        """
        return None

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str | None:
        """Save the data and return its stamp.

        >>> store.save_stamped("session-1", {"version": 1}) == store.stamp("session-1")
        True
        """
        self.save(session_id, data)
        return None


class StampedStore(SessionStore):
    """A store that writes a stamp with the data. If it holds connections, close it or use it in a ``with`` block."""

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        self.save_stamped(session_id, data)

    @abstractmethod
    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str: ...

    def close(self) -> None:
        """Close the connections of the store."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_saved(session_id: str, data: dict[str, Any]) -> bytes:
    """Return a session's data as JSON. Raises ``UsageError`` if it has no JSON form."""
    try:
        return msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"The session {session_id!r} cannot be saved as JSON: {exc}.") from exc


def decode_saved(session_id: str, data: bytes | str) -> dict[str, Any]:
    """Read the JSON of a session's data. Raises ``CorruptRecord``."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(
            f"The saved data of the session {session_id!r} cannot be read: {exc}.", session_id=session_id
        ) from exc


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
