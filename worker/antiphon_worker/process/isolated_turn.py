"""One turn in a process that runs nothing else: claimed by its id, run, and given back when the process is to stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from antiphon.errors import TurnFailed
from antiphon.input.ids import TurnId
from antiphon.wire.cell import Cell, ClaimedTurn, TurnRecord
from antiphon.wire.connection.open import open_redis
from antiphon_worker.app import App
from antiphon_worker.process.lease import Lease, LeaseKeeper, Stop
from antiphon_worker.process.publisher import Publisher
from antiphon_worker.process.turn import TurnRunner
from antiphon_worker.settings import Settings

__all__ = ["run_isolated_turns", "run_one_turn"]

log = logging.getLogger("antiphon.alone")

SAFE_POINT_SECONDS = 1.0


async def run_one_turn(
    turn_id: TurnId,
    settings: Settings,
    app: App,
    open_cell: Callable[[], Cell],
    worker: str,
    stopping: asyncio.Event | None = None,
) -> TurnRecord | None:
    """Claim this turn, run it and give its record; None where it is not to be run now.

    When ``stopping`` is set the turn is given back. Raises ``TurnFailed`` where it failed.
    """
    cell, sent = open_cell(), time.monotonic()
    try:
        claims = await cell.claim(
            worker, secrets.token_hex(6), lease_ms=int(settings.lease * 1000), limit=1, queues=[], only=turn_id
        )  # fmt: skip
        if not claims.turns:
            return None
        turn = claims.turns[0]
        lease = Lease(turn.session_id, turn.turn_id, turn.fence, sent + settings.lease)
        keeper = LeaseKeeper(open_cell, worker, settings.lease)
        await _run_held(cell, app, settings, turn, lease, keeper, stopping or asyncio.Event())
        record = await cell.turn(turn_id)
        if record.status == "failed":
            raise TurnFailed(
                record.error, code=record.error_code, session_id=turn.session_id, turn_id=turn_id
            )
        return record
    finally:
        await cell.redis.aclose()


async def _run_held(
    cell: Cell, app: App, settings: Settings, turn: ClaimedTurn, lease: Lease, keeper: LeaseKeeper,
    stopping: asyncio.Event,
) -> None:  # fmt: skip
    publisher = Publisher(cell)
    keeper.add(lease)
    services = [
        asyncio.create_task(service)
        for service in (keeper.run(), publisher.run(), _give_back_when(stopping, lease))
    ]
    try:
        await TurnRunner(cell, publisher, app, settings).run(turn, lease)
    finally:
        for service in services:
            service.cancel()
        await asyncio.gather(*services, return_exceptions=True)


async def _give_back_when(stopping: asyncio.Event, lease: Lease) -> None:
    await stopping.wait()
    lease.end(Stop.DRAINED, at_once=False)
    await asyncio.sleep(SAFE_POINT_SECONDS)
    lease.end(Stop.DRAINED)


async def run_isolated_turns(
    line: socket.socket, app: App, settings: Settings, worker: str, url: str
) -> None:
    """Run the turns that the lifeline names, one after the other, until it ends."""
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
            try:
                await run_one_turn(turn_id, settings, app, open_cell, worker, stopping)
            except TurnFailed:
                log.debug("turn %s failed, and says so itself", turn_id)
            writer.write(b"ended\n")  # nobody reads it where the worker has died
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
