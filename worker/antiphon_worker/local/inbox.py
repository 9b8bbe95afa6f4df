"""The inbox of a local session, which runs turns and edits one at a time, in the order of their arrival."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from antiphon.errors import SessionBusy
from antiphon.session.reentry import own_turns, turns_read_here, waits_for_its_reader, waits_for_itself
from antiphon.session.streams import CLOSING_STEPS

__all__ = ["Inbox", "Place"]


class Place:
    """A turn or an edit in a session's inbox."""

    def __init__(self, name: str = "") -> None:
        self.turn_id = name  # empty for an edit
        self.step = 1  # written by the turn's sink, read by status
        self.joined = False  # written by the inbox, like ``future``
        self.future: Future[None] = Future()


class Inbox:
    """Runs the turns and edits of one session in order. They can come from any thread and event loop."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._lock = threading.Lock()
        self._waiting: deque[Place] = deque()  # guarded by the lock
        self.current: Place | None = None  # written under the lock

    @asynccontextmanager
    async def place(self, place: Place, *, reject: bool = False) -> AsyncGenerator[None, None]:
        """Wait until this place is the current one, and keep it current inside the block.

        With ``reject``, raises ``SessionBusy`` at once instead of waiting. Raises ``UsageError`` if waiting would
        deadlock.
        """
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
        """Add the place to the inbox. With ``reject``, raises ``SessionBusy`` if the inbox is not empty."""
        with self._lock:
            if self.current is not None and reject:
                raise SessionBusy("The session is running a turn: try again when it has ended.")
            place.joined = True
            if self.current is None:
                self.current = place
                place.future.set_result(None)
            else:
                self._waiting.append(place)

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
            if self.current is not place:
                return
            while self._waiting:
                place = self._waiting.popleft()
                if place.future.set_running_or_notify_cancel():
                    self.current = place
                    place.future.set_result(None)
                    return
            self.current = None
