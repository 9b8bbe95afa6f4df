"""A session in this process: its state, and how it is loaded from and saved to its store."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from antiphon.errors import AgentError, StoreError
from antiphon.events import Event
from antiphon.session.runtime import Opening, RunningTurn, SessionInfo, SessionStatus, agent_name
from antiphon.session.saved import ListedFields, SavedSession, read_saved
from antiphon.stores.base import SessionStore
from antiphon_worker.local.inbox import Inbox
from antiphon_worker.loop.run_turn import WindowPlace

__all__ = ["LocalSession", "commit", "in_store", "now_ms", "refresh"]

T = TypeVar("T")
EventT = TypeVar("EventT", bound=Event)


def now_ms() -> int:
    return int(time.time() * 1000)


class LocalSession:
    """The state of a session in this process. Only the turn or edit that is current in the inbox writes it."""

    def __init__(self, session_id: str) -> None:
        self.inbox = Inbox(session_id)
        self.session_id = session_id
        self.state = SavedSession(session_id, created=now_ms(), updated=now_ms())
        self.window = WindowPlace(0, 0)  # of the last turn
        self.turns: dict[str, Any] = {}  # submitted turns that have not ended, by id
        self.keys: dict[str, Any] = {}  # submitted turns by idempotency key
        self.openings: set[str] = set()
        self.expires: float | None = None
        self.store: SessionStore | None = None
        self.stamp: str | None = None  # the store's stamp at the last load or save
        self._seqs = itertools.count(1)  # used by turns and edits in several threads

    @property
    def exists(self) -> bool:
        """False for a session that was only read."""
        state = self.state
        return bool(state.messages or state.agent or self.openings or self.stamp or state.closed)

    @property
    def used(self) -> bool:
        """True from the first turn or change on, even while it is still waiting."""
        return self.exists or self.inbox.current is not None

    def restore(self, saved: SavedSession) -> None:
        """Replace the state by a saved one. Children that were created in the meantime stay."""
        before, self.state = self.state, saved.shallow()
        if len(saved.messages) < len(before.messages):
            self.window = WindowPlace(0, 0)
        self.state.system = saved.system or None
        self.state.children = list(dict.fromkeys([*saved.children, *before.children]))
        self.state.created = saved.created or before.created
        self.state.updated = saved.updated or before.updated

    def begin(self, opening: Opening, parent: LocalSession | None) -> None:
        """Apply an opening, except for its messages. Raises ``UsageError`` for another tenant."""
        state, of_parent = self.state, parent and partial(getattr, parent.state)
        for name, value in opening.changes(self.session_id, partial(getattr, state), of_parent).items():
            setattr(state, name, value)
        self.openings.add(opening.token)

    def status(self) -> SessionStatus:
        place = self.inbox.current
        running = RunningTurn(place.turn_id, "running", place.step) if place and place.turn_id else None
        return SessionStatus(
            state="closed" if self.state.closed else "busy" if place else "idle",
            messages=len(self.state.messages),
            running=running,
            waiting=[place.turn_id for place in self.inbox.waiting if place.turn_id],
            created=self.state.created if self.used else 0,
            updated=self.state.updated if self.used else 0,
        )

    def info(self) -> SessionInfo:
        status = self.status()
        turns = len(status.waiting) + (status.running is not None)
        state, listed = self.state, ListedFields.__struct_fields__
        return SessionInfo(
            session_id=self.session_id, status="running" if status.running else "waiting" if turns else "done",
            agent=agent_name(state.agent), messages=len(state.messages), turns=turns, created=state.created,
            updated=state.updated, closed=state.closed,
            **{name: copy.deepcopy(getattr(state, name)) for name in listed},
        )  # fmt: skip

    def numbered(self, event: EventT, turn_id: str) -> EventT:
        """Set the session, turn, seq and time of an event, and return the event."""
        event.seq, event.at = next(self._seqs), now_ms()
        event.session_id, event.turn_id = self.session_id, turn_id
        event.run = event.attempt = 1
        return event


async def refresh(session: LocalSession) -> None:
    """Load the session from its store if another process has saved it in the meantime."""
    store = session.store
    if store is None:
        return
    stamp = await in_store(store.stamp, session.session_id)
    if stamp is not None and stamp == session.stamp:
        return
    data = await in_store(store.load, session.session_id)
    session.stamp = stamp
    if data is not None:
        session.restore(read_saved(data))
    elif session.state.messages or session.state.closed:  # it was deleted in the store
        session.state.children.clear()
        session.restore(SavedSession(session.session_id, created=session.state.created))


async def commit(session: LocalSession, state: SavedSession) -> None:
    """Save the state to the store, then make it the session's state. If the store fails, nothing changes."""
    state.updated = now_ms()
    if session.store is not None:
        session.stamp = await in_store(session.store.save_stamped, session.session_id, state.to_dict())
    session.restore(state)


async def in_store(method: Callable[..., T], *args: Any) -> T:
    """Call a store in a thread. Raises all its exceptions as ``AgentError``."""
    try:
        return await asyncio.to_thread(method, *args)
    except AgentError:
        raise
    except Exception as exc:
        raise StoreError(f"The session store failed: {type(exc).__name__}: {exc}.") from exc
