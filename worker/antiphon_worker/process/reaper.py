"""Recovering what nobody holds any more: expired leases, due retries and delays, what RQ's tools took out."""

from __future__ import annotations

import asyncio
import logging
import time

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.preflight import seconds_up
from antiphon_worker.settings import Settings

__all__ = ["Reaper"]

log = logging.getLogger("antiphon.reaper")

PAUSE_SECONDS = 0.25

ORDINARY = ("due", "retried", "cancelled")
SAID = {
    "due": "its delay is over",
    "retried": "its retry is due",
    "cancelled": "cancelled, as RQ's tools asked",
    "recovered": "its worker died, it goes on",
    "failed": "failed, its workers died too often",
    "repaired": "it was missing in its queue",
    "corrected": "RQ's tools had changed its job after its end",
    "dropped": "its record is gone, it is dropped",
    "quarantined": "its data are damaged, it is set aside: `antiphon failed` says why",
}


class Reaper:
    """Looks at what is due for a look. Several workers' reapers do no harm to each other.

    When Redis or this process stood still, when Redis has just started, or when its clock was put forward, holders may
    be alive with leases that have run out: they have one lease to renew before their turns start again elsewhere.
    """

    def __init__(self, cell: Cell, settings: Settings) -> None:
        self._cell = cell
        self._settings = settings
        self._looked = time.monotonic()
        self._quiet_until = 0.0
        self._ahead_ms: float | None = None  # how far the server's clock is ahead of our monotonic one

    async def run(self) -> None:
        """Reap until cancelled."""
        await asyncio.sleep(
            PAUSE_SECONDS
        )  # the connections of a worker that starts are opened one after the other
        self._wait(await self._quiet_seconds())
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            if await self._must_wait():
                continue
            try:
                acts = await self._cell.reap(
                    crash_limit=self._settings.crash_limit, queues=self._settings.queues
                )
            except StoreError:
                self._wait(self._settings.lease)  # the consumer's log says what is wrong
                continue
            for act in acts:
                log.log(
                    logging.INFO if act.what in ORDINARY else logging.WARNING,
                    "turn %s of session %s: %s",
                    act.turn_id, act.session_id or "(none: an RQ job)", SAID.get(act.what, act.what),
                    extra={"action": f"reaped_{act.what}", "session": act.session_id, "turn": act.turn_id},
                )  # fmt: skip

    async def _quiet_seconds(self) -> float:
        """How long to leave alone what runs when this reaper starts: holders could not renew while Redis was away."""
        try:
            if not await self._cell.busy_sessions():
                return 0.0
            return self._settings.lease - await seconds_up(self._cell.redis)
        except StoreError:
            return self._settings.lease

    async def _must_wait(self) -> bool:
        """Ask Redis for its time first: a pause or a jump is met by this question, and not by the reaping."""
        try:
            ahead_ms = await self._cell.server_ms() - time.monotonic() * 1000
        except StoreError:
            self._wait(self._settings.lease)
        else:
            self._compare_clocks(ahead_ms)
        now = time.monotonic()
        if now - self._looked > PAUSE_SECONDS + self._settings.lease / 4:
            self._wait(self._settings.lease)
        self._looked = now
        return now < self._quiet_until

    def _compare_clocks(self, ahead_ms: float) -> None:
        before, self._ahead_ms = self._ahead_ms, ahead_ms
        if before is not None and ahead_ms - before > self._settings.lease * 1000 / 4:
            log.warning(
                "the clock of Redis was put forward by %.0f s: leases get time to be renewed",
                (ahead_ms - before) / 1000,
                extra={"action": "clock_forward"},
            )
            self._wait(self._settings.lease)

    def _wait(self, seconds: float) -> None:
        self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)
