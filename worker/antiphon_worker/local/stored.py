"""``StoredCell``: a memory cell whose sessions a store saves, each as a whole."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from antiphon.errors import AgentError, StoreError
from antiphon.input.ids import TurnId
from antiphon.input.request import shown_request
from antiphon.input.values import now_ms
from antiphon.model import encode
from antiphon.redis.edits import Found
from antiphon.redis.fields import encode_fields
from antiphon.redis.turn_records import turn_info
from antiphon.session.saved import SavedSession, SavedTurn, read_saved
from antiphon.stores.base import SessionStore
from antiphon.stores.encrypted import SealedStore
from antiphon.wire.records import read_turn
from antiphon.wire.suspension import awaited, place_of
from antiphon_worker.local.cell import MemoryCell
from antiphon_worker.local.files import files_in, put_files
from antiphon_worker.local.records import Session, Turn
from antiphon_worker.local.transitions import Transitions
from antiphon_worker.loop.toolbox import described

T = TypeVar("T")

RECENT = 256
LOADED = (
    "submit", "claim", "snapshot", "editing/edit", "editing/fork", "editing/delete", "files/add_chunk",
    "files/read_chunk", "files/list_files", "files/drop_files",
)  # fmt: skip
SAVED = ("finish", "suspend", "editing/edit", "editing/fork", "files/drop_files")


class StoredCell(MemoryCell):
    """Loads a session if another process has saved it since, and saves it before a change becomes visible.

    If the store fails, nothing changes. A session is loaded only while no turn of it runs.
    """

    def __init__(self, store: SessionStore) -> None:
        super().__init__()
        self.suspended: dict[str, list[SavedTurn]] = {}  # left by another process, by session
        self._store = store
        self._stamps: dict[str, str | None] = {}
        self._recent: dict[str, None] = {}

    async def run(self, name: str, *arguments: Any) -> Any:
        touched = self._touched(name, arguments)
        if name in LOADED:
            for session_id in touched:
                await self._load(session_id)
                self._note_use(session_id)
        if name == "editing/delete":
            return await self._delete(*arguments)
        if name not in SAVED:
            return self.apply(name, *arguments)
        now = self.transitions.clock()
        for session_id, saved in self._after(name, arguments, touched, now).items():
            self._stamps[session_id] = await self._asked(
                SealedStore(self._store).save_stamped, session_id, saved.to_dict()
            )
        with self.lock:
            clock, self.transitions.clock = self.transitions.clock, lambda: now
            try:
                return self.apply(name, *arguments)
            finally:
                self.transitions.clock = clock

    async def ids(self) -> list[str]:
        """Return the ids of the store's sessions in reverse order."""
        return sorted(await self._asked(self._store.list_sessions), reverse=True)

    def suspended_turns(self, session_id: str) -> list[SavedTurn]:
        """Return what another process needs to resume the session's suspended turns."""
        session = self.session(session_id)
        return self._suspended(session) if session else list(self.suspended.get(session_id, ()))

    def take_up(self, session_id: str, turn_id: str) -> None:
        """Resume a turn that was suspended in another process, if the session has it."""
        with self.lock:
            known, session = self.suspended.get(session_id, []), self.transitions.find(session_id)
            saved = next((one for one in known if one.turn.turn_id == turn_id), None)
            if saved is None or session is None or "closed" in session.record:
                return
            known.remove(saved)
            _resume_waiting(self.transitions, session, saved)

    # How a session is loaded

    async def _load(self, session_id: str) -> None:
        session = self.session(session_id)
        if session is not None and session.record.get("fence"):
            return
        known = session_id in self._stamps
        stamp = await self._asked(self._store.stamp, session_id)
        if stamp is not None and known and self._stamps[session_id] == stamp:
            return
        data = await self._asked(SealedStore(self._store).load, session_id)
        saved = None if data is None else read_saved(data)
        with self.lock:
            session = self.transitions.find(session_id)
            if session is not None and session.record.get("fence"):
                return
            if saved is not None:
                self._put(session_id, saved)
                self._stamps[session_id] = stamp
            elif session is not None and known:  # it was deleted in the store
                del self._stamps[session_id]
                if session.inbox:
                    self._put(session_id, SavedSession(session_id))
                else:
                    self.transitions.drop_session(session)

    def _put(self, session_id: str, saved: SavedSession) -> None:
        """Restore a session from its saved form. Its unfinished turns and its events stay."""
        sessions = self.transitions.sessions
        session = sessions.setdefault(session_id, Session(session_id))
        fields = {name: value for name, value in encode_fields(saved).items() if value}
        kept = ("seq", "ops", "fence", "holder", "aside", "due_until", "window", "steer", "ttl", "media")
        before = {name: session.record[name] for name in kept if name in session.record}
        session.record.clear()
        session.record.update(before | fields)
        session.record.put(updated=saved.updated or saved.created or now_ms())
        session.record.setdefault("created", session.record["updated"])
        session.history = [encode(message) for message in saved.messages]
        put_files(session, saved.media)
        open_turns = {turn.id for turn in session.turns}
        self.suspended[session_id] = [one for one in saved.suspended if one.turn.turn_id not in open_turns]

    def _note_use(self, session_id: str) -> None:
        """Note the use, and drop the least recently used session from memory: it can be loaded again."""
        with self.lock:
            self._recent.pop(session_id, None)
            self._recent[session_id] = None
            if len(self._recent) <= RECENT:
                return
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            session = self.transitions.sessions.get(oldest)
            if session is not None and (session.inbox or self.transitions.outside(session)):
                self._recent[oldest] = None
                return
            if session is not None:
                self.transitions.drop_session(session)
            self._stamps.pop(oldest, None)
            self.suspended.pop(oldest, None)

    # How a session is saved

    def _touched(self, name: str, arguments: tuple[Any, ...]) -> list[str]:
        if name == "claim":
            turn = self.transitions.turns.get(arguments[5])
            return [turn.session.id] if turn else []
        return [arguments[0], arguments[1]] if name == "editing/fork" else [arguments[0]]

    def _after(
        self, name: str, arguments: tuple[Any, ...], touched: list[str], now: int
    ) -> dict[str, SavedSession]:
        """Return the sessions that this transition will change, as it will leave them."""
        with self.lock:
            trial = Transitions(lambda: now, self.transitions.most_events)
            for session_id in touched:
                session = self.transitions.find(session_id)
                if session is not None:
                    _copy(session, trial)
            before = {one: self._saved(trial.sessions.get(one)) for one in touched}
            getattr(trial, name.rpartition("/")[2])(*arguments)
            after = {one: self._saved(trial.sessions.get(one)) for one in touched}
        return {
            one: saved for one, saved in after.items() if saved is not None and not _same(saved, before[one])
        }

    def _saved(self, session: Session | None) -> SavedSession | None:
        if session is None:
            return None
        found = Found(dict(session.record), list(session.history), len(session.history), [])
        saved = found.saved(session.id)
        saved.suspended = self._suspended(session)
        saved.media = files_in(session)
        return saved

    def _suspended(self, session: Session) -> list[SavedTurn]:
        waiting = [turn for turn in [*session.inbox, *session.turns] if turn.status == "suspended"]
        own = {turn.id: self._saved_turn(turn) for turn in waiting}
        return [*self.suspended.get(session.id, ()), *own.values()]

    def _saved_turn(self, turn: Turn) -> SavedTurn:
        info = turn_info(read_turn(TurnId(turn.id), dict(turn.record)))
        calls, info.calls = info.calls, []
        journal = [msgspec.json.decode(entry) for entry in turn.journal]
        return SavedTurn(info, shown_request(turn.record["request"]), journal, calls)

    async def _delete(self, session_id: str, tenant: str) -> Any:
        answer = self.apply("editing/delete", session_id, tenant)
        if answer[0] == b"DELETED":
            existed = await self._asked(self._store.delete, session_id)
            self.suspended.pop(session_id, None)
            self._stamps.pop(session_id, None)
            return [b"DELETED", b"1" if existed or answer[1] else b"", b""]
        return answer

    async def _asked(self, method: Callable[..., T], *args: Any) -> T:
        """Call the store in a thread. Raises all its exceptions as ``AgentError``."""

        def in_thread() -> T:
            try:
                return method(*args)
            except AgentError:
                raise
            except BaseException as exc:  # also GeneratorExit, which must not reach coroutines
                raise StoreError(f"The session store failed: {described(exc)}.") from exc

        return await asyncio.to_thread(in_thread)


def _copy(session: Session, into: Transitions) -> None:
    """Copy a session with its unfinished turns, to try a transition on it."""
    twin = into.sessions[session.id] = Session(session.id)
    twin.record, twin.history = copy.copy(session.record), list(session.history)
    twin.events, twin.files = list(session.events), copy.deepcopy(session.files)
    for turn in session.turns:
        if turn in session.inbox or turn.aside is not None:
            other = into.turns[turn.id] = Turn(turn.id, twin)
            other.record, other.journal, other.aside = copy.copy(turn.record), list(turn.journal), turn.aside
            twin.turns.append(other)
    twin.inbox = [into.turns[turn.id] for turn in session.inbox]


def _same(one: SavedSession, other: SavedSession | None) -> bool:
    return other is not None and msgspec.structs.replace(one, updated=other.updated) == other


def _resume_waiting(transitions: Transitions, session: Session, saved: SavedTurn) -> None:
    """Put a turn that waits for decisions into a session as if it had been suspended here."""
    info, now = saved.turn, transitions.clock()
    turn = transitions.turns[info.turn_id] = Turn(info.turn_id, session)
    turn.journal = [msgspec.json.encode(entry) for entry in saved.journal]
    request = encode(saved.request)
    turn.record.put(
        session=session.id, digest="", request=request, queue="antiphon", status="suspended", run=info.run,
        attempt=info.attempt, crashes=0, errors=0, step=len(turn.journal) + 1, tail=-2, queued_at=now, position=0,
        created=info.created or now, key=info.key or "", input=0, started_at=info.started or now, suspended_at=now,
        first_seq=session.record.number("seq") + 1, queued_seq=session.record.number("seq") + 1,
    )  # fmt: skip
    flat: list[Any] = []
    for call in [*saved.calls, *info.waits]:
        ms = "" if call.until is None else max(call.until - now, 0)
        flat += [*place_of(call), ms, encode(msgspec.structs.replace(call, until=None)), b"", awaited(call)]
    look_at = turn.wait_for(flat, now, 30 * 86_400_000)
    session.turns.append(turn)
    transitions.accepted(turn)
    if session.inbox:
        turn.aside = look_at
        session.record.put(aside=session.record.number("aside") + 1)
    else:
        session.inbox.append(turn)
        session.look_at, session.expires = look_at, None
    transitions.woken(turn)
