"""``MemoryCell``: a cell without Redis. It has the interface of ``Cell``, and its scripts are ``Transitions``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from antiphon.encryption.records import Sealer
from antiphon.errors import ClientClosed, TurnNotFound
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.values import Keep, now_ms
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import RESYNC, Listener
from antiphon.wire.keys import PREFIX, Keys
from antiphon.wire.records import TurnRecord, read_turn
from antiphon_worker.local.moves import ENDED
from antiphon_worker.local.records import Session, Turn
from antiphon_worker.local.transitions import Transitions

MOST_EVENTS = 1_000
PUT_BACK_MS = 1_000  # smaller steps back are normal clock corrections


class Clock:
    """The time of this machine in ms since 1970. It continues when the clock is set back, so that due times hold."""

    def __init__(self) -> None:
        self._ahead = 0
        self._last = now_ms(), time.monotonic_ns()

    def __call__(self) -> int:
        now, passed = now_ms() + self._ahead, time.monotonic_ns()
        expected = self._last[0] + (passed - self._last[1]) // 1_000_000
        if now < expected - PUT_BACK_MS:
            self._ahead += expected - now
            now = expected
        self._last = now, passed
        return now


class MemoryCell(Cell):
    """The sessions of one process, and the live channels of their events. Used from any thread and event loop."""

    has_disk = False
    reached = True  # as in a LiveFeed

    def __init__(self) -> None:
        self.redis = None  # type: ignore[assignment]
        self.seal = Sealer(None)
        self.keys = Keys(PREFIX)
        self.database = 0
        self.transitions = Transitions(Clock(), MOST_EVENTS)
        self.transitions.published = self._publish
        self.lock = threading.RLock()  # guards the transitions and the listeners
        self._listeners: dict[str, list[tuple[asyncio.AbstractEventLoop, Listener]]] = {}

    @property
    def name(self) -> str:
        return "memory"

    async def run(self, name: str, *arguments: Any) -> Any:
        return self.apply(name, *arguments)

    def apply(self, name: str, *arguments: Any) -> Any:
        """Make a transition, and return the answer that the script of this name would return."""
        with self.lock:
            return getattr(self.transitions, name.rpartition("/")[2])(*arguments)

    def session(self, session_id: str) -> Session | None:
        with self.lock:
            return self.transitions.find(session_id)

    def known_sessions(self) -> list[Session]:
        """Return the sessions that exist."""
        with self.lock:
            return [one for name in list(self.transitions.sessions) if (one := self.transitions.find(name))]

    def known_turn(self, turn_id: str) -> Turn:
        """Return a turn. Raises ``TurnNotFound``."""
        found = self.transitions.turns.get(turn_id)
        if found is None:
            raise TurnNotFound(f"There is no turn {turn_id!r}, or it has expired.", turn_id=turn_id)
        return found

    def seconds_until(self, turn: Turn) -> float | None:
        """Return the seconds until something of the turn is due; None if it has ended, or waits for others."""
        with self.lock:
            times = [turn.due, turn.aside]
            if turn.session.inbox[:1] == [turn]:
                times.append(turn.session.look_at)
        known = [at for at in times if at is not None]
        return max(min(known) - self.transitions.clock(), 0) / 1000 if known else None

    @property
    def is_idle(self) -> bool:
        """Whether all its turns have ended."""
        return all(turn.status in ENDED for turn in list(self.transitions.turns.values()))

    def forget_worker(self, name: str) -> None:
        """Forget the last claim of a worker that has ended."""
        with self.lock:
            self.transitions.tokens.pop(name, None)

    def after_fork(self) -> None:
        """Forget the unfinished turns in a forked child, which lacks the parent's threads and tasks."""
        self.lock = threading.RLock()
        self._listeners.clear()
        for turn in list(self.transitions.turns.values()):
            if turn.status not in ENDED:
                del self.transitions.turns[turn.id]
        self.transitions.queues.clear()
        for session in self.transitions.sessions.values():
            session.inbox.clear()
            session.let_go()
            session.turns = [turn for turn in session.turns if turn.status in ENDED]

    # Reads without a script

    async def server_ms(self) -> int:
        return self.transitions.clock()

    async def turn(self, turn_id: TurnId) -> TurnRecord:
        with self.lock:
            return read_turn(turn_id, dict(self.known_turn(turn_id).record))

    async def keep_of(self, turn_id: TurnId) -> Keep:
        return self.known_turn(turn_id).record.text("keep") or "steps"  # type: ignore[return-value]

    async def session_fields(self, session_id: SessionId, *names: str) -> list[bytes | None]:
        session = self.session(session_id)
        return [session.record.get(name) if session else None for name in names]

    async def fields_of_sessions(
        self, session_ids: Sequence[SessionId], *names: str
    ) -> list[list[bytes | None] | Exception]:
        return [await self.session_fields(session_id, *names) for session_id in session_ids]

    async def log(
        self, session_id: SessionId, names: tuple[str, ...], first: int, count: int
    ) -> tuple[list[bytes | None], list[tuple[int, bytes]]]:
        with self.lock:
            session = self.transitions.find(session_id)
            if session is None:
                return [None for _ in names], []
            place = session.place_of(first)
            return [session.record.get(name) for name in names], session.events[place : place + count]

    async def place_of_turn(self, session_id: SessionId, turn_id: TurnId) -> int:
        with self.lock:
            record, session = self.known_turn(turn_id).record, self.transitions.find(session_id)
            queued, newest = record.number("queued_seq"), session.record.number("seq") if session else 0
            if session and queued and session.events and session.events[0][0] <= queued:
                return queued - 1
            begun = record.number("first_seq") or record.number("last_seq")
            return begun - 1 if begun else newest

    async def end_is_kept(self, session_id: SessionId, turn: TurnRecord) -> bool:
        _, found = await self.log(session_id, (), turn.last_seq, 1)
        return bool(found) and found[0][0] == turn.last_seq and turn.turn_id.encode() in found[0][1]

    async def newest_turns(
        self, session_id: SessionId, most: int = 100
    ) -> tuple[list[TurnId], list[tuple[int, TurnId]]]:
        with self.lock:
            session = self.transitions.find(session_id)
            turns = session.turns[-most:] if session else []
            failed = [TurnId(turn.id) for turn in reversed(turns) if turn.status == "failed"]
            return failed, sorted((turn.due, TurnId(turn.id)) for turn in turns if turn.due is not None)

    # Live channels, as in ``LiveFeed``

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Listener]:
        """Listen to a channel. ``RESYNC`` comes first."""
        place = asyncio.get_running_loop(), Listener()
        with self.lock:
            self._listeners.setdefault(channel, []).append(place)
        place[1].push(RESYNC)
        try:
            yield place[1]
        finally:
            with self.lock:
                known = self._listeners.get(channel, [])
                if place in known:
                    known.remove(place)
                if not known:
                    self._listeners.pop(channel, None)
            place[1].close(ClientClosed())

    def check_open(self) -> None:
        """Do nothing: a memory cell is never closed."""

    def reconnect(self) -> None:
        """Do nothing: there is no connection."""

    def _publish(self, session_id: str, events: list[bytes]) -> None:
        here = asyncio._get_running_loop()
        for loop, listener in self._listeners.get(self.keys.live(0, session_id), ()):
            for event in events:
                if loop is here:
                    listener.push(event)
                else:
                    with suppress(RuntimeError):  # the loop has ended, and the reader with it
                        loop.call_soon_threadsafe(listener.push, event)
