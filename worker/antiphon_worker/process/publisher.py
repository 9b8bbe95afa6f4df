"""Publishes deltas in calls that many sessions share; each session joins the deltas of a short window.

The first delta after a silence is sent at once. Calls follow each other closely, and a few may be unanswered. After
sending, a session sends again once the answer has arrived and its window has ended; deltas that arrive in the
meantime are joined. A failed emit is repeated, with its batch number, before anything newer of the session is sent.
What a model sends within a long window stays in its socket until the end, to be read at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time

import msgspec

from antiphon.errors import StoreError
from antiphon.events import Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta, TurnRetrying
from antiphon.model import encode
from antiphon.wire.cell import SUPERSEDED, Cell
from antiphon.wire.records import ClaimedTurn, Emit
from antiphon_worker.process.lag import Lag
from antiphon_worker.process.lease import Lease, Stop
from antiphon_worker.process.signal import Signal
from antiphon_worker.process.windows import Windows
from antiphon_worker.providers.base import Source
from antiphon_worker.providers.stream.json_text import valid

log = logging.getLogger("antiphon.publisher")

GATHER_SECONDS = 0.003
EMIT_AT_ONCE = 64
CALLS_AT_ONCE = 8
FULL_EVENTS = 2_000
RETRY_SECONDS = 0.1
FEW_PIECES = 2  # of so many deltas in a row with one piece, the model sends too seldom to join what it sends

_encode_text = msgspec.json.Encoder().encode


class TurnSink:
    """The unsent events of one turn; the loop's ``Sink``."""

    def __init__(self, turn: ClaimedTurn, lease: Lease, publisher: Publisher) -> None:
        self.turn = turn
        self.lease = lease
        self._publisher = publisher
        self._batch = 0
        self._bodies: list[bytes] = []
        self._texts: list[str] = []  # pieces of the delta that still grows
        self._growing: bytes = b""  # the beginning of that delta's body
        self._text_step = 0  # the step, if it is the text of an answer
        self._said: list[str] = []  # the text of the step that is not in the journal yet
        self._front_of: tuple[type[Event], int, str] | None = None  # the kind of delta that came last
        self._last_front = b""
        self._single = FEW_PIECES  # how many deltas in a row had one piece
        self.unanswered: Emit | None = None
        self.full = False
        self.source: Source | None = None
        self._answered = Signal()
        self._published = 0  # how often something was published

    def put(self, event: Event) -> None:
        """Take an event without waiting. Consecutive pieces of one delta are joined."""
        kind = type(event)
        if kind is TextDelta:
            self.text(event.step, event.text)  # type: ignore[attr-defined]
        elif kind is ReasoningDelta or kind is RefusalDelta:
            self._grow(self._front(kind, event.step, ""), event.text)  # type: ignore[attr-defined]
        elif kind is ToolCallDelta and not event.name:  # type: ignore[attr-defined]
            self._grow(self._front(kind, event.step, event.call_id), event.arguments)  # type: ignore[attr-defined]
        else:
            self._close_delta()
            if kind is TurnRetrying:
                self._said.clear()
            self._bodies.append(self.body(event))
            self.full = len(self._bodies) > FULL_EVENTS
            self._publisher.wake(self)

    def text(self, step: int, text: str) -> None:
        """Take a piece of the answer's text, like a ``TextDelta`` but without creating the object."""
        if type(text) is not str:
            _check(text)
        if step != self._text_step:
            self._close_delta()
            self._growing, self._text_step = self._front(TextDelta, step, ""), step
        texts = self._texts
        if not texts:
            self._publisher.wake(self)
        texts.append(text)
        self.full |= len(texts) > FULL_EVENTS

    @property
    def pending(self) -> bool:
        """Return whether something is unsent or unconfirmed."""
        return bool(self._texts or self._bodies or self.unanswered)

    async def drain(self) -> None:
        """Wait until there is room again or the turn must stop."""
        while self.full and self.lease.stop is None:
            await self._answered.wait()

    def body(self, event: Event) -> bytes:
        """Encode an event for the scripts, without seq and at."""
        turn = self.turn
        event.session_id, event.turn_id = turn.session_id, turn.turn_id
        event.run, event.attempt = turn.run, turn.attempt
        return encode(event)

    def said(self) -> str:
        """Return the text of the answer so far that is not yet in a finished step."""
        return "".join([*self._said, *(self._texts if self._text_step else [])])

    def step_kept(self) -> None:
        """Note that the output so far is in the journal."""
        self._said.clear()
        self._note_published()

    async def published_after(self, seen: int) -> int:
        """Wait until the count of publications differs from ``seen``, or the turn stops. Returns the count."""
        while self._published == seen and self.lease.stop is None:
            await self._answered.wait()
        return self._published

    def _note_published(self) -> None:
        self._published += 1
        self._answered.give()

    async def settle(self) -> list[bytes]:
        """Wait until no emit is pending, and take the unsent events for the caller's script."""
        while self.unanswered is not None and self.lease.stop is not Stop.SUPERSEDED:
            self._publisher.wake(self)
            await self._answered.wait()
        return self._take()

    async def flushed(self) -> None:
        """Wait until all events are published or the lease is lost."""
        while self.pending and self.lease.stop is not Stop.SUPERSEDED:
            self._publisher.wake(self)
            await self._answered.wait()

    def next_emit(self) -> Emit | None:
        """Return the next emit: the failed one, or else all unsent events."""
        if self.unanswered is None:
            bodies = self._take()
            if not bodies:
                return None
            self._batch += 1
            self.unanswered = Emit(self.turn.session_id, self.turn.fence, self._batch, bodies)
        return self.unanswered

    def answer(self, answer: str | Exception) -> bool:
        """Record the outcome of the emit. Returns False if it must be repeated."""
        if isinstance(answer, Exception):
            return False
        self.unanswered = None
        if answer == SUPERSEDED:
            self.lease.end(Stop.SUPERSEDED)
        elif answer and self.lease.stop is None:
            self.lease.end(Stop.CANCELLED, answer)
        self._note_published()
        return True

    def read_from(self, source: Source | None) -> None:
        """Learn from which connection the model's answer is read."""
        self.source = source

    @property
    def dense(self) -> bool:
        """Return whether several pieces of the model's answer arrive within a window."""
        return self._single < FEW_PIECES

    def release(self) -> None:
        """Wake all waiting tasks, because the turn stops."""
        self._answered.give()

    def _take(self) -> list[bytes]:
        self._close_delta()
        bodies, self._bodies, self.full = self._bodies, [], False
        return bodies

    def _grow(self, front: bytes, text: str) -> None:
        if type(text) is not str:
            _check(text)
        if front is not self._growing:
            self._close_delta()
            self._growing, self._text_step = front, 0
        self._texts.append(text)
        self.full = len(self._texts) + len(self._bodies) > FULL_EVENTS
        self._publisher.wake(self)

    def _close_delta(self) -> None:
        """End the growing delta, so that the next piece begins an event of its own."""
        if self._texts:
            self._single = 0 if len(self._texts) > 1 else self._single + 1
            text = "".join(self._texts)
            try:
                encoded = _encode_text(text)
            except UnicodeEncodeError:  # a piece may end within a character
                text = valid(text)
                encoded = _encode_text(text)
            self._bodies.append(self._growing + encoded + b"}")
            self._texts = []
            if self._text_step:
                self._said += (text,)  # without a call: this is done for every delta

    def _front(self, kind: type[Event], step: int, call_id: str) -> bytes:
        """Return the body of a delta up to its text, encoded once while deltas of one kind, step and call follow."""
        key = (kind, step, call_id)
        if key != self._front_of:
            if kind is ToolCallDelta:
                probe, name = self.body(ToolCallDelta(step=step, call_id=call_id)), b"arguments"
                probe = probe.replace(b'"arguments":"",', b"", 1)  # JSON has each name once
            else:
                probe, name = self.body(kind(step=step)), b"text"
            self._front_of, self._last_front = key, probe[:-1] + b',"' + name + b'":'
        return self._last_front


def _check(text: object) -> None:
    """Raise ``TypeError`` in the turn that publishes the event: later it would fail all turns of the process."""
    if not isinstance(text, str):
        raise TypeError(f"A piece of an answer must be text, not {type(text).__name__}.")


class Publisher:
    """Sends the events of all sinks of one process."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._waiting: dict[TurnSink, None] = {}  # have unsent events
        self._away: set[TurnSink] = set()  # have sent: not answered yet, or still within their window
        self._failing: set[TurnSink] = set()
        self._some = asyncio.Event()
        self._sending = asyncio.Lock()
        self._left_at = -math.inf  # when the last call was sent
        self._failing_since = 0.0
        self._windows = Windows()
        self._lag = Lag()

    @property
    def late(self) -> bool:
        """Return whether deltas are sent too late, because this process or its Redis is overloaded."""
        return self._lag.high(time.monotonic())

    @property
    def lag(self) -> float:
        """How late deltas were sent in the last second, in seconds."""
        return self._lag.seconds(time.monotonic())

    def wake(self, sink: TurnSink) -> None:
        """Register a sink that has something to send."""
        if sink in self._away:
            return
        if not self._waiting:
            self._some.set()
        self._waiting[sink] = None

    def forget(self, sink: TurnSink) -> None:
        """Remove the sink of a turn that is over; no more of its events are sent."""
        self._waiting.pop(sink, None)
        self._away.discard(sink)
        self._failing.discard(sink)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            for number in range(CALLS_AT_ONCE):
                lanes.create_task(self._send_parts(), name=f"publisher {number}")

    async def _send_parts(self) -> None:
        """Send one call after another, concurrently with other tasks that do the same."""
        while True:
            async with self._sending:
                since = await self._due()
                self._left_at = time.monotonic()
                part = self._next_part()
            if part:
                await self._send(part, since)

    async def _due(self) -> float:
        """Wait until a call is due, and return since when its sinks have waited.

        A call is due immediately after a silence, or if it cannot hold all waiting sinks; else shortly after the last
        call.
        """
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        since = time.monotonic()
        early = self._left_at + GATHER_SECONDS - since
        if early > 0 and len(self._waiting) < EMIT_AT_ONCE:
            await asyncio.sleep(early)
        return since

    def _next_part(self) -> list[tuple[TurnSink, Emit]]:
        """Return the emits of the next call, from the sinks that have waited longest."""
        part: list[tuple[TurnSink, Emit]] = []
        crowded = self._windows.long(len(self._away) + len(self._waiting))
        while self._waiting and len(part) < EMIT_AT_ONCE:
            sink = next(iter(self._waiting))
            del self._waiting[sink]
            if sink.lease.frozen:
                self._away.add(sink)
                self._return_after(RETRY_SECONDS, [sink])
            elif emit := sink.next_emit():
                self._away.add(sink)
                part.append((sink, emit))
                if crowded and sink.source is not None and sink.dense:
                    sink.source.pause()
        return part

    async def _send(self, part: list[tuple[TurnSink, Emit]], since: float) -> None:
        """Send one call. Its sinks then wait for the rest of their window, or for a pause if their emit failed."""
        over = self._windows.end(len(part), len(self._away) + len(self._waiting))
        try:
            answers: list[str | Exception] = await self._cell.emit([emit for _, emit in part])
        except StoreError as exc:
            answers = [exc] * len(part)
        now = time.monotonic()
        self._lag.note(now, now - since)
        served: list[TurnSink] = []
        failed: list[TurnSink] = []
        for (sink, _), answer in zip(part, answers, strict=True):
            if sink.answer(answer):
                self._note_success(sink)
                served.append(sink)
            else:
                self._note_failure(sink, answer)
                failed.append(sink)
        self._return_after(over - now, served)
        self._return_after(RETRY_SECONDS, failed)

    def _return_after(self, seconds: float, sinks: list[TurnSink]) -> None:
        if seconds > 0:
            asyncio.get_running_loop().call_later(seconds, self._return, sinks)
        else:
            self._return(sinks)

    def _return(self, sinks: list[TurnSink]) -> None:
        """Let sinks send again, except those of ended turns."""
        for sink in sinks:
            if sink in self._away:
                self._away.remove(sink)
                if sink.source is not None:
                    sink.source.resume()
                if sink.pending:
                    self.wake(sink)

    def _note_failure(self, sink: TurnSink, error: object) -> None:
        """Log once that publishing fails."""
        if sink not in self._away:
            return  # the turn is over: no success will follow
        self._failing.add(sink)
        if not self._failing_since:
            self._failing_since = time.monotonic()
            log.warning("events cannot be published: %s", error, extra={"action": "outage_began"})

    def _note_success(self, sink: TurnSink) -> None:
        """Log once that all sinks can publish again."""
        self._failing.discard(sink)
        if self._failing_since and not self._failing:
            failed, self._failing_since = time.monotonic() - self._failing_since, 0.0
            log.info("events are published again after %.1f s", failed, extra={"action": "outage_ended"})
