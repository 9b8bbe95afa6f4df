"""Runs one turn in a process of its own: claims it by its id, runs it, and requeues it if the process must stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from antiphon.errors import KeyMissing, StoreError, TurnFailed
from antiphon.input.ids import TurnId
from antiphon.redis.cells import open_cells
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.records import ClaimedTurn, TurnRecord
from antiphon_worker.app import App
from antiphon_worker.observing.observer import observer_of
from antiphon_worker.process.figures import CountingRunner, add_figures
from antiphon_worker.process.lease import Lease, LeaseKeeper, Stop
from antiphon_worker.process.publisher import Publisher
from antiphon_worker.resilience import AskedLimits
from antiphon_worker.rq.presence import AppParts
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.alone")

SAFE_POINT_SECONDS = 1.0
OUTAGE_PAUSE_SECONDS = 0.5


async def run_one_turn(
    turn_id: TurnId,
    settings: Settings,
    app: App,
    open_cell: Callable[[], Cell],
    worker: str,
) -> TurnRecord | None:
    """Claim this turn, run it and return its record, or None if it must not run now.

    Raises ``TurnFailed`` if it failed, and ``StoreError`` if Redis cannot be reached before the claim.
    """
    cell = open_cell()
    try:
        claim = _Claim(cell, settings, worker, turn_id, app)
        turn = await claim.ask()
        if turn is None:
            return None
        await _run_held(
            cell,
            app,
            settings,
            turn,
            claim.lease_of(turn),
            _keeper(open_cell, worker, settings),
            asyncio.Event(),
        )
        try:
            record = await cell.turn(turn_id)
        except KeyMissing:
            return None  # the turn was requeued
        if record.status == "failed":
            why = "" if cell.seal.on else record.error  # RQ stores it unencrypted
            raise TurnFailed(why, code=record.error_code, session_id=turn.session_id, turn_id=turn_id)
        return record
    finally:
        await cell.redis.aclose()


async def run_turn_alone(
    turn_id: TurnId,
    settings: Settings,
    app: App,
    open_cell: Callable[[], Cell],
    worker: str,
    stopping: asyncio.Event,
) -> None:
    """Run this turn in one of the worker's own processes; wait while Redis cannot be reached.

    When ``stopping`` is set, the turn is requeued or not claimed.
    """
    cell = open_cell()
    try:
        claim = _Claim(cell, settings, worker, turn_id, app)
        turn = await _patiently(claim, stopping)
        if turn is not None:
            keeper = _keeper(open_cell, worker, settings)
            await _run_held(cell, app, settings, turn, claim.lease_of(turn), keeper, stopping)
    finally:
        await cell.redis.aclose()


class _Claim:
    """The claim of one turn. Repeating it with the same token returns the first answer."""

    def __init__(self, cell: Cell, settings: Settings, worker: str, turn_id: TurnId, app: App) -> None:
        self._cell = cell
        self._app = AppParts.of_app(cell.keys.prefix, app).digest()
        self._lease = settings.lease
        self._worker = worker
        self._turn_id = turn_id
        self._token, self._sent = secrets.token_hex(6), time.monotonic()

    async def ask(self) -> ClaimedTurn | None:
        claims = await self._cell.claim(
            self._worker, self._token, lease_ms=int(self._lease * 1000), limit=1, queues=[], only=self._turn_id,
            app=self._app,
        )  # fmt: skip
        return claims.turns[0] if claims.turns else None

    def lease_of(self, turn: ClaimedTurn) -> Lease:
        return Lease(turn.session_id, turn.turn_id, turn.fence, self._sent + self._lease)


async def _patiently(claim: _Claim, stopping: asyncio.Event) -> ClaimedTurn | None:
    while not stopping.is_set():
        try:
            return await claim.ask()
        except StoreError as exc:
            log.warning("a turn that runs alone cannot be claimed: %s", exc, extra={"action": "outage"})
            with suppress(TimeoutError):
                async with asyncio.timeout(OUTAGE_PAUSE_SECONDS):
                    await stopping.wait()
    return None


def _keeper(open_cell: Callable[[], Cell], worker: str, settings: Settings) -> LeaseKeeper:
    return LeaseKeeper(open_cell, worker, settings.lease, settings.stall_timeout)


async def _run_held(
    cell: Cell, app: App, settings: Settings, turn: ClaimedTurn, lease: Lease, keeper: LeaseKeeper,
    stopping: asyncio.Event,
) -> None:  # fmt: skip
    publisher = Publisher(cell)
    keeper.add(lease)
    services = [asyncio.create_task(service) for service in (keeper.run(), publisher.run())]
    giving_back = asyncio.create_task(_give_back_when(stopping, lease))
    observer = observer_of(settings, cell.name, app)
    cells = open_cells(settings.cell_urls, prefix=settings.prefix)
    several = cells if len([*cells]) > 1 else None
    runner = CountingRunner(cell, publisher, app, settings, AskedLimits(cell), several, observer)
    work = asyncio.create_task(runner.run(turn, lease))
    try:
        await asyncio.wait([work, *services], return_when=asyncio.FIRST_COMPLETED)
        for service in services:
            if service.done():
                service.result()  # a service has failed: stop the turn and end the process
        await work
        await add_figures(cell, runner)
    finally:
        tasks: list[asyncio.Task[Any]] = [work, giving_back, *services]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for other in cells:
            await other.redis.aclose()


async def _give_back_when(stopping: asyncio.Event, lease: Lease) -> None:
    await stopping.wait()
    lease.end(Stop.DRAINED, at_once=False)
    await asyncio.sleep(SAFE_POINT_SECONDS)
    lease.end(Stop.DRAINED)


async def run_isolated_turns(
    line: socket.socket, app: App, settings: Settings, worker: str, url: str
) -> None:
    """Run the turns that the lifeline names, one after another, until it ends."""
    reader, writer = await asyncio.open_unix_connection(sock=line)
    stopping = asyncio.Event()
    turns: asyncio.Queue[TurnId | None] = asyncio.Queue()

    def stop() -> None:
        stopping.set()
        turns.put_nowait(None)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    reading = asyncio.create_task(_read_turns(reader, turns, stop, settings.drain))

    def open_cell() -> Cell:
        return Cell(open_redis(url), prefix=settings.prefix)

    try:
        while (turn_id := await turns.get()) and not stopping.is_set():
            await run_turn_alone(turn_id, settings, app, open_cell, worker, stopping)
            writer.write(b"ended\n")  # it stays unread if the worker has died
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.close()


async def _read_turns(
    lines: asyncio.StreamReader,
    turns: asyncio.Queue[TurnId | None],
    stop: Callable[[], None],
    drain_seconds: float,
) -> None:
    with suppress(ConnectionError):  # the worker has died
        while line := (await lines.readline()).decode():
            if line.strip():
                turns.put_nowait(TurnId(line.strip()))
            else:
                stop()
    turns.put_nowait(None)
    await asyncio.sleep(drain_seconds)
    stop()
