"""Recovers turns without a holder: expired leases, due retries and delays, and turns that RQ's tools removed."""

from __future__ import annotations

import asyncio
import logging
import time

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.preflight import seconds_up
from antiphon.wire.records import Reaped
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.reaper")

AT_ONCE = 100

ORDINARY = ("due", "retried", "cancelled", "resumed", "not_decided")
SAID = {
    "due": "its delay is over",
    "retried": "its retry is due",
    "cancelled": "cancelled by RQ's tools",
    "recovered": "its worker died, so it starts again",
    "failed": "it failed, because its workers died too often",
    "resumed": "the time limit of its last open call has decided, so it goes on",
    "not_decided": "it failed, because nobody decided about a call of it in time",
    "repaired": "it was missing in its queue and is back",
    "corrected": "RQ's tools changed its job after its end, which is corrected",
    "dropped": "its record is gone, so it is dropped",
    "quarantined": "its data are damaged, so it is set aside: `antiphon failed` shows why",
}


class Reaper:
    """Checks the sessions that are due for a check. Reapers of several workers do not interfere.

    If Redis or this process was paused, Redis has just started, or its clock was put forward, live holders may have
    expired leases. They get the time of one more lease to renew them before their turns start elsewhere. Due retries
    and delays do not wait for this.
    """

    pause_seconds = 0.25

    def __init__(self, cell: Cell, settings: Settings) -> None:
        self._cell = cell
        self._settings = settings
        self._looked = time.monotonic()
        self._quiet_until = 0.0
        self._ahead_ms: float | None = None  # how far the server's clock is ahead of our monotonic clock

    async def run(self) -> None:
        """Reap until cancelled."""
        self._wait(await self._quiet_seconds())
        acts: list[Reaped] = []
        while True:
            await asyncio.sleep(self.pause_seconds if len(acts) < AT_ONCE else 0.0)
            try:
                await self._look_at_clocks()
                acts = await self._cell.reap(
                    limit=AT_ONCE,
                    crash_limit=self._settings.crash_limit,
                    spare=time.monotonic() < self._quiet_until,
                    queues=self._settings.queues,
                )
            except StoreError as exc:  # the consumer logs it
                self._wait(self._settings.lease)
                acts = []
                if not exc.retryable:
                    raise
            for act in acts:
                log.log(
                    logging.INFO if act.what in ORDINARY else logging.WARNING,
                    "turn %s of session %s: %s",
                    act.turn_id, act.session_id or "(none: an RQ job)", SAID.get(act.what, act.what),
                    extra={"action": f"reaped_{act.what}", "session": act.session_id, "turn": act.turn_id},
                )  # fmt: skip

    async def _quiet_seconds(self) -> float:
        """Return how long to spare running turns at the start: holders could not renew while Redis was unreachable."""
        try:
            if not await self._cell.busy_sessions():
                return 0.0
            return self._settings.lease - await seconds_up(self._cell.redis)
        except StoreError:
            return self._settings.lease

    async def _look_at_clocks(self) -> None:
        """Ask Redis for its time before reaping, so that a pause or a jump of the clock is noticed first."""
        ahead_ms = await self._cell.server_ms() - time.monotonic() * 1000
        self._compare_clocks(ahead_ms)
        now = time.monotonic()
        if now - self._looked > self.pause_seconds + self._settings.lease / 4:
            self._wait(self._settings.lease)
        self._looked = now

    def _compare_clocks(self, ahead_ms: float) -> None:
        before, self._ahead_ms = self._ahead_ms, ahead_ms
        if before is not None and ahead_ms - before > self._settings.lease * 1000 / 4:
            log.warning(
                "the clock of Redis was put forward by %.0f s: holders get time to renew their leases",
                (ahead_ms - before) / 1000,
                extra={"action": "clock_forward"},
            )
            self._wait(self._settings.lease)

    def _wait(self, seconds: float) -> None:
        self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)
