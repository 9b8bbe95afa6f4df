"""The inbox of a local session, which runs turns and edits one at a time, in the order of their arrival."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager

from msgspec import Struct

from antiphon.errors import SessionBusy
from antiphon.input.values import IfBusy, Keep
from antiphon.model import Message, Response
from antiphon.session.background import own_turns, turns_read_here, waits_for_its_reader, waits_for_itself
from antiphon.session.streams import CLOSING_STEPS
from antiphon.session.turn_info import TurnInfo
from antiphon_worker.loop.steps import Steered


class Stopped(Struct, frozen=True):
    """The wish that a turn stops, and what stays of it in the history."""

    reason: str
    keep: Keep


class Place:
    """A turn or an edit in a session's inbox."""

    def __init__(self, turn: TurnInfo | None = None) -> None:
        self.turn = turn  # None for an edit
        self.turn_id = turn.turn_id if turn else ""
        self.stopped: Stopped | None = None
        self._interrupt: Callable[[], None] | None = None
        self.step = 1  # written by the turn's sink, read by status
        self.joined = False  # written by the inbox, like ``future`` and ``ended``
        self.future: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.outcome: Future[Response] = Future()  # of the turn, for those who have steered it
        self.steers: Place | None = None  # the turn that may take the input of this one
        self.taken: Callable[[Place], list[Message] | None] = lambda _: None
        self.steered: list[Steered] = []  # what the turn was steered with, also in earlier runs
        self._lock = threading.Lock()
        self.sealed = False

    def stop(self, reason: str, keep: Keep) -> bool:
        """Stop the turn, from any thread. The first wish counts. Returns False if the turn is ending by itself."""
        with self._lock:
            if self.sealed:
                return False
            self.stopped = self.stopped or Stopped(reason, keep)
        if self._interrupt is not None:
            self._interrupt()
        return True

    async def cancel(self, reason: str, keep: Keep) -> str:
        """Cancel the turn that runs here. Returns ``requested``, or the status that it ends with by itself."""
        if self.stop(reason, keep):
            return "requested"
        await asyncio.shield(asyncio.wrap_future(self.ended))
        assert self.turn is not None
        return self.turn.status

    def seal(self) -> bool:
        """Let the turn end by itself: nothing stops it any more. Returns False if it was stopped before."""
        with self._lock:
            self.sealed = self.stopped is None
            return self.sealed

    def on_stop(self, interrupt: Callable[[], None]) -> None:
        """Set what interrupts the turn. It is called at once if the turn was stopped before."""
        self._interrupt = interrupt
        if self.stopped is not None:
            interrupt()


class Inbox:
    """Runs the turns and edits of one session in order. They can come from any thread and event loop."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._lock = threading.Lock()
        self._waiting: deque[Place] = deque()  # guarded by the lock
        self.current: Place | None = None  # written under the lock

    @asynccontextmanager
    async def place(self, place: Place, if_busy: IfBusy = "enqueue") -> AsyncGenerator[None, None]:
        """Wait until this place is the current one, and keep it current inside the block.

        ``if_busy`` as in ``join``. Raises ``UsageError`` if waiting would deadlock.
        """
        if not place.joined:
            if if_busy != "reject":
                await self.check_others_turn()
            self.join(place, if_busy)
        await self._served(place)
        try:
            yield
        finally:
            self.leave(place)

    def join(self, place: Place, if_busy: IfBusy = "enqueue") -> int:
        """Add the turn to the inbox, and return how many precede it. ``if_busy`` is what to do if there are any.

        ``reject`` raises ``SessionBusy``. With ``interrupt`` and ``rollback`` the place goes directly behind the turn
        that runs, or runs next if that one is being stopped already, and stops it. With ``steer`` the current turn may
        take its input.
        """
        with self._lock:
            if self.current is not None and if_busy == "reject":
                raise SessionBusy(
                    f"The session is running {f'the turn {self._turn_id}' if self._turn_id else 'an edit'}: try again "
                    "when it has ended.",
                    turn_id=self._turn_id,
                )
            place.joined = True
            if self.current is None:
                self.current = place
                place.future.set_result(None)
                return 0
            stopped = self._stopped_by(if_busy)
            if if_busy == "steer" and self.current.turn is not None and self.current.stopped is None:
                place.steers = self.current
            index = self._waiting.index(stopped) + 1 if stopped in self._waiting else 0
            self._waiting.insert(index if stopped else len(self._waiting), place)
            position = self._waiting.index(place) + 1
        if stopped is not None and if_busy == "interrupt":
            stopped.stop(f"interrupted by turn {place.turn_id}", "partial")
        elif stopped is not None:
            stopped.stop(f"rolled back for turn {place.turn_id}", "nothing")
        return position

    def _stopped_by(self, if_busy: IfBusy) -> Place | None:
        """The first turn that is not being stopped already, where a new one is to stop it."""
        if if_busy not in ("interrupt", "rollback") or self.current is None:
            return None
        turns = (one for one in [self.current, *self._waiting] if one.turn and not one.future.cancelled())
        return next((one for one in turns if one.stopped is None), None)

    def take_steering(self, place: Place) -> list[Place]:
        """Remove the places that wait to steer this one, unless it is being stopped."""
        with self._lock:
            steering = [one for one in self._waiting if one.steers is place and place.stopped is None]
            for one in steering:
                self._waiting.remove(one)
        taken = [one for one in steering if one.future.set_running_or_notify_cancel()]
        for one in taken:
            one.future.set_result(None)
        return taken

    async def come_back(self, place: Place) -> None:
        """Wait until a place that has left is current again. It stands in front of those that wait."""
        with self._lock:
            place.future = Future()
            if self.current is None:
                self.current = place
                return
            self._waiting.appendleft(place)
        await self._served(place)

    async def check_others_turn(self) -> None:
        """Check before waiting. Raises ``UsageError`` in a tool of the running turn and in the reader of its
        events."""
        if self._turn_id in own_turns(self._session_id):
            raise waits_for_itself(self._session_id)
        for _ in range(CLOSING_STEPS):
            if self._turn_id not in turns_read_here():
                return
            await asyncio.sleep(
                0
            )  # after a reader leaves ``async for``, the stream closes a few loop steps later
        raise waits_for_its_reader(self._session_id)

    @property
    def _turn_id(self) -> str:
        current = self.current
        return "" if current is None else current.turn_id

    @property
    def waiting(self) -> list[Place]:
        with self._lock:
            return [place for place in self._waiting if not place.future.cancelled()]

    @property
    def turn_ids(self) -> list[str]:
        """The ids of the turns, the current one first."""
        with self._lock:
            places = [self.current, *self._waiting] if self.current else []
        return [place.turn_id for place in places if place.turn_id]

    async def _served(self, place: Place) -> None:
        if place.future.done():
            return
        try:
            await asyncio.wrap_future(place.future)
        except asyncio.CancelledError:
            if not place.future.cancel():  # it was already served
                self.leave(place)
            raise

    def leave(self, place: Place) -> None:
        """Make the next place current, if this one still is."""
        with self._lock:
            if place.sealed and not place.ended.done():
                place.ended.set_result(None)
            if self.current is not place:
                return
            while self._waiting:
                place = self._waiting.popleft()
                if place.future.set_running_or_notify_cancel():
                    self.current = place
                    place.future.set_result(None)
                    return
            self.current = None
