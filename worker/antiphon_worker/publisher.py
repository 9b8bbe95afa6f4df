"""Publishing deltas: small windows, and rounds in which many sessions share a script call.

The first delta of a silence leaves at once. What comes while a round is under way, or within the window, is joined and
leaves with the next one; the first words of a turn shorten the window. A session has at most one unanswered emit; one
that failed is repeated, with its batch number, before anything newer leaves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

import msgspec

from antiphon.errors import StoreError
from antiphon.events import Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta
from antiphon.model import encode
from antiphon.wire.cell import SUPERSEDED, Cell, ClaimedTurn, Emit
from antiphon_worker.lag import Lag
from antiphon_worker.lease import Lease, Stop

__all__ = ["Publisher", "TurnSink"]

log = logging.getLogger("antiphon.publisher")

FIRST_WORDS_SECONDS = 0.003
WINDOW_SECONDS = 0.015
EMIT_AT_ONCE = 64
FULL_EVENTS = 2_000
RETRY_SECONDS = 0.1

_encode_text = msgspec.json.Encoder().encode


class TurnSink:
    """The events of one turn on their way out; the loop's ``Sink``."""

    def __init__(self, turn: ClaimedTurn, lease: Lease, publisher: Publisher) -> None:
        self.turn = turn
        self.lease = lease
        self._publisher = publisher
        self._batch = 0
        self._bodies: list[bytes] = []
        self._texts: list[str] = []  # pieces of the delta that is still growing
        self._growing: bytes = b""  # the front of that delta's body
        self._text_step = 0  # the step whose text it is, where it is one
        self._fronts: dict[tuple[type[Event], int, str], bytes] = {}
        self.unanswered: Emit | None = None
        self._answered = asyncio.Event()

    def put(self, event: Event) -> None:
        """Take an event; never waits. Consecutive pieces of one delta are joined."""
        kind = type(event)
        if kind is TextDelta:
            self.text(event.step, event.text)  # type: ignore[attr-defined]
        elif kind is ReasoningDelta or kind is RefusalDelta:
            self._grow(self._front(kind, event.step, ""), event.text)  # type: ignore[attr-defined]
        elif kind is ToolCallDelta and not event.name:  # type: ignore[attr-defined]
            self._grow(self._front(kind, event.step, event.call_id), event.arguments)  # type: ignore[attr-defined]
        else:
            self._close_delta()
            self._bodies.append(self.body(event))
            self._publisher.wake(self)

    def text(self, step: int, text: str) -> None:
        """Take a piece of the answer's text: what putting a ``TextDelta`` does, but for the object."""
        if step != self._text_step:
            self._close_delta()
            self._growing, self._text_step = self._front(TextDelta, step, ""), step
        texts = self._texts
        if not texts:
            self._publisher.wake(self)
        texts.append(text)

    @property
    def begun(self) -> bool:
        """Something of this attempt has left."""
        return self._batch > 0

    @property
    def full(self) -> bool:
        return len(self._texts) + len(self._bodies) > FULL_EVENTS

    async def drain(self) -> None:
        """Return when there is room again, or when the turn must stop."""
        while self.full and self.lease.stop is None:
            self._answered.clear()
            await self._answered.wait()

    def body(self, event: Event) -> bytes:
        """The event as the scripts take it: without seq and at."""
        turn = self.turn
        event.session_id, event.turn_id = turn.session_id, turn.turn_id
        event.run, event.attempt = turn.run, turn.attempt
        return encode(event)

    async def settle(self) -> list[bytes]:
        """Wait until no emit is under way, and take what has not left yet: the caller's script carries it."""
        while self.unanswered is not None and self.lease.stop is not Stop.SUPERSEDED:
            self._publisher.wake(self)
            self._answered.clear()
            await self._answered.wait()
        return self._take()

    async def flushed(self) -> None:
        """Wait until all that was put is published, or the lease is gone."""
        while (self._bodies or self._texts or self.unanswered) and self.lease.stop is not Stop.SUPERSEDED:
            self._publisher.wake(self)
            self._answered.clear()
            await self._answered.wait()

    def next_emit(self) -> Emit | None:
        """What leaves now: the one that failed before, or all that has come since."""
        if self.unanswered is None:
            bodies = self._take()
            if not bodies:
                return None
            self._batch += 1
            self.unanswered = Emit(self.turn.session_id, self.turn.fence, self._batch, bodies)
        return self.unanswered

    def answer(self, answer: str | Exception) -> bool:
        """Learn what became of the emit. False where it must be repeated."""
        if isinstance(answer, Exception):
            return False
        self.unanswered = None
        if answer == SUPERSEDED:
            self.lease.end(Stop.SUPERSEDED)
        elif answer and self.lease.stop is None:
            self.lease.end(Stop.CANCELLED, answer)
        self._answered.set()
        if self._texts or self._bodies:
            self._publisher.wake(self)
        return True

    def release(self) -> None:
        """Let everyone go on who waits here: the turn stops."""
        self._answered.set()

    def _take(self) -> list[bytes]:
        self._close_delta()
        bodies, self._bodies = self._bodies, []
        return bodies

    def _grow(self, front: bytes, text: str) -> None:
        if front is not self._growing:
            self._close_delta()
            self._growing, self._text_step = front, 0
        self._texts.append(text)
        self._publisher.wake(self)

    def _close_delta(self) -> None:
        """What comes next begins an event of its own."""
        if self._texts:
            self._bodies.append(self._growing + _encode_text("".join(self._texts)) + b"}")
            self._texts = []

    def _front(self, kind: type[Event], step: int, call_id: str) -> bytes:
        """The body of a delta up to its text, encoded once for each step and call."""
        key = (kind, step, call_id)
        front = self._fronts.get(key)
        if front is None:
            if kind is ToolCallDelta:
                probe, name = self.body(ToolCallDelta(step=step, call_id=call_id)), b"arguments"
            else:
                probe, name = self.body(kind(step=step)), b"text"
            front = self._fronts[key] = probe[:-1] + b',"' + name + b'":'
        return front


class Publisher:
    """Sends what the sinks of one process hold."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._waiting: dict[TurnSink, None] = {}
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()  # a turn says its first words
        self._lost_at = 0.0  # when publishing began to fail; 0 while it works
        self._lag = Lag()

    @property
    def late(self) -> bool:
        """Deltas leave later than they should: this process, or its Redis, has as much to do as it can."""
        return self._lag.high(time.monotonic())

    def wake(self, sink: TurnSink) -> None:
        """A sink has something to send."""
        if not self._waiting:
            self._wake.set()
        if not sink.begun:
            self._hurry.set()
        self._waiting[sink] = None

    def forget(self, sink: TurnSink) -> None:
        """A turn is over: nothing of it leaves any more."""
        self._waiting.pop(sink, None)

    async def run(self) -> None:
        """Publish until cancelled. What comes while a round takes long is joined, and leaves with the next one."""
        began = took = 0.0
        while True:
            due = await self._due(began, took)
            began = time.monotonic()
            await self._round()
            ended = time.monotonic()
            self._lag.note(ended, ended - due)
            took = ended - began

    async def _due(self, began: float, took: float) -> float:
        """Wait until the next round is due. The first words of a turn shorten the window, where rounds are quick."""
        await self._wake.wait()
        woken = time.monotonic()
        due = began + WINDOW_SECONDS
        if woken < due and not self._hurry.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(due - woken):
                    await self._hurry.wait()
        if self._hurry.is_set():
            due = min(due, began + max(FIRST_WORDS_SECONDS, 2 * took))
        left = due - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)
        return max(woken, due)

    async def _round(self) -> None:
        self._wake.clear()
        self._hurry.clear()
        sinks, self._waiting = list(self._waiting), {}
        sending = [(sink, emit) for sink in sinks if not sink.lease.frozen and (emit := sink.next_emit())]
        for sink in sinks:
            if sink.lease.frozen and sink.lease.stop is not Stop.SUPERSEDED:
                self._wake_later(sink)
        parts = [sending[start : start + EMIT_AT_ONCE] for start in range(0, len(sending), EMIT_AT_ONCE)]
        if len(parts) == 1:
            self._note_outage(await self._send(parts[0]))
        elif parts:
            failed = await asyncio.gather(*map(self._send, parts))
            self._note_outage(next(filter(None, failed), None))

    async def _send(self, part: list[tuple[TurnSink, Emit]]) -> Exception | None:
        """One call; who could not be served is woken again. Gives what went wrong."""
        try:
            answers: list[str | Exception] = await self._cell.emit([emit for _, emit in part])
        except StoreError as exc:
            answers = [exc] * len(part)
        for (sink, _), answer in zip(part, answers, strict=True):
            if not sink.answer(answer):
                self._wake_later(sink)
        return next((answer for answer in answers if isinstance(answer, Exception)), None)

    def _wake_later(self, sink: TurnSink) -> None:
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake, sink)

    def _note_outage(self, failed: Exception | None) -> None:
        """One line when it begins, one when it ends."""
        if failed is not None and not self._lost_at:
            self._lost_at = time.monotonic()
            log.warning("events cannot be published: %s", failed)
        elif failed is None and self._lost_at:
            log.info("events are published again after %.1f s", time.monotonic() - self._lost_at)
            self._lost_at = 0.0
