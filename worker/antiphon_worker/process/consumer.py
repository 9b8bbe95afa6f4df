"""Takes turns: waits until there is room, claims in batches, starts the claimed turns."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from antiphon.errors import StoreError
from antiphon.input.ids import TurnId
from antiphon.telemetry import log_fault
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn, Claims, ForeignJob
from antiphon_worker.process.lease import Lease, LeaseKeeper, Stop
from antiphon_worker.process.room import Room
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.consumer")

FEW, MANY = 8, 16  # turns of a claim: more after one that brought all it asked for, so that a backlog shrinks
BELL_SECONDS = 1
OUTAGE_PAUSE_SECONDS = 0.5
CALM_SECONDS = 1.0


class Consumer:
    """Takes turns while there is room, and runs each in a task of its own."""

    def __init__(
        self,
        cell: Cell,
        keeper: LeaseKeeper,
        settings: Settings,
        worker: str,
        *,
        run_turn: Callable[[ClaimedTurn, Lease], Coroutine[Any, Any, object]],
        run_foreign: Callable[[ForeignJob], Coroutine[Any, Any, None]],
        run_alone: Callable[[TurnId], Coroutine[Any, Any, None]],
        room_alone: Callable[[], int] = lambda: 0,
        late: Callable[[], bool] = lambda: False,
        app: str = "",
        room: Room | None = None,
    ) -> None:
        self._cell = cell
        self._keeper = keeper
        self._settings = settings
        self._worker = worker
        self._run_turn = run_turn
        self._run_foreign = run_foreign
        self._run_alone = run_alone
        self._room_alone = room_alone
        self._late = late
        self._app = app  # the digest of the App's parts
        self._patience = min(BELL_SECONDS, settings.lease / 4)
        self._waiting = cell.beside(self._patience)
        self._tasks: dict[asyncio.Task[object], Lease | None] = {}
        self._room = room or Room(settings.concurrency)
        self._rest = asyncio.Event()  # set while nothing is under way
        self._rest.set()
        self._hearing: asyncio.Task[None] | None = None
        self._claiming = self._ending = False
        self._token, self._sent = "", 0.0  # the claim without an answer, and the start of its leases
        self._lost_at = 0.0
        self._others: set[tuple[str, str]] = set()  # queues with turns of other prefixes, once logged

    @property
    def busy(self) -> int:
        """Return how many turns are under way."""
        return len(self._tasks)

    def running(self) -> list[tuple[str, str]]:
        """Return the turns under way and their fences, in the order of their start."""
        return [(lease.turn_id, lease.fence) for lease in self.leases()]

    def leases(self) -> list[Lease]:
        return [lease for lease in self._tasks.values() if lease is not None]

    async def run(self) -> None:
        """Take turns until cancelled. Turns under way continue, and so do those that a claim under way takes."""
        taking = asyncio.create_task(self._take())
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._ending = True
            if not self._claiming:
                taking.cancel()
            elif self._hearing is not None and not self._hearing.done():
                with suppress(StoreError):  # then the timeout ends the wait
                    await self._cell.ring(self._worker)
            await asyncio.wait([taking])
            raise
        finally:
            await self._waiting.redis.aclose()  # so that a bell that rings now wakes another worker

    async def _take(self) -> None:
        more = True
        while not self._ending:
            limit = await self._appetite(more)  # read before the bell, which may ring immediately
            places, more = await self._room.reserve(limit, more)
            try:
                self._hearing = None if more else await self._bell()
                more = await self._claim(places)
            finally:
                self._room.leave(places)
            if not more:
                await asyncio.sleep(0)  # first let claimed turns call their models

    async def idle(self) -> None:
        """Wait until no turn is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def stop_turns(self, *, at_once: bool) -> None:
        """Requeue the running turns: at their next safe point, or at once."""
        for lease in self.leases():
            lease.end(Stop.DRAINED, at_once=at_once)

    async def abandon(self) -> None:
        """Abandon the turns still running: their leases have expired, and other workers recover them."""
        tasks = list(self._tasks)
        for task in tasks:
            log.warning(
                "%s could not be given back: its lease will expire", task.get_name(), extra={"action": "outage"}
            )  # fmt: skip
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _appetite(self, more: bool) -> int:
        """Return how many turns to take next. If deltas are late, wait up to a second, then take one."""
        for _ in range(20):
            if not self._tasks or not self._late():
                return MANY if more else FEW
            await asyncio.sleep(CALM_SECONDS / 20)
        return 1

    async def _claim(self, limit: int) -> bool:
        """Claim once, now or when a bell rings; return whether there may be more turns to take."""
        if not self._token:  # else the answer was lost, and the same token returns the same turns
            self._token, self._sent = secrets.token_hex(6), time.monotonic()
        self._claiming = True
        try:
            more = await self._ask(limit)
        except StoreError as exc:
            await self._outage(exc)
            return True
        finally:
            self._claiming = False
            if self._hearing is not None:
                await self._hearing
        self._back()
        return more

    async def _ask(self, limit: int) -> bool:
        """Claim, and start the turns immediately. No task in between: the next claim is sent before they run."""
        lease_ms, queues = int(self._settings.lease * 1000), self._settings.queues
        claims = await self._waiting.claim(
            self._worker, self._token, lease_ms=lease_ms, limit=limit, queues=queues,
            alone_limit=self._room_alone(), app=self._app,
        )  # fmt: skip
        self._token = ""
        self._start(claims, self._sent + self._settings.lease)
        return len(claims.turns) >= limit

    def _start(self, claims: Claims, mono_deadline: float) -> None:
        for turn in claims.turns:
            lease = Lease(turn.session_id, turn.turn_id, turn.fence, mono_deadline)
            self._keeper.add(lease)
            self._spawn(self._run_turn(turn, lease), lease, f"turn {turn.turn_id}")
        for job in claims.foreign:
            self._spawn(self._run_foreign(job), None, f"job {job.job_id}")
        for one in claims.damaged:
            log.error(
                "turn %s of session %s is set aside: %s", one.turn_id, one.session_id, one.reason,
                extra={"action": "quarantined", "session": one.session_id, "turn": one.turn_id},
            )  # fmt: skip
        for queue, prefix in set(claims.others) - self._others:
            self._others.add((queue, prefix))
            log.warning(
                "queue %s holds turns of the prefix %r, which this worker leaves there: give each prefix "
                "(ANTIPHON_PREFIX) queues of its own (ANTIPHON_QUEUES), or a Redis database of its own",
                queue, prefix, extra={"action": "other_prefix"},
            )  # fmt: skip
        for turn_id in claims.alone:
            self._spawn(self._run_alone(turn_id), None, f"alone {turn_id}")

    def _spawn(self, work: Coroutine[Any, Any, object], lease: Lease | None, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = lease
        self._room.enter()
        self._rest.clear()
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        lease = self._tasks.pop(task)
        if lease is not None:
            self._keeper.remove(lease)
        self._room.leave()
        if not self._tasks:
            self._rest.set()
        if not task.cancelled() and (exc := task.exception()) is not None:
            log_fault(log, exc, "%s ended with an error; its lease will expire", task.get_name())

    async def _bell(self) -> asyncio.Task[None]:
        """Start waiting for a bell; return when it has rung, or when this process has no turns.

        An idle process sends its claim right after the wait, on the same connection: when the bell rings, Redis runs
        the claim immediately, which saves two round trips. A process with running turns may be slow to start another
        one, so it claims only when it is ready.
        """
        hearing = asyncio.create_task(self._hear())  # created first, so it also runs first
        resting = asyncio.create_task(self._rest.wait())
        try:
            await asyncio.wait([hearing, resting], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            hearing.cancel()
            raise
        finally:
            resting.cancel()
        return hearing

    async def _hear(self) -> None:
        """Wait for a bell, at most a second: RQ's own tools do not ring it. The worker's own bell ends the wait."""
        try:
            await self._waiting.heard([*self._settings.queues, self._worker], self._patience)
        except StoreError:
            await asyncio.sleep(OUTAGE_PAUSE_SECONDS)  # the next claim reports the error

    async def _outage(self, exc: StoreError) -> None:
        if not self._lost_at:
            self._lost_at = time.monotonic()
            log.warning("no turns can be taken, trying again: %s", exc, extra={"action": "outage_began"})
        await asyncio.sleep(OUTAGE_PAUSE_SECONDS)

    def _back(self) -> None:
        if self._lost_at:
            log.info(
                "turns are taken again after %.1f s",
                time.monotonic() - self._lost_at,
                extra={"action": "outage_ended"},
            )
            self._lost_at = 0.0
