"""Records the events of one session as three kinds of subscribers receive them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct, field

from antiphon.events import Event, TextDelta, TurnFailedEvent, TurnStarted
from antiphon.input.request import AgentSpec
from antiphon.model import Message
from antiphon_demo.conversations import Conversation


class PlayedTurn(Struct):
    """One turn as its user saw it. Times are of this process's monotonic clock.

    ``turn_id`` is empty while the turn is submitted: its first event may arrive before the answer to ``submit``.
    """

    text: str
    submitted: float
    turn_id: str = ""
    first_delta: float | None = None
    ended: Event | None = None
    said: str = ""
    deltas: int = 0
    attempts: dict[int, float] = field(default_factory=dict[int, float])

    @property
    def attempt(self) -> int:
        return max(self.attempts, default=0)

    def see(self, event: Event) -> None:
        """Record one of the turn's events."""
        if isinstance(event, TurnStarted):
            self.attempts[event.attempt] = time.monotonic()
            self.said = ""  # an interrupted answer begins again
        elif isinstance(event, TextDelta):
            self.said += event.text
            self.deltas += 1
            self.first_delta = self.first_delta or time.monotonic()
        elif event.terminal:
            self.ended = event


class Follower:
    """Keeps all events that one subscriber received. Only the subscriber's task adds to it."""

    def __init__(self, notice: Callable[[Event], None] | None = None) -> None:
        self.events: list[Event] = []
        self._notice = notice
        self._grown = asyncio.Event()

    @property
    def cursor(self) -> int:
        return self.events[-1].seq if self.events else 0

    def take(self, event: Event) -> None:
        self.events.append(event)
        if self._notice is not None:
            self._notice(event)
        self._grown.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until the condition is true. It is checked after every event."""
        while not holds():
            self._grown.clear()
            await self._grown.wait()


class SessionRecord:
    """One session of the demo: its conversation and its recorded events."""

    def __init__(
        self, conversation: Conversation, agent: AgentSpec, notice: Callable[[SessionRecord, Event], None]
    ) -> None:
        self.conversation = conversation
        self.agent = agent
        self.session_id = f"demo-{conversation.name}"
        self.turns: list[PlayedTurn] = []
        self.messages: list[Message] = []
        self.live = Follower(self._seen)
        self.late = Follower()
        self.reconnected = Follower()
        self.restarted = False
        self._notice = notice

    @property
    def current(self) -> PlayedTurn | None:
        """Return the turn that was submitted last."""
        return self.turns[-1] if self.turns else None

    @property
    def failed(self) -> bool:
        return any(isinstance(turn.ended, TurnFailedEvent) for turn in self.turns)

    @property
    def done(self) -> bool:
        ended = [turn for turn in self.turns if turn.ended is not None]
        return self.failed or len(ended) == len(self.conversation.turns)

    @property
    def halfway(self) -> bool:
        """Return whether the conversation has reached its middle turn."""
        return len(self.turns) > len(self.conversation.turns) // 2

    def answering(self, characters: int) -> bool:
        """Return whether a worker runs a turn that has this many characters and has not ended."""
        turn = self.current
        return turn is not None and turn.attempt > 0 and turn.ended is None and len(turn.said) >= characters

    def submitting(self, text: str) -> PlayedTurn:
        """Record that a turn is about to be submitted."""
        self.turns.append(PlayedTurn(text, time.monotonic()))
        return self.turns[-1]

    def _seen(self, event: Event) -> None:
        turn = self.current
        if turn is not None and event.turn_id == (turn.turn_id or event.turn_id):
            turn.turn_id = event.turn_id
            turn.see(event)
            self.restarted = turn.attempt > 1 and turn.ended is None
        self._notice(self, event)
