"""Processes that are ready before they are needed: the next death, or a turn that must run alone, waits for no start.

A process that works alone has one beside it from a moment after its start on: nobody else would go on with its turns.
Where there are several, none is kept until one has died, and none for longer than ten minutes after the last death.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import deque

from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.child import Started, start_process

__all__ = ["Spares", "host_name"]

log = logging.getLogger("antiphon.supervisor")

KEPT = 3  # a turn may kill two workers before it runs alone: their places, and its own process
BEGIN_SECONDS = 5.0  # what has just been started has the processors first
PATIENCE_SECONDS = 1.0  # after a first death: the process that is needed has the processors
CALM_SECONDS = 600.0


class Spares:
    """Starts the processes of a supervisor, and keeps some ready after a death."""

    def __init__(self, settings: Settings) -> None:
        self._environ = settings.environ()
        self._least = 1 if settings.processes == 1 else 0
        self._ready: deque[Started] = deque()
        self._kept = 0
        self._filling: asyncio.Task[None] | None = None
        self._later: list[asyncio.TimerHandle] = []

    async def take(self) -> Started:
        """The process that is ready or nearest to it; a new one where none is kept. Raises ``OSError``."""
        while self._ready:
            one = self._ready.popleft()
            if one.process.returncode is None:
                self._fill()
                return one
            one.line.close()  # it could not load what it needs: whoever comes next says so
        return await self._start()

    def begin(self) -> None:
        """The workers have been started: keep what is kept where nothing has died."""
        if self._least:
            self._kept = self._least
            self._later.append(asyncio.get_running_loop().call_later(BEGIN_SECONDS, self._fill))

    def keep(self) -> None:
        """Keep some ready from now on: a process has died."""
        first, self._kept = self._kept < KEPT, KEPT
        self._cancel_timers()
        loop = asyncio.get_running_loop()
        self._later.append(loop.call_later(CALM_SECONDS, self._let_go, self._least))
        if first:
            self._later.append(loop.call_later(PATIENCE_SECONDS, self._fill))
        else:
            self._fill()

    async def aclose(self) -> None:
        """Start no further one, and end those that wait."""
        self._cancel_timers()
        waiting = list(self._ready)
        self._let_go(0)
        if self._filling is not None:
            await asyncio.gather(self._filling, return_exceptions=True)
        for one in waiting:
            await one.process.wait()

    def _cancel_timers(self) -> None:
        while self._later:
            self._later.pop().cancel()

    def _let_go(self, kept: int) -> None:
        self._kept = kept
        if self._filling is not None:
            self._filling.cancel()
        while len(self._ready) > kept:
            one = self._ready.pop()
            one.line.close()
            if one.process.returncode is None:
                one.process.kill()  # it holds nothing

    def _fill(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._start_missing())

    async def _start_missing(self) -> None:
        try:
            while len(self._ready) < self._kept:
                self._ready.append(await self._start())
        except OSError as exc:
            log.warning("no process can be kept ready: %s", exc)  # tried again when one is needed

    async def _start(self) -> Started:
        return await start_process(f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}", self._environ)


def host_name() -> str:
    """This host in the names of workers."""
    return socket.gethostname().replace(":", "_")
