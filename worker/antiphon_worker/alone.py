"""Turns in processes that run nothing else: for those that crashed their worker twice, so that they take no neighbour
with them.

The worker's side starts a few such processes and gives each one turn at a time, a line on its standard input; the
process answers with a line when the turn has ended, and is used again. An empty line says that the worker stops: the
turn is given back. When the pipe closes without one, the worker has died: the turn is finished by the drain's deadline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from antiphon.errors import AgentError, StoreError, TurnFailed
from antiphon.ids import TurnId
from antiphon.wire.cell import Cell, ClaimedTurn, TurnRecord
from antiphon.wire.connect import open_redis
from antiphon_worker.app import App, load_app
from antiphon_worker.lease import Lease, LeaseKeeper, Stop
from antiphon_worker.publisher import Publisher
from antiphon_worker.settings import Settings
from antiphon_worker.turn import TurnRunner

__all__ = ["AloneTurns", "run_one_turn"]

log = logging.getLogger("antiphon.alone")

AT_ONCE = 8
SAFE_POINT_SECONDS = 1.0


class AloneTurns:
    """The processes that a worker has started for single turns."""

    def __init__(self, settings: Settings, url: str, worker: str, open_cell: Callable[[], Cell]) -> None:
        self._settings = settings
        self._url = url
        self._worker = worker
        self._open_cell = open_cell
        self._room = asyncio.Semaphore(AT_ONCE)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._idle: list[str] = []
        self._turns: set[TurnId] = set()
        self._closed = False

    async def run(self, turn_id: TurnId) -> None:
        """Run the turn in a process that runs nothing else; return when it has ended, or the process.

        A turn that waits here for long is offered to other workers as well, and may come back.
        """
        if turn_id in self._turns:
            return
        self._turns.add(turn_id)
        try:
            async with self._room:
                if self._closed:
                    await self._hand_over(turn_id)
                else:
                    await self._run_in_process(turn_id)
        finally:
            self._turns.discard(turn_id)

    def close(self) -> None:
        """Start no further turn, and end the processes that have none."""
        self._closed = True
        for name in self._idle:
            _close(self._processes[name])

    def stop(self) -> None:
        """Let every process give its turn back, and end."""
        for process in self._processes.values():
            if process.stdin is not None and not process.stdin.is_closing():
                process.stdin.write(b"\n")
            _close(process)

    async def _run_in_process(self, turn_id: TurnId) -> None:
        log.warning("turn %s runs alone: it has seen two crashes", turn_id, extra={"action": "runs_alone"})
        name = self._idle.pop() if self._idle else await self._start()
        process = self._processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{turn_id}\n".encode())
        if await process.stdout.readline() and not self._closed:
            self._idle.append(name)
            return
        _close(process)
        await process.wait()
        del self._processes[name]
        await self._hand_back(name)

    async def _start(self) -> str:
        name = f"{self._worker}-alone-{secrets.token_hex(3)}"
        environment = {
            **os.environ, **self._settings.environ(), "ANTIPHON_REDIS_URL": self._url, "ANTIPHON_WORKER_NAME": name,
        }  # fmt: skip
        self._processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon_worker.alone", name,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        return name

    async def _hand_back(self, name: str) -> None:
        """What a dead process held starts again elsewhere now, not when its lease expires."""
        cell = self._open_cell()
        try:
            await cell.reap(holder=name, crash_limit=self._settings.crash_limit)
        except StoreError as exc:
            log.warning("the turn of process %s waits for its lease to expire: %s", name, exc)
        finally:
            await cell.redis.aclose()

    async def _hand_over(self, turn_id: TurnId) -> None:
        """The claim took the turn out of its queue, and this worker stops: put it back for others."""
        name = f"{self._worker}-alone-{secrets.token_hex(3)}"
        cell = self._open_cell()
        try:
            claims = await cell.claim(
                name, secrets.token_hex(6), lease_ms=int(self._settings.lease * 1000), limit=1, queues=[],
                only=turn_id,
            )  # fmt: skip
            for turn in claims.turns:
                await cell.give_back(turn, "drain", reason="The worker stops.", code="drained")
        except StoreError as exc:
            log.warning("turn %s waits for the reaper: %s", turn_id, exc)
        finally:
            await cell.redis.aclose()


def _close(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()


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


async def _main(worker: str, settings: Settings) -> None:
    """Run the turns that standard input names, one after the other, until it closes."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group: the worker says what it means
    turns: asyncio.Queue[TurnId | None] = asyncio.Queue()
    reading = asyncio.create_task(_read_turns(turns, stopping, settings.drain))
    app = load_app(settings.app)

    def open_cell() -> Cell:
        return Cell(open_redis(settings.redis_url), prefix=settings.prefix)

    try:
        while not stopping.is_set() and (turn_id := await turns.get()):
            try:
                await run_one_turn(turn_id, settings, app, open_cell, worker, stopping)
            except TurnFailed:
                log.debug("turn %s failed, and says so itself", turn_id)
            with suppress(BrokenPipeError):  # the worker has died: standard input ends as well
                os.write(sys.stdout.fileno(), b"ended\n")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await app.aclose()


async def _read_turns(
    turns: asyncio.Queue[TurnId | None], stopping: asyncio.Event, drain_seconds: float
) -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode():
        if line.strip():
            turns.put_nowait(TurnId(line.strip()))
        else:
            stopping.set()
    turns.put_nowait(None)
    await asyncio.sleep(drain_seconds)
    stopping.set()


def main(worker: str) -> int:
    """Run single turns in this process, one at a time."""
    settings = Settings.load()
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s")
    try:
        asyncio.run(_main(worker, settings))
    except AgentError as exc:
        log.error("process %s: %s", worker, exc)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
