"""A turn's journal in Redis, and the patience that every fenced write needs.

A write that Redis cannot take now is repeated, with the same operation id, until it can or until the lease is gone:
it never happens twice, and a pause of Redis does not lose a step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from antiphon.errors import StoreError, StoreUnavailable
from antiphon.events import Event
from antiphon.wire.cell import SUPERSEDED, Cell, ClaimedTurn
from antiphon.wire.errors import JournalShorter
from antiphon_worker.loop.steps import JournalEntry, StepEntry, ToolStarted, decode_entry, encode_entry
from antiphon_worker.process.lease import Lease, Stop, StopSignal
from antiphon_worker.process.publisher import TurnSink

__all__ = ["TurnJournal", "patiently"]

log = logging.getLogger("antiphon.journal")

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
DISK_SECONDS = 10.0


async def patiently(lease: Lease, write: Callable[[], Awaitable[T]]) -> T:
    """Write, again and again while Redis is away or full. Raises ``StopSignal`` when the lease is superseded."""
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


class TurnJournal:
    """The loop's ``Journal`` over one claimed turn."""

    def __init__(self, cell: Cell, turn: ClaimedTurn, lease: Lease, sink: TurnSink) -> None:
        self._cell = cell
        self._turn = turn
        self._lease = lease
        self._sink = sink
        self._entries = [decode_entry(data) for data in turn.journal]

    @property
    def entries(self) -> list[JournalEntry]:
        return self._entries

    async def checkpoint(self) -> None:
        """A safe point; see ``Lease.checkpoint``."""
        await self._lease.checkpoint()

    async def append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        """Journal entries and publish what they mean, after all that was published before."""
        pending = await self._sink.settle()
        bodies = pending + [self._sink.body(event) for event in events]
        encoded = [encode_entry(entry) for entry in entries]
        steps = sum(isinstance(entry, StepEntry) for entry in [*self._entries, *entries])

        async def write() -> str:
            return await self._cell.append_step(
                self._turn, length=len(self._entries), step=steps + 1, entries=encoded, bodies=bodies
            )

        try:
            answer = await patiently(self._lease, write)
        except JournalShorter as exc:
            self._lease.end(Stop.DRAINED, f"Redis has lost a part of it: {exc.message}", at_once=False)
            raise StopSignal(Stop.DRAINED) from exc
        if answer == SUPERSEDED:
            self._lease.end(Stop.SUPERSEDED, at_once=False)
            raise StopSignal(Stop.SUPERSEDED)
        self._entries.extend(entries)
        if answer and self._lease.stop is None:
            self._lease.end(Stop.CANCELLED, answer, at_once=False)
        if any(isinstance(entry, ToolStarted) for entry in entries):
            await self._on_disk()

    async def _on_disk(self) -> None:
        """Before a tool starts that must not start twice: a power loss of Redis must not forget that it did."""
        give_up_at = time.monotonic() + DISK_SECONDS

        async def wait() -> bool:
            try:
                return await self._cell.wait_for_disk()
            except StoreUnavailable:
                if time.monotonic() < give_up_at:
                    raise
                log.warning(
                    "turn %s starts a tool that is at_most_once, and Redis does not write to its disk",
                    self._turn.turn_id,
                    extra={"action": "disk_behind", "turn": self._turn.turn_id},
                )
                return False

        await patiently(self._lease, wait)
