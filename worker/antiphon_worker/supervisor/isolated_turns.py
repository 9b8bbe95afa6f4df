"""Turns in processes that run nothing else: for those that crashed their worker twice, so that they take no neighbour
with them.

The worker's side is given such processes by the supervisor, or starts them, and gives each one turn at a time, a line
on its lifeline; the process answers with a line when the turn has ended, and is used again. An empty line says that the
worker stops: the turn is given back. When the lifeline ends without one, the worker has died: the turn is finished by
the drain's deadline.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from antiphon.errors import StoreError
from antiphon.input.ids import TurnId
from antiphon.wire.cell import Cell
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.child import ALONE, start_process

__all__ = ["IsolatedTurns"]

log = logging.getLogger("antiphon.alone")

AT_ONCE = 8
PROCESSES_FOR_ONE = 3


class _Process:
    """A process for single turns, and this worker's end of its lifeline."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        own: asyncio.subprocess.Process | None,
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._own = own
        self._told = False  # that nothing more comes

    @classmethod
    async def at(
        cls, line: socket.socket, name: str, url: str, own: asyncio.subprocess.Process | None = None
    ) -> _Process:
        line.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=line)
        writer.write(f"{ALONE} {name} {url}\n".encode())
        return cls(name, reader, writer, own)

    async def run(self, turn_id: TurnId) -> bool:
        """True when the turn has ended, False when the process has."""
        self._writer.write(f"{turn_id}\n".encode())
        try:
            return bool(await self._reader.readline())
        except ConnectionError:  # it died with lines unread
            return False

    def stop(self) -> None:
        """Let it give back what it runs, and end."""
        if not self._told:
            self._writer.write(b"\n")
            self.let_go()

    def let_go(self) -> None:
        """Let it end when it runs nothing."""
        if not self._told:
            self._told = True
            if not self._writer.is_closing():
                self._writer.write_eof()

    async def ended(self) -> None:
        """Return when it has ended."""
        with suppress(ConnectionError):
            while await self._reader.readline():
                continue
        self._writer.close()
        if self._own is not None:
            await self._own.wait()


class IsolatedTurns:
    """The processes that a worker has started for single turns."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        worker: str,
        open_cell: Callable[[], Cell],
        spare: Callable[[], Awaitable[tuple[str, socket.socket] | None]] | None = None,
    ) -> None:
        self._settings = settings
        self._url = url
        self._worker = worker
        self._open_cell = open_cell
        self._spare = spare
        self._room = asyncio.Semaphore(AT_ONCE)
        self._processes: set[_Process] = set()
        self._idle: list[_Process] = []
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
        for process in self._idle:
            process.let_go()

    def stop(self) -> None:
        """Let every process give its turn back, and end."""
        for process in self._processes:
            process.stop()

    async def _run_in_process(self, turn_id: TurnId) -> None:
        """Run it; again where the process ended before it held the turn, which is in no queue meanwhile."""
        log.warning("turn %s runs alone: it has seen two crashes", turn_id, extra={"action": "runs_alone"})
        for _ in range(PROCESSES_FOR_ONE):
            process = self._idle.pop() if self._idle else await self._start()
            ended = await process.run(turn_id)
            if ended and not self._closed:
                self._idle.append(process)
                return
            process.let_go()
            await process.ended()
            self._processes.discard(process)
            if await self._hand_back(process.name) or ended or self._closed:
                return

    async def _start(self) -> _Process:
        given = await self._spare() if self._spare is not None else None
        if given is not None:
            name, line = given
            process = await _Process.at(line, name, self._url)
        else:
            name = f"{self._worker}-alone-{secrets.token_hex(3)}"
            started = await start_process(name, self._settings.environ())
            process = await _Process.at(started.line, name, self._url, started.process)
        self._processes.add(process)
        return process

    async def _hand_back(self, name: str) -> int:
        """What a dead process held starts again elsewhere now, not when its lease expires. Gives how many turns."""
        cell = self._open_cell()
        try:
            return len(await cell.reap(holder=name, crash_limit=self._settings.crash_limit))
        except StoreError as exc:
            log.warning("the turn of process %s waits for its lease to expire: %s", name, exc)
            return 0
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
