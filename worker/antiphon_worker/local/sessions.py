"""The sessions in this process by id, and how long each is kept in memory."""

from __future__ import annotations

import threading
import time
from weakref import WeakValueDictionary

from msgspec import UNSET

from antiphon.session.runtime import SessionRef
from antiphon.stores.base import SessionStore
from antiphon_worker.local.book import TurnBook
from antiphon_worker.local.inbox import Inbox
from antiphon_worker.local.session import LocalSession

SWEEP_SECONDS = 60.0
RECENT = 256


class LocalSessions:
    """The sessions in this process by id.

    Sessions without a store stay in memory until they expire. Sessions with a store can be loaded again: only those in
    use and the most recently used ones stay in memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, LocalSession] = {}
        self._stored: WeakValueDictionary[tuple[int, str], LocalSession] = WeakValueDictionary()
        self._recent: dict[tuple[int, str], LocalSession] = {}  # in the order of their last use
        self._swept = time.monotonic()

    def get(self, ref: SessionRef) -> LocalSession:
        """Return the session, or a new one if it does not exist or has expired."""
        with self._lock:
            if ref.store is not None:
                return self._of_store(ref.store, ref.id)
            self._sweep()
            session = self._kept.get(ref.id)
            if session is None or _expired(session):
                session = self._kept[ref.id] = LocalSession(ref.id)
            if ref.ttl is not UNSET:
                session.ttl = ref.ttl
            session.expires = None if session.ttl is None else time.monotonic() + session.ttl
            return session

    def remove(self, ref: SessionRef) -> None:
        with self._lock:
            if ref.store is None:
                self._kept.pop(ref.id, None)
            else:
                self._recent.pop((id(ref.store), ref.id), None)
                self._stored.pop((id(ref.store), ref.id), None)

    def clear(self) -> None:
        """Remove all sessions from memory."""
        with self._lock:
            self._swept = time.monotonic()
            self._kept.clear()
            self._recent.clear()
            self._stored.clear()

    def kept(self) -> list[LocalSession]:
        """Return the sessions without a store that have contents or open turns."""
        with self._lock:
            kept = [session for session in self._kept.values() if not _expired(session)]
        return [session for session in kept if session.exists or session.info().turns]

    def after_fork(self) -> None:
        """Reset locks and inboxes in the child of a fork, which does not have the parent's threads and tasks."""
        self._lock = threading.Lock()
        for session in [*self._kept.values(), *self._stored.values()]:
            session.inbox = Inbox(session.session_id)
            session.turns.clear()
            session.keys.clear()
            session.book = TurnBook()

    def _of_store(self, store: SessionStore, session_id: str) -> LocalSession:
        key = (id(store), session_id)
        session = self._stored.get(key)
        if session is None:
            session = self._stored[key] = LocalSession(session_id)
            session.store = store
        self._recent.pop(key, None)
        self._recent[key] = session
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        return session

    def _sweep(self) -> None:
        if time.monotonic() - self._swept < SWEEP_SECONDS:
            return
        self._swept = time.monotonic()
        for session_id in [
            known for known, session in self._kept.items() if _expired(session) or _nothing(session)
        ]:
            del self._kept[session_id]


def _expired(session: LocalSession) -> bool:
    if session.expires is None or session.inbox.current is not None:
        return False
    return time.monotonic() > session.expires


def _nothing(session: LocalSession) -> bool:
    return session.inbox.current is None and not session.exists and session.book.empty
