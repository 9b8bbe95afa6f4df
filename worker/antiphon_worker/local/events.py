"""What the agent loop of a local turn writes to: a queue of events and a journal, both in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon.events import Event, TextDelta, TurnRetrying, TurnSteered
from antiphon.input.request import input_bytes
from antiphon.model import Message
from antiphon.session.turn_info import TurnInfo
from antiphon_worker.local.inbox import Inbox, Place
from antiphon_worker.local.session import LocalSession
from antiphon_worker.loop.steps import JournalEntry, Steered, Steering, StepEntry

FULL = 1000


class EventQueue:
    """The sink of the agent loop: numbers events and queues them. One task puts events, another takes them."""

    def __init__(self, session: LocalSession, place: Place, turn: TurnInfo) -> None:
        self._session = session
        self._place = place
        self._turn = turn
        self.said: list[str] = []  # the text of the step that is not in the journal yet
        self._events: list[Event] = []
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        if type(event) is TurnRetrying:
            self.said.clear()
        self._events.append(self._session.numbered(event, self._turn))
        self._place.step = max(self._place.step, event.step)
        self._changed.set()

    def text(self, step: int, text: str) -> None:
        self.said.append(text)
        self.put(TextDelta(step=step, text=text))

    @property
    def full(self) -> bool:
        return len(self._events) >= FULL

    async def drain(self) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()

    def begin(self) -> None:
        """Take events again, after a suspension."""
        self._ended = False
        self.said.clear()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def take(self) -> list[Event]:
        """Wait for events and return all since the last call. Returns an empty list when the loop has ended."""
        while not self._events and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        batch, self._events = self._events, []
        self._room.set()
        return batch


class MemoryJournal:
    """The journal of a local turn: a list in memory, which does not survive this process."""

    def __init__(self, queue: EventQueue, inbox: Inbox, place: Place) -> None:
        self.entries: list[JournalEntry] = [*place.steered]  # of the attempts and runs before
        self.written: list[JournalEntry] = [*place.steered]
        self._queue = queue
        self._inbox = inbox
        self._place = place

    def begin(self) -> None:
        """Begin an attempt, after the last finished step of those before."""
        self.entries = [*self.written]

    @property
    def next_step(self) -> int:
        return 1 + sum(isinstance(entry, StepEntry) for entry in self.written)

    async def append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        self.written += entries
        self._queue.said.clear()
        for event in events:
            self._queue.put(event)

    async def checkpoint(self) -> None:
        """Return at once, because local turns have no lease."""

    async def steered(self, step: int) -> list[Message]:
        """Take what waits to steer the turn."""
        taken: list[Message] = []
        for other in self._inbox.take_steering(self._place):
            messages = other.taken(self._place)
            if messages is None:  # it was cancelled
                continue
            assert other.turn is not None
            entry = Steered(other.turn_id, Steering(messages), other.turn.created)
            taken += entry.messages
            self._place.steered.append(entry)
            self.written.append(entry)
            whole = input_bytes(messages) > 0
            said = [message.copied() for message in messages] if whole else []
            event = TurnSteered(step=step, steered_id=other.turn_id, input=said, input_omitted=not whole)
            self._queue.put(event)
        return taken
