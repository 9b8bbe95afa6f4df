"""A session in this process: its state, and how it is loaded from and saved to its store."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from antiphon.errors import AgentError, StoreError
from antiphon.events import Event, TurnFailedEvent
from antiphon.input.history_cuts import kept_behind, shared_beginning
from antiphon.input.values import now_ms
from antiphon.model import Decision
from antiphon.session.runtime import (
    DEFAULT_TTL_SECONDS,
    DelayedTurn,
    Edit,
    Opening,
    RunningTurn,
    SessionInfo,
    SessionStatus,
    SessionWord,
    agent_name,
)
from antiphon.session.saved import ListedFields, SavedSession, read_saved
from antiphon.session.turn_info import TurnInfo
from antiphon.stores.base import SessionStore
from antiphon.stores.encrypted import SealedStore
from antiphon_worker.local.book import TurnBook
from antiphon_worker.local.inbox import Inbox
from antiphon_worker.local.suspension import Suspension, not_suspended
from antiphon_worker.loop.run_turn import WindowPlace
from antiphon_worker.loop.toolbox import described

KEPT_SUSPENSIONS = 1000

T = TypeVar("T")
EventT = TypeVar("EventT", bound=Event)


class LocalSession:
    """The state of a session in this process. Only the turn or edit that is current in the inbox writes it."""

    def __init__(self, session_id: str) -> None:
        self.inbox = Inbox(session_id)
        self.session_id = session_id
        self.state = SavedSession(session_id, created=now_ms(), updated=now_ms())
        self.window = WindowPlace(0, 0)  # of the last turn
        self.turns: dict[str, Any] = {}  # submitted turns that have not ended, by id
        self.failed: deque[str] = deque(maxlen=100)  # turns, the last one first
        self.last_turn = ""  # that has ended, or begun
        self.keys: dict[str, Any] = {}  # submitted turns by idempotency key
        self.book = TurnBook()
        self.suspensions: dict[str, Suspension] = {}  # by turn; also of turns that have ended
        self.openings: set[str] = set()
        self.ttl: float | None = DEFAULT_TTL_SECONDS  # None is forever
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
        self.book.cut(before.messages, saved.messages)
        if len(saved.messages) < len(before.messages):
            self.window = WindowPlace(0, 0)
        self.state.system = saved.system or None
        self.state.children = list(dict.fromkeys([*saved.children, *before.children]))
        self.state.branches = saved.branches | before.branches
        self.state.created = saved.created or before.created
        self.state.updated = saved.updated or before.updated

    def begin(self, opening: Opening, parent: LocalSession | None) -> None:
        """Apply an opening, except for its messages."""
        state, of_parent = self.state, parent and partial(getattr, parent.state)
        for name, value in opening.changes(partial(getattr, state), of_parent).items():
            setattr(state, name, value)
        self.openings.add(opening.token)

    def suspend(self, turn: TurnInfo, suspension: Suspension) -> None:
        """Note what a turn waits for."""
        turn.status = "suspended"
        self.suspensions.pop(turn.turn_id, None)
        self.suspensions[turn.turn_id] = suspension
        if len(self.suspensions) > KEPT_SUSPENSIONS:
            ended = next((one for one in self.suspensions if one not in self.book), None)
            self.suspensions.pop(ended or "", None)

    def decide(self, turn_id: str, decision: Decision) -> None:
        """Decide about a call of a turn. Raises ``TurnNotFound``, ``AlreadyDecided``, ``NotSuspended``."""
        suspension = self.suspensions.get(turn_id)
        if suspension is not None:
            suspension.decide(decision)
            return
        raise not_suspended(turn_id, self.book.status(turn_id))

    def status(self) -> SessionStatus:
        place = self.inbox.current
        running = place.turn and RunningTurn(place.turn_id, place.turn.status, place.step) if place else None
        return SessionStatus(
            state="closed" if self.state.closed else "busy" if place else "idle",
            messages=len(self.state.messages),
            running=running,
            waiting=[place.turn_id for place in self.inbox.waiting if place.turn_id],
            failed=list(self.failed),
            delayed=sorted(
                (DelayedTurn(one.id, one.due) for one in list(self.turns.values()) if one.due is not None),
                key=lambda turn: turn.due,
            ),
            created=self.state.created if self.used else 0,
            updated=self.state.updated if self.used else 0,
        )

    def info(self) -> SessionInfo:
        status = self.status()
        turns = len(status.waiting) + (status.running is not None)
        state, listed = self.state, ListedFields.__struct_fields__
        return SessionInfo(
            session_id=self.session_id, status=self._word(status),
            due=status.delayed[0].due if status.delayed else None,
            agent=agent_name(state.agent), messages=len(state.messages), turns=turns, created=state.created,
            updated=state.updated, closed=state.closed,
            **{name: copy.deepcopy(getattr(state, name)) for name in listed},
        )  # fmt: skip

    def _word(self, status: SessionStatus) -> SessionWord:
        if status.running or status.waiting:
            return "running" if status.running else "waiting"
        if status.delayed:
            return "delayed"
        return "failed" if self.failed and self.failed[0] == self.last_turn else "done"

    def numbered(self, event: EventT, turn: TurnInfo) -> EventT:
        """Set the session, turn, run, seq and time of an event, and return the event."""
        event.seq, event.at = next(self._seqs), now_ms()
        event.session_id, event.turn_id = self.session_id, turn.turn_id
        event.run, event.attempt = turn.run, max(turn.attempt, 1)
        self.last_turn = turn.turn_id
        if isinstance(event, TurnFailedEvent):
            self.failed.appendleft(turn.turn_id)
        return event


def edited(state: SavedSession, edit: Edit) -> SavedSession:
    """Return the state that an edit leaves."""
    state = state.shallow()
    if edit.clear:
        state.keep(0)
    if edit.rewind is not None:
        state.keep(kept_behind(state.messages, edit.rewind))
    if edit.ends_with is not None:
        last = state.messages[-1].copied() if state.messages else None
        messages = edit.ends_with(last)
        if last is not None:
            state.keep(len(state.messages) - 1)
            state.messages += messages
    if edit.becomes is not None:
        messages = edit.becomes([message.copied() for message in state.messages])
        state.keep(shared_beginning(state.messages, messages))
        state.messages += messages[len(state.messages) :]
    state.messages += edit.add
    for name, value in edit.changes(partial(getattr, state)).items():
        setattr(state, name, value)
    return state


async def refresh(session: LocalSession) -> None:
    """Load the session from its store if another process has saved it in the meantime."""
    store = session.store
    if store is None:
        return
    stamp = await in_store(store.stamp, session.session_id)
    if stamp is not None and stamp == session.stamp:
        return
    data = await in_store(SealedStore(store).load, session.session_id)
    session.stamp = stamp
    if data is not None:
        session.restore(read_saved(data))
    elif session.state.messages or session.state.closed:  # it was deleted in the store
        session.state.children.clear()
        session.state.branches.clear()
        session.restore(SavedSession(session.session_id, created=session.state.created))


async def commit(session: LocalSession, state: SavedSession) -> None:
    """Save the state to the store, then make it the session's state. If the store fails, nothing changes."""
    state.updated = now_ms()
    if session.store is not None:
        save = SealedStore(session.store).save_stamped
        session.stamp = await in_store(save, session.session_id, state.to_dict())
    session.restore(state)


async def in_store(method: Callable[..., T], *args: Any) -> T:
    """Call a store in a thread. Raises all its exceptions as ``AgentError``."""

    def in_thread() -> T:
        try:
            return method(*args)
        except AgentError:
            raise
        except BaseException as exc:  # also GeneratorExit, which must not be raised where coroutines wait
            raise StoreError(f"The session store failed: {described(exc)}.") from exc

    return await asyncio.to_thread(in_thread)
