"""Taking turns: wait for a doorbell while there is room, claim in batches, start what was claimed."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.exceptions import RedisError

from antiphon.errors import StoreError
from antiphon.ids import TurnId
from antiphon.wire.cell import Cell, ClaimedTurn, Claims, ForeignJob
from antiphon.wire.line import Line
from antiphon_worker.lease import Lease, LeaseKeeper, Stop
from antiphon_worker.settings import Settings

__all__ = ["Consumer"]

log = logging.getLogger("antiphon.consumer")

BATCH = 8
BELL_SECONDS = 1
OUTAGE_PAUSE_SECONDS = 0.5
CALM_SECONDS = 1.0


class Consumer:
    """Takes turns while there is room and runs them, each in a task of its own."""

    def __init__(
        self,
        cell: Cell,
        keeper: LeaseKeeper,
        settings: Settings,
        worker: str,
        *,
        run_turn: Callable[[ClaimedTurn, Lease], Awaitable[str]],
        run_foreign: Callable[[ForeignJob], Awaitable[None]],
        run_alone: Callable[[TurnId], Awaitable[None]],
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cell = cell
        self._keeper = keeper
        self._settings = settings
        self._worker = worker
        self._run_turn = run_turn
        self._run_foreign = run_foreign
        self._run_alone = run_alone
        self._late = late
        self._bells = [cell.keys.bell(queue) for queue in settings.queues]
        self._line = Line(cell.redis.connection_pool, patience=BELL_SECONDS)  # where it hears them
        self._tasks: dict[asyncio.Task[None], Lease | None] = {}
        self._room = asyncio.Event()
        self._token = ""  # names the claim whose answer is still awaited
        self._sent = 0.0  # when that was first asked: its leases run from then on
        self._lost_at = 0.0

    @property
    def busy(self) -> int:
        """Turns under way."""
        return len(self._tasks)

    def leases(self) -> list[Lease]:
        return [lease for lease in self._tasks.values() if lease is not None]

    async def run(self) -> None:
        """Take turns until cancelled; turns under way go on."""
        try:
            await self._take()
        finally:
            await self._line.aclose()  # a bell that rings now is another worker's

    async def _take(self) -> None:
        limit = BATCH
        while True:
            free = self._settings.concurrency - len(self._tasks)
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            more = await self._claim(min(free, limit))
            await asyncio.sleep(0)  # what was claimed goes to its model first
            limit = await self._appetite()  # asked before the bell is: who takes it comes at once
            if not more:
                await self._wait_for_bell()

    async def idle(self) -> None:
        """Return when no turn is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def stop_turns(self, *, at_once: bool) -> None:
        """Give back what is under way: at the next safe point, or at once."""
        for lease in self.leases():
            lease.end(Stop.DRAINED, at_once=at_once)

    async def abandon(self) -> None:
        """Let go of what is still under way: its leases have expired, and others recover it."""
        tasks = list(self._tasks)
        for task in tasks:
            log.warning("%s could not be given back: its lease runs out", task.get_name())
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _appetite(self) -> int:
        """How many turns to take next. While what runs is late already: none, and one after a second."""
        for _ in range(20):
            if not self._tasks or not self._late():
                return BATCH
            await asyncio.sleep(CALM_SECONDS / 20)
        return 1

    async def _claim(self, limit: int) -> bool:
        """One claim; true where there may be more to take.

        An answer that was lost is asked for again: the same token brings the same turns.
        """
        if not self._token:
            self._token, self._sent = secrets.token_hex(6), time.monotonic()
        mono_deadline = self._sent + self._settings.lease
        try:
            claims = await self._ask(limit)
        except StoreError as exc:
            await self._outage(exc)
            return True
        except asyncio.CancelledError:
            with suppress(StoreError):  # what a claim under way brings is ours, and is drained with the rest
                self._start(await self._ask(limit), mono_deadline)
            raise
        self._token = ""
        self._back()
        self._start(claims, mono_deadline)
        return len(claims.turns) >= limit

    async def _ask(self, limit: int) -> Claims:
        lease_ms, queues = int(self._settings.lease * 1000), self._settings.queues
        return await self._cell.claim(
            self._worker, self._token, lease_ms=lease_ms, limit=limit, queues=queues
        )

    def _start(self, claims: Claims, mono_deadline: float) -> None:
        for turn in claims.turns:
            lease = Lease(turn.session_id, turn.turn_id, turn.fence, mono_deadline)
            self._keeper.add(lease)
            self._spawn(self._hold(turn, lease), lease, f"turn {turn.turn_id}")
        for job in claims.foreign:
            self._spawn(self._run_foreign(job), None, f"job {job.job_id}")
        for turn_id in claims.alone:
            self._spawn(self._run_alone(turn_id), None, f"alone {turn_id}")

    async def _hold(self, turn: ClaimedTurn, lease: Lease) -> None:
        try:
            await self._run_turn(turn, lease)
        finally:
            self._keeper.remove(lease)

    def _spawn(self, work: Awaitable[None], lease: Lease | None, name: str) -> None:
        task = asyncio.ensure_future(work)
        if isinstance(task, asyncio.Task):
            task.set_name(name)
        self._tasks[task] = lease  # type: ignore[index]
        task.add_done_callback(self._done)  # type: ignore[arg-type]

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._room.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "%s ended with an error; its lease will expire", task.get_name(), exc_info=task.exception()
            )

    async def _wait_for_bell(self) -> None:
        """A second at the most: what RQ's own tools push rings no bell."""
        try:
            await self._line.call("BLPOP", *self._bells, BELL_SECONDS)
        except (RedisError, OSError):
            await asyncio.sleep(OUTAGE_PAUSE_SECONDS)  # the next claim says what is wrong

    async def _outage(self, exc: StoreError) -> None:
        if not self._lost_at:
            self._lost_at = time.monotonic()
            log.warning("no turns can be taken: %s", exc, extra={"action": "outage_began"})
        await asyncio.sleep(OUTAGE_PAUSE_SECONDS)

    def _back(self) -> None:
        if self._lost_at:
            log.info(
                "turns are taken again after %.1f s",
                time.monotonic() - self._lost_at,
                extra={"action": "outage_ended"},
            )
            self._lost_at = 0.0
