"""The sessions of this process: what each holds, and the order in which its turns and edits are served."""

from __future__ import annotations

import asyncio
import copy
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from antiphon.errors import AgentError, SessionBusy, StoreError
from antiphon.events import Event
from antiphon.input.ids import other_tenant
from antiphon.model import File, Message
from antiphon.session.reentry import own_turns, turns_read_here, waits_for_its_reader, waits_for_itself
from antiphon.session.runtime import Opening, RunningTurn, SessionInfo, SessionRef, SessionStatus, agent_name
from antiphon.session.saved import SavedSession, read_saved
from antiphon.session.turns import CLOSING_STEPS
from antiphon.stores.base import SessionStore
from antiphon.window import SavedSummary
from antiphon_worker.loop.run_turn import WindowPlace

__all__ = ["Inbox", "LocalSession", "LocalSessions", "Place", "commit", "in_store", "now_ms", "refresh"]

T = TypeVar("T")
EventT = TypeVar("EventT", bound=Event)

SWEEP_SECONDS = 60.0
RECENT = 256


def now_ms() -> int:
    return int(time.time() * 1000)


class Place:
    """A turn or an edit in a session's inbox."""

    def __init__(self, name: str = "") -> None:
        self.turn_id = name  # empty for an edit
        self.step = 1  # written by the turn's sink, read by status
        self.joined = False  # written by the inbox, as the next one
        self.future: Future[None] = Future()


class Inbox:
    """Serves turns and edits of one session in order, whichever thread or event loop they come from."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._lock = threading.Lock()
        self._waiting: deque[Place] = deque()  # under the lock
        self.current: Place | None = None  # written under the lock

    @asynccontextmanager
    async def place(self, place: Place, *, reject: bool = False) -> AsyncGenerator[None, None]:
        """Wait for one's turn, and hold it. Raises ``SessionBusy`` at once where asked to, or ``UsageError`` to whom
        would wait for itself."""
        if not place.joined:
            if not reject:
                await self.check_others_turn()
            self.join(place, reject=reject)
        await self._served(place)
        try:
            yield
        finally:
            self.leave(place)

    def join(self, place: Place, *, reject: bool = False) -> None:
        """Stand in the inbox from now on. Raises ``SessionBusy``."""
        with self._lock:
            if self.current is not None and reject:
                raise SessionBusy("The session runs a turn: try again when it has ended.")
            place.joined = True
            if self.current is None:
                self.current = place
                place.future.set_result(None)
            else:
                self._waiting.append(place)

    async def check_others_turn(self) -> None:
        """Before waiting: raises ``UsageError`` in a tool of the turn that is at work, and to the reader of its
        events."""
        if self._turn_id in own_turns(self._session_id):
            raise waits_for_itself(self._session_id)
        for _ in range(CLOSING_STEPS):
            if self._turn_id not in turns_read_here():
                return
            await asyncio.sleep(0)  # a reader who has left ``async for`` closes it a moment later
        raise waits_for_its_reader(self._session_id)

    @property
    def _turn_id(self) -> str:
        current = self.current
        return "" if current is None else current.turn_id

    @property
    def waiting(self) -> list[Place]:
        with self._lock:
            return [place for place in self._waiting if not place.future.cancelled()]

    async def _served(self, place: Place) -> None:
        if place.future.done():
            return
        try:
            await asyncio.wrap_future(place.future)
        except asyncio.CancelledError:
            if not place.future.cancel():  # it had been served already
                self.leave(place)
            raise

    def leave(self, place: Place) -> None:
        """Let the next one in, where this one was still in."""
        with self._lock:
            if self.current is not place:
                return
            while self._waiting:
                place = self._waiting.popleft()
                if place.future.set_running_or_notify_cancel():
                    self.current = place
                    place.future.set_result(None)
                    return
            self.current = None


class LocalSession:
    """What a session of this process holds. Written by the holder of the inbox's current place."""

    def __init__(self, session_id: str) -> None:
        self.inbox = Inbox(session_id)
        self.session_id = session_id
        self.messages: list[Message] = []
        self.agent: dict[str, Any] | str | None = None
        self.system: str | None = None
        self.variables: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.tenant: str | None = None
        self.queue: str | None = None  # kept for the workers who may go on with the session
        self.files: dict[str, File] = {}
        self.parent: str | None = None
        self.summary: SavedSummary | None = None
        self.created = self.updated = now_ms()
        self.children: list[str] = []
        self.closed = False
        self._seqs = itertools.count(1)  # turns and edits of several threads take from it
        self.window = WindowPlace(0, 0)  # of the last turn
        self.turns: dict[str, Any] = {}  # submitted turns by id, while somebody may ask for them
        self.keys: dict[str, Any] = {}  # submitted turns by idempotency key
        self.openings: set[str] = set()
        self.expires: float | None = None
        self.store: SessionStore | None = None
        self.stamp: str | None = None  # of the store, when it was last read or written

    @property
    def exists(self) -> bool:
        """False for a session that was only looked at."""
        return bool(self.messages or self.agent or self.openings or self.stamp or self.closed)

    @property
    def used(self) -> bool:
        """True from the first turn or change that was asked for."""
        return self.exists or self.inbox.current is not None

    def saved(self, messages: bool = True) -> SavedSession:
        return SavedSession(
            session_id=self.session_id,
            messages=list(self.messages) if messages else [],
            agent=self.agent,
            system=self.system,
            variables=dict(self.variables),
            metadata=dict(self.metadata),
            tenant=self.tenant,
            queue=self.queue,
            files=dict(self.files),
            parent=self.parent,
            children=list(self.children),
            closed=self.closed,
            summary=self.summary,
            created=self.created,
            updated=self.updated,
        )

    def restore(self, saved: SavedSession) -> None:
        """Become what was saved."""
        if len(saved.messages) < len(self.messages):
            self.window = WindowPlace(0, 0)
        self.messages = list(saved.messages)
        self.agent, self.system, self.parent = saved.agent, saved.system or None, saved.parent
        self.variables, self.metadata = dict(saved.variables), dict(saved.metadata)
        self.tenant, self.queue = saved.tenant, saved.queue
        self.files, self.summary = dict(saved.files), saved.summary
        self.closed = saved.closed
        self.children = list(
            dict.fromkeys([*saved.children, *self.children])
        )  # some may have begun meanwhile
        self.created = saved.created or self.created
        self.updated = saved.updated or self.updated

    def begin(self, opening: Opening, parent: LocalSession | None) -> None:
        """Take over what an opening asks for, but for its messages. Raises ``UsageError`` to another tenant."""
        if opening.tenant is not None and (self.tenant or opening.tenant) != opening.tenant:
            raise other_tenant(self.session_id, opening.tenant)
        self.openings.add(opening.token)
        self.tenant = self.tenant or opening.tenant or (parent and parent.tenant)
        self.queue = opening.queue or self.queue or (parent and parent.queue)
        if opening.system is not None:
            self.system = opening.system or None
        self.variables = {**opening.variables, **self.variables}
        self.metadata = {**self.metadata, **opening.metadata}
        self.parent = opening.parent or self.parent

    def status(self) -> SessionStatus:
        place = self.inbox.current
        running = RunningTurn(place.turn_id, "running", place.step) if place and place.turn_id else None
        return SessionStatus(
            state="closed" if self.closed else "busy" if place else "idle",
            messages=len(self.messages),
            running=running,
            waiting=[place.turn_id for place in self.inbox.waiting if place.turn_id],
            created=self.created if self.used else 0,
            updated=self.updated if self.used else 0,
        )

    def info(self) -> SessionInfo:
        status = self.status()
        turns = len(status.waiting) + (status.running is not None)
        return SessionInfo(
            session_id=self.session_id, status="running" if status.running else "waiting" if turns else "done",
            tenant=self.tenant, agent=agent_name(self.agent), queue=self.queue, messages=len(self.messages),
            turns=turns, metadata=copy.deepcopy(self.metadata), created=self.created, updated=self.updated,
            closed=self.closed,
        )  # fmt: skip

    def numbered(self, event: EventT, turn_id: str) -> EventT:
        """The event as one of this session's: which turn it belongs to, its seq and its time."""
        event.seq, event.at = next(self._seqs), now_ms()
        event.session_id, event.turn_id = self.session_id, turn_id
        event.run = event.attempt = 1
        return event


class LocalSessions:
    """The sessions of this process by id.

    Those without a store are kept until they expire. Of those with one, which can be read again, the ones used last
    and the ones in use are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, LocalSession] = {}
        self._stored: WeakValueDictionary[tuple[int, str], LocalSession] = WeakValueDictionary()
        self._recent: dict[tuple[int, str], LocalSession] = {}  # the last used one last
        self._swept = time.monotonic()

    def get(self, ref: SessionRef) -> LocalSession:
        """The session, a new one where there is none or its time is over."""
        with self._lock:
            if ref.store is not None:
                return self._of_store(ref.store, ref.id)
            self._sweep()
            session = self._kept.get(ref.id)
            if session is None or _expired(session):
                session = self._kept[ref.id] = LocalSession(ref.id)
            session.expires = None if ref.ttl is None else time.monotonic() + ref.ttl
            return session

    def remove(self, ref: SessionRef) -> None:
        with self._lock:
            if ref.store is None:
                self._kept.pop(ref.id, None)
            else:
                self._recent.pop((id(ref.store), ref.id), None)
                self._stored.pop((id(ref.store), ref.id), None)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._swept = time.monotonic()
            self._kept.clear()
            self._recent.clear()
            self._stored.clear()

    def kept(self) -> list[LocalSession]:
        """Those without a store that are something."""
        with self._lock:
            kept = [session for session in self._kept.values() if not _expired(session)]
        return [session for session in kept if session.exists or session.info().turns]

    def after_fork(self) -> None:
        """In the child: what held the locks and the places stayed behind."""
        self._lock = threading.Lock()
        for session in [*self._kept.values(), *self._stored.values()]:
            session.inbox = Inbox(session.session_id)
            session.turns.clear()
            session.keys.clear()

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
    return session.inbox.current is None and not session.exists


async def refresh(session: LocalSession) -> None:
    """Read the session from its store, where another process may have saved it since."""
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
    elif session.messages or session.closed:  # it was deleted there
        session.children.clear()
        session.restore(SavedSession(session.session_id, created=session.created))


async def commit(session: LocalSession, state: SavedSession) -> None:
    """Make this the session's state: first in its store, so that a store that fails changes nothing."""
    state.updated = now_ms()
    if session.store is not None:
        session.stamp = await in_store(session.store.save_stamped, session.session_id, state.to_dict())
    session.restore(state)


async def in_store(method: Callable[..., T], *args: Any) -> T:
    """Call a store in a thread. Whatever it raises is an ``AgentError``."""
    try:
        return await asyncio.to_thread(method, *args)
    except AgentError:
        raise
    except Exception as exc:
        raise StoreError(f"The session store failed: {type(exc).__name__}: {exc}.") from exc
