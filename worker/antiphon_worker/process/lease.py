"""Leases of one worker process, and the thread that renews them.

A lease is this process's time-limited right to one session. The keeper renews all leases in one round trip from a
thread of its own, so that a tool that blocks the event loop does not look like a dead process. It stops renewing when
the loop has been blocked for ``stall_timeout``, because the process is then killed. Each lease has a deadline on the
monotonic clock. After it, the turn freezes until a renewal shows that the lease is still held or that it is
superseded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from enum import Enum

from antiphon.errors import StoreError
from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.input.values import Keep
from antiphon.telemetry import log_fault
from antiphon.wire.cell import SUPERSEDED, Cell
from antiphon_worker.loop.toolbox import TurnStopped
from antiphon_worker.process.signal import Signal

log = logging.getLogger("antiphon.lease")

RENEW_AT_ONCE = 200
STALL_EXTRA_SECONDS = 2.0  # a supervisor kills the process before that
REPAIR_SECONDS = 1.0


class Stop(Enum):
    """Why a turn must stop before its end."""

    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    DRAINED = "drained"


class StopSignal(TurnStopped):
    """Carries a ``Stop`` out of a turn's work. A tool's ``except Exception`` does not catch it."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop


class Lease:
    """The lease of one session. Used on the event loop; the keeper's thread writes only ``mono_deadline``."""

    __slots__ = (
        "_moved", "_on_stop", "fence", "keep", "mono_deadline", "session_id", "stop", "stop_reason", "turn_id"
    )  # fmt: skip

    def __init__(self, session_id: SessionId, turn_id: TurnId, fence: Fence, mono_deadline: float) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self.fence = fence
        self.mono_deadline = mono_deadline  # the keeper's thread writes it
        self.stop: Stop | None = None
        self.stop_reason = ""
        self.keep: Keep | None = None  # of the last cancel received; also in the turn's record
        self._moved = Signal()  # given after every answer of the keeper and every stop
        self._on_stop: Callable[[], None] | None = None

    @property
    def frozen(self) -> bool:
        """Return whether the deadline has passed: another worker may hold the session by now."""
        return time.monotonic() >= self.mono_deadline

    def end(self, stop: Stop, reason: str = "", *, at_once: bool = True) -> None:
        """Stop the turn at once or at its next safe point. A superseded lease stays superseded."""
        if self.stop is Stop.SUPERSEDED or (self.stop is not None and stop is Stop.DRAINED and not at_once):
            return
        self.stop, self.stop_reason = stop, reason
        self._moved.give()
        if at_once and self._on_stop is not None:
            self._on_stop()

    def on_stop(self, interrupt: Callable[[], None] | None) -> None:
        """Set the function that interrupts the turn's work at an immediate stop; None for no function."""
        self._on_stop = interrupt

    def answered(self) -> None:
        self._moved.give()

    async def checkpoint(self) -> None:
        """Pass a safe point: raise ``StopSignal`` if the turn must stop, and wait while the lease is in doubt."""
        while True:
            if self.stop is not None:
                raise StopSignal(self.stop)
            if not self.frozen:
                return
            await self.moved()

    async def moved(self) -> None:
        """Wait for the keeper's next answer or a stop."""
        await self._moved.wait()


class LeaseKeeper:
    """Renews all leases of the process. ``open_cell`` makes a cell with connections for the thread."""

    def __init__(
        self, open_cell: Callable[[], Cell], worker: str, lease_seconds: float, stall_timeout: float = 60.0
    ) -> None:
        self._open_cell = open_cell
        self._stall_seconds = stall_timeout + STALL_EXTRA_SECONDS if stall_timeout else float("inf")
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._leases: dict[Fence, Lease] = {}  # guarded by _lock
        self._stopping = threading.Event()
        self._ticked = time.monotonic()  # written by the loop, read by the thread

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.fence] = lease

    def remove(self, lease: Lease) -> None:
        with self._lock:
            self._leases.pop(lease.fence, None)

    async def run(self) -> None:
        """Renew the leases until cancelled. Raises ``RuntimeError`` if the thread ends by itself."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._thread, args=(loop,), name="antiphon lease keeper", daemon=True
        )
        thread.start()
        try:
            while True:
                self._ticked = time.monotonic()
                if not thread.is_alive():
                    raise RuntimeError("The lease keeper's thread has ended: see the log above.")
                await asyncio.sleep(min(1.0, self._lease_seconds / 4))
        finally:
            self._stopping.set()
            await asyncio.to_thread(thread.join, 5)

    def _thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            try:
                asyncio.run(self._keep(loop))
            except Exception as exc:  # noqa: BLE001 - a lease that is not renewed costs its turn
                log_fault(log, exc, "the lease keeper failed and starts again")
                self._stopping.wait(min(REPAIR_SECONDS, self._lease_seconds / 8))

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        cell = self._open_cell()
        lost_at = 0.0
        try:
            while not await asyncio.to_thread(self._stopping.wait, self._pause(lost_at)):
                stood_still = time.monotonic() - self._ticked
                if stood_still > self._stall_seconds:
                    log.error(
                        "the event loop has stood still for %.0f s: leases are not renewed",
                        stood_still,
                        extra={"action": "loop_stalled"},
                    )
                    continue
                try:
                    await self._renew(cell, loop)
                except StoreError as exc:
                    if not lost_at:
                        lost_at = time.monotonic()
                        log.warning("leases cannot be renewed: %s", exc, extra={"action": "outage_began"})
                    continue
                if lost_at:
                    log.info(
                        "leases are renewed again after %.1f s",
                        time.monotonic() - lost_at,
                        extra={"action": "outage_ended"},
                    )
                    lost_at = 0.0
        finally:
            await cell.redis.aclose()

    def _pause(self, lost_at: float) -> float:
        return min(0.25, self._lease_seconds / 8) if lost_at else self._lease_seconds / 4

    async def _renew(self, cell: Cell, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            leases = list(self._leases.values())
        for start in range(0, len(leases), RENEW_AT_ONCE):
            some = leases[start : start + RENEW_AT_ONCE]
            sent = time.monotonic()
            pairs = [(lease.session_id, lease.fence) for lease in some]
            answers = await cell.renew(self._worker, pairs, lease_ms=int(self._lease_seconds * 1000))
            for lease, answer in zip(some, answers, strict=True):
                if answer != SUPERSEDED:
                    lease.mono_deadline = sent + self._lease_seconds
                loop.call_soon_threadsafe(_answer, lease, answer)


def _answer(lease: Lease, answer: str) -> None:
    if answer == SUPERSEDED:
        lease.end(Stop.SUPERSEDED)
    elif answer and lease.stop is None:
        lease.end(Stop.CANCELLED, answer)
    else:
        lease.answered()
