"""Stores a turn's journal in Redis, and repeats fenced writes.

A write that Redis cannot accept now is repeated with the same operation id until it succeeds or the lease is lost. It
never takes effect twice, and an outage of Redis does not lose a step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from antiphon.errors import StoreError, StoreUnavailable
from antiphon.events import Event
from antiphon.model import Message, encode
from antiphon.model.usage import Usage
from antiphon.wire.cell import STEER, SUPERSEDED, Cell
from antiphon.wire.errors import JournalShorter
from antiphon.wire.preflight import wait_for_disk
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.loop.steps import (
    JournalEntry,
    StepEntry,
    batched_step,
    decode_entry,
    encode_entry,
    starts_once,
    steered_of,
    usage_of,
)
from antiphon_worker.process.lease import Lease, Stop, StopSignal
from antiphon_worker.process.published import answering, published
from antiphon_worker.process.publisher import TurnSink
from antiphon_worker.providers.base import Published

log = logging.getLogger("antiphon.journal")

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
DISK_SECONDS = 10.0


async def patiently(lease: Lease, write: Callable[[], Awaitable[T]]) -> T:
    """Repeat a write while Redis is unreachable or full. Raises ``StopSignal`` when the lease is superseded."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await write()
        except StoreError as exc:
            if not exc.retryable:
                raise
        if lease.stop is Stop.SUPERSEDED:
            raise StopSignal(Stop.SUPERSEDED)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def used_before(turn: ClaimedTurn) -> Usage | None:
    """Return what the ended turns of the session have used, or None. A damaged total starts again from zero."""
    if not turn.usage:
        return None
    with suppress(msgspec.MsgspecError, UnicodeError):
        return msgspec.json.decode(turn.usage, type=Usage)


def used_with(turn: ClaimedTurn, used: Usage) -> bytes:
    """Return the session's encoded usage, including this run of the turn; b"" if the run used nothing."""
    if not used.tokens:
        return b""
    before = used_before(turn)
    return encode(used if before is None else before + used)


class TurnJournal:
    """The loop's ``Journal`` for one claimed turn."""

    def __init__(self, cell: Cell, turn: ClaimedTurn, lease: Lease, sink: TurnSink) -> None:
        self._cell = cell
        self._turn = turn
        self._lease = lease
        self._sink = sink
        self.entries = [decode_entry(data) for data in turn.journal]
        self._steered = turn.steered  # other turns may wait to steer this one

    @property
    def cancelled(self) -> bool:
        return self._lease.stop is Stop.CANCELLED

    async def published(self, step: int) -> Published:
        return await patiently(self._lease, lambda: published(self._cell, self._turn, step))

    async def checkpoint(self) -> None:
        """Pass a safe point; see ``Lease.checkpoint``."""
        await self._lease.checkpoint()

    async def append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        """Append entries to the journal and publish their events, after all earlier events."""
        pending = await self._sink.settle()
        answer = await self._write(entries, pending + [self._sink.body(event) for event in events])
        self.entries.extend(entries)
        self._sink.step_kept()
        self._steered = self._steered or answer == STEER
        if answer not in ("", STEER) and self._lease.stop is None:
            self._lease.end(Stop.CANCELLED, answer)  # at once: other tools may run
        if starts_once(entries):
            await self._on_disk()

    async def _write(self, entries: Sequence[JournalEntry], bodies: Sequence[bytes]) -> str:
        """Return '', a stop word or ``STEER``. Without entries, only check the fence and the journal's length."""
        encoded = [encode_entry(entry) for entry in entries]
        steps = sum(isinstance(entry, StepEntry) for entry in [*self.entries, *entries])
        usage = used_with(self._turn, usage_of([*self.entries, *entries]))

        async def write() -> str:
            return await self._cell.append_step(
                self._turn, length=len(self.entries), step=steps + 1, entries=encoded, bodies=bodies, usage=usage,
                answering=answering(entries, steps + 1),
            )  # fmt: skip

        with self._from_what_is_left():
            answer = await patiently(self._lease, write)
        if answer == SUPERSEDED:
            self._lease.end(Stop.SUPERSEDED, at_once=False)
            raise StopSignal(Stop.SUPERSEDED)
        return answer

    async def now(self) -> int:
        return await patiently(self._lease, self._cell.server_ms)

    async def steered(self, step: int) -> list[Message]:
        """Take the messages that steer the turn. Asks Redis only if some may wait and no batch has the step."""
        if not self._steered or batched_step(self.entries, step) is not None:
            return []
        with self._from_what_is_left():
            stop, found = await patiently(
                self._lease, lambda: self._cell.steer(self._turn, length=len(self.entries), step=step)
            )
        if stop:
            self._lease.end(Stop.SUPERSEDED if stop == SUPERSEDED else Stop.CANCELLED, stop, at_once=False)
            raise StopSignal(self._lease.stop or Stop.CANCELLED)
        self._steered = False
        entries = [decode_entry(data) for data in found]
        self.entries += entries
        return steered_of(entries)

    async def _on_disk(self) -> None:
        """Wait until the start of an at_most_once tool is on disk, so that a power loss cannot start it twice.

        If it was already lost, the journal on disk lacks it, and the turn is requeued.
        """
        if not self._cell.has_disk:
            return
        give_up_at = time.monotonic() + DISK_SECONDS

        async def wait() -> bool:
            try:
                return await wait_for_disk(self._cell)
            except StoreUnavailable:
                if time.monotonic() < give_up_at:
                    raise
                log.warning(
                    "turn %s starts an at_most_once tool although Redis does not write to its disk: "
                    "a power loss may start it again", self._turn.turn_id,
                    extra={"action": "disk_behind", "turn": self._turn.turn_id},
                )  # fmt: skip
                return False

        await patiently(self._lease, wait)
        await self._write([], [])

    @contextmanager
    def _from_what_is_left(self) -> Generator[None]:
        """Requeue the turn if Redis has lost the end of the journal: it starts again from what is left."""
        try:
            yield
        except JournalShorter as exc:
            self._lease.end(Stop.DRAINED, f"Redis has lost a part of it: {exc.message}", at_once=False)
            raise StopSignal(Stop.DRAINED) from exc
