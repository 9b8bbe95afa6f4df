"""Runs turns that crashed their worker twice in processes of their own, so that they do not harm other turns.

A worker gets such processes from the supervisor, or starts them itself. It gives each process one turn at a time, as
a line on its lifeline. The process answers with a line when the turn has ended, and is used again. An empty line
means that the worker stops; the process then requeues its turn. If the lifeline ends without an empty line, the
worker has died; the process then has until the drain's deadline to finish its turn.

The parent of a process waits for its end and requeues the turns it held. The end of the socket is not enough, because
a process that a tool has started may keep the socket open.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

from antiphon.errors import StoreError
from antiphon.input.ids import TurnId
from antiphon.wire.cell import Cell
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.child import (
    ALONE,
    LOOP_STALLED,
    WORKER_DIED,
    Given,
    hand_back,
    start_process,
)
from antiphon_worker.supervisor.watchdog import Patience

log = logging.getLogger("antiphon.alone")

PROCESSES_FOR_ONE = 3
START_PAUSE_SECONDS = 1.0


class _Process:
    """A process for isolated turns, and this worker's end of its lifeline."""

    def __init__(self, given: Given, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = given.name
        self.ended = given.ended
        self._reader = reader
        self._writer = writer
        self._told = False  # no more lines follow

    @classmethod
    async def at(cls, given: Given, url: str) -> _Process:
        given.line.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=given.line)
        writer.write(f"{ALONE} {given.name} {url}\n".encode())
        return cls(given, reader, writer)

    async def run(self, turn_id: TurnId) -> bool:
        """Run a turn. Returns True when the turn has ended, and False when the process has ended."""
        if self.ended.done() and self.ended.result() is not None:
            return False
        self._writer.write(f"{turn_id}\n".encode())
        answer = asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait([answer, self.ended], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and self.ended.result() is None:
                await answer  # the supervisor has died: only the socket shows the end
            return answer.done() and answer.result()
        finally:
            answer.cancel()

    async def _answer(self) -> bool:
        try:
            return bool(await self._reader.readline())
        except ConnectionError:  # it died before it read all lines
            return False

    def stop(self) -> None:
        """Make the process requeue its turn and end."""
        if not self._told and not self._writer.is_closing():
            self._writer.write(b"\n")
            self.let_go()

    def let_go(self) -> None:
        """Let the process end after its turn."""
        if not self._told:
            self._told = True
            if not self._writer.is_closing():
                self._writer.write_eof()

    async def turns_left(self) -> int | None:
        """Wait for the end of the process, and return how many of its turns were requeued, or None if unknown."""
        turns = await self.ended
        if turns is None:
            while await self._answer():
                continue
        self._writer.close()
        return turns


class IsolatedTurns:
    """The processes that run a worker's isolated turns."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        worker: str,
        open_cell: Callable[[], Cell],
        spare: Callable[[], Awaitable[Given | None]] | None = None,
    ) -> None:
        self._settings = settings
        self._url = url
        self._worker = worker
        self._open_cell = open_cell
        self._spare = spare
        self._processes: set[_Process] = set()
        self._idle: list[_Process] = []
        self._own: set[asyncio.Task[int | None]] = set()
        self._turns: dict[TurnId, bool] = {}  # running turns; True if the turn was offered again since
        self._closed = False

    @property
    def room(self) -> int:
        """How many more turns can run now: no more may be claimed."""
        return max(0, self._settings.isolated_turns - len(self._turns))

    async def run(self, turn_id: TurnId) -> None:
        """Run the turn in a process of its own; return when the turn or the process has ended.

        If the turn is offered again before its last process is cleaned up, it runs again after that.
        """
        if turn_id in self._turns:
            self._turns[turn_id] = True
            return
        try:
            self._turns[turn_id] = True
            while self._turns[turn_id] and not self._closed:
                self._turns[turn_id] = False
                await self._run_in_process(turn_id)
            if self._turns[turn_id]:
                await self._hand_over(turn_id)
        finally:
            del self._turns[turn_id]

    def close(self) -> None:
        """Start no further turns, and end the processes without a turn."""
        self._closed = True
        for process in self._idle:
            process.let_go()

    def stop(self) -> None:
        """Make every process requeue its turn and end."""
        for process in self._processes:
            process.stop()

    async def ended(self) -> None:
        """Wait until the processes that this worker has started have ended, at most one lease."""
        if self._own:
            await asyncio.wait(self._own, timeout=self._settings.lease)

    async def _run_in_process(self, turn_id: TurnId) -> None:
        """Run the turn. If the process ends before it holds the turn, which is in no queue now, start another one."""
        log.warning(
            "turn %s runs in a process of its own, because it crashed twice",
            turn_id,
            extra={"action": "runs_alone"},
        )
        for _ in range(PROCESSES_FOR_ONE):
            try:
                process = self._idle.pop() if self._idle else await self._start()
            except OSError as exc:
                log.error(
                    "cannot start a process for turn %s: %s", turn_id, exc, extra={"action": "start_failed"}
                )
                await asyncio.sleep(START_PAUSE_SECONDS)
                continue
            ended = await process.run(turn_id)
            if ended and not self._closed:
                self._idle.append(process)
                return
            process.let_go()
            turns = await process.turns_left()
            self._processes.discard(process)
            if turns is None:
                turns = await self._hand_back(process.name)
            if turns or ended or self._closed:
                return

    async def _start(self) -> _Process:
        given = await self._spare() if self._spare is not None else None
        process = await _Process.at(given or await self._start_own(), self._url)
        self._processes.add(process)
        return process

    async def _start_own(self) -> Given:
        name = f"{self._worker}-alone-{secrets.token_hex(3)}"
        started = await start_process(name, self._settings.environ())

        async def ended() -> int | None:
            await started.ended(Patience(self._settings.stall_timeout, self._settings.lease))
            return await self._hand_back(name, LOOP_STALLED if started.stalled else WORKER_DIED)

        task = asyncio.create_task(ended())
        self._own.add(task)
        task.add_done_callback(self._own.discard)
        return Given(name, started.line, task)

    async def _hand_back(self, name: str, cause: tuple[str, str] = WORKER_DIED) -> int:
        return await hand_back(self._open_cell(), name, self._settings, cause)

    async def _hand_over(self, turn_id: TurnId) -> None:
        """Requeue the turn for other workers: the claim took it out of its queue, and this worker stops."""
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
            log.warning("turn %s waits for the reaper: %s", turn_id, exc, extra={"action": "outage"})
        finally:
            await cell.redis.aclose()
