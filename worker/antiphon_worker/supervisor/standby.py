"""Keeps spare processes, so that replacing a dead process or running an isolated turn does not wait for a start.

A worker process that works alone gets a spare shortly after its start, because no other process would continue its
turns. With several worker processes, spares are kept from the first death until ten minutes after the last one.
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

log = logging.getLogger("antiphon.supervisor")

KEPT = 3  # a turn may kill two workers before it runs alone: two replacements and its own process
BEGIN_SECONDS = 5.0  # processes that have just started get the processors first
PATIENCE_SECONDS = 1.0  # after a first death, the needed process gets the processors first
CALM_SECONDS = 600.0
LOOK_SECONDS = 0.05


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
        """Return the spare that is ready or will be first, or a new process. Raises ``OSError``."""
        while self._ready:
            one = self._ready.popleft()
            if one.process.returncode is None:
                self._fill()
                return one
            one.line.close()  # it could not load what it needs: its replacement reports the error
        return await self._start()

    def begin(self) -> None:
        """Keep the spares that are due without a death. Call it when the workers have started."""
        if self._least:
            self._kept = self._least
            self._later.append(asyncio.get_running_loop().call_later(BEGIN_SECONDS, self._fill))

    def keep(self) -> None:
        """Keep spares from now on, because a process has died."""
        first, self._kept = self._kept < KEPT, KEPT
        self._cancel_timers()
        loop = asyncio.get_running_loop()
        self._later.append(loop.call_later(CALM_SECONDS, self._let_go, self._least))
        if first:
            self._later.append(loop.call_later(PATIENCE_SECONDS, self._fill))
        else:
            self._fill()

    async def aclose(self) -> None:
        """Start no more spares, and end those that wait."""
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
                one = await self._start()
                self._ready.append(one)
                while one.loading:  # noqa: ASYNC110 - what is waited for is in another process
                    await asyncio.sleep(LOOK_SECONDS)  # the first one that is needed gets the processors
        except OSError as exc:
            # It is tried again when a process is needed.
            log.warning("cannot start a spare process: %s", exc, extra={"action": "start_failed"})

    async def _start(self) -> Started:
        return await start_process(f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}", self._environ)


def host_name() -> str:
    """Return this host's part of the names of workers."""
    return socket.gethostname().replace(":", "_")
