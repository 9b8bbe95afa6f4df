"""The parent of the worker processes: it starts, watches and replaces them.

1. It starts them, and replaces those that die or are blocked.
2. It requeues the turns of a dead process immediately.
3. It passes on SIGTERM, which drains them, and a second one, which aborts them.
4. It kills those that do not end in time.
5. It ends when they have ended, or may stop because nothing needs the revisions of their agents anymore.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import time
from collections import deque

from antiphon.errors import StoreError, StoreUnavailable
from antiphon.wire.cell import Cell
from antiphon.wire.connection.names import name_of
from antiphon.wire.connection.open import cell_urls, keys_of, open_redis, redact
from antiphon.wire.preflight import check_redis, read_redis
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.child import (
    LOOP_STALLED,
    WORK,
    WORKER_DIED,
    Started,
    hand_back,
    start_process,
    tell,
)
from antiphon_worker.supervisor.watchdog import Patience, State

log = logging.getLogger("antiphon.supervisor")

WRONG_SETTINGS = 2  # the exit code
OPEN_FILES = 65_536
AGAIN_SECONDS = 1.0  # between two tries of a Redis that is unavailable at the start
START_SECONDS, STEADY_SECONDS = 1.0, 10.0
SAFE_POINT_SECONDS, GIVE_BACK_SECONDS, LAST_SECONDS = 4.0, 3.0, 2.0  # after the drain's deadline
ALONE_SECONDS = 15.0  # without any worker process: longer than a start and the pause before it
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0


class Supervisor:
    """Runs ``settings.processes`` worker processes for each Redis; those of a cluster serve all its cells."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spares = Spares(settings)
        self._children: dict[str, Started] = {}
        self._alone: dict[str, Started] = {}
        self._giving: set[asyncio.Task[None]] = set()
        self.deaths: dict[tuple[str, str], int] = {}  # so far, by cell and cause of death
        self._patience = Patience(settings.stall_timeout, settings.lease)
        self._away: dict[str, float] = {}  # Redis servers that have not answered yet, and since when
        self._draining = False
        self._last = time.monotonic()  # when a child last began or ended
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Check the Redis servers, then work until SIGTERM or SIGINT. Raises ``StoreError`` for an unsuitable Redis.

        It waits for unreachable ones, and serves the others in the meantime.
        """
        for url in self._settings.redis_urls:
            await self._check(url)
        raise_open_files_limit()
        loop = asyncio.get_running_loop()
        for known in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(known, self.drain)
        async with asyncio.TaskGroup() as group:
            for url in self._settings.server_urls:
                group.create_task(self._serve(url))
            self._spares.begin()
            retiring = asyncio.create_task(self._retire()) if self._settings.retire else None
        if retiring is not None:
            retiring.cancel()
        while self._giving:
            await asyncio.wait(self._giving)
        await self._spares.aclose()
        if self._ending is not None:
            self._ending.cancel()

    def unhealthy(self) -> str:
        """Return why this worker cannot work, or ''. Thread-safe."""
        idle = self._draining or self._children or self._away
        alone = not idle and time.monotonic() - self._last > ALONE_SECONDS
        return "No worker process runs." if alone else ""

    def unready(self) -> str:
        """Return why this worker takes no turns, or ''. Thread-safe."""
        if self._draining:
            return "It drains."
        if self._away and not self._children:
            return "Its Redis is away."
        ready = [child.page.begun for child in [*self._children.values()]]
        return "" if ready and (all(ready) or not self._settings.stall_timeout) else "Its processes start."

    def processes(self) -> dict[str, int]:
        """Return the ids of the processes that run turns, by name. Thread-safe."""
        return {name: child.process.pid for name, child in [*self._children.items(), *self._alone.items()]}

    def drain(self) -> None:
        """Drain the children; a second call aborts them. Those that do not end in time are killed."""
        again, self._draining = self._draining, True
        self._tell(signal.SIGTERM, alone=again)
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.create_task(self._end_all(None if again else self._settings.drain))

    async def _end_all(self, drain_seconds: float | None) -> None:
        if drain_seconds is not None:
            await asyncio.sleep(drain_seconds + SAFE_POINT_SECONDS)
            self._tell(signal.SIGTERM, alone=True)
        await asyncio.sleep(_giving_back_seconds(self._settings))
        while True:
            for child in [*self._children.values(), *self._alone.values()]:
                log.error("process %s does not end and is killed", child.name, extra={"action": "killed"})
            self._tell(signal.SIGKILL, alone=True)
            await asyncio.sleep(1.0)

    async def _retire(self) -> None:
        """Drain once nothing needs the revisions of these workers."""
        from antiphon_worker.supervisor.retirement import may_stop

        while not self._draining:
            await asyncio.sleep(RETIRE_SECONDS)
            if not self._draining and await may_stop(self._settings, [*self._children]):
                log.info("nothing needs the revisions of these workers", extra={"action": "retired"})
                self.drain()

    def _tell(self, number: signal.Signals, *, alone: bool) -> None:
        for child in [*self._children.values(), *(self._alone.values() if alone else ())]:
            child.signal(number)

    async def _check(self, url: str) -> None:
        """Check a Redis, and note if it is unavailable. Raises ``StoreError`` if it answers but is unsuitable."""
        redis = open_redis(url, retries=1)
        for code, _ in (WORKER_DIED, LOOP_STALLED):
            self.deaths.setdefault((name_of(redis), code), 0)
        try:
            facts = await read_redis(redis, keys_of(redis, self._settings.prefix))
        except StoreUnavailable as exc:
            if url not in self._away:
                self._away[url] = time.monotonic()
                log.warning(
                    "%s: %s Its turns wait until it answers; trying again.", redact(url), exc,
                    extra={"action": "outage_began"},
                )  # fmt: skip
            return
        finally:
            await redis.aclose()
        check_redis(facts, self._settings.durability)
        log.info("%s: %s", redact(url), facts.sentence(), extra={"action": "redis_checked"})
        if since := self._away.pop(url, None):
            self._last = time.monotonic()
            seconds = self._last - since
            log.info("%s: Redis answers after %.1f s", redact(url), seconds, extra={"action": "outage_ended"})

    async def _serve(self, url: str) -> None:
        """Keep the worker processes of a Redis running, once it answers; those of a cluster, once a cell does."""
        async with asyncio.TaskGroup() as group:
            answering = [group.create_task(self._until_it_answers(cell)) for cell in cell_urls(url)]
            await asyncio.wait(answering, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(self._settings.processes):
                group.create_task(self._keep_one(url))

    async def _until_it_answers(self, cell: str) -> None:
        while cell in self._away and not self._draining:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                await self._check(cell)
            except StoreError as exc:
                log.error("%s: %s Trying again.", redact(cell), exc, extra={"action": "redis_refused"})

    async def _keep_one(self, url: str) -> None:
        """Keep one worker process running: replace a dead one, immediately if it had begun to work."""
        pause = SHORTEST_PAUSE_SECONDS
        while not self._draining:
            began = time.monotonic()
            try:
                child, code = await self._run_one(url)
            except OSError as exc:
                pause = await self._wait_longer(pause, f"cannot start a worker process: {exc}")
                continue
            stopped_early = self._draining and code == -signal.SIGTERM  # before it took turns
            if child.state is State.DONE or stopped_early:
                return
            log.error("worker %s died (%s)", child.name, _how(code), extra={"action": "worker_died"})
            lived = time.monotonic() - began
            if lived > START_SECONDS and not self._draining:
                self._spares.keep()  # the next one starts in the meantime
            held = await self._hand_back(url, child.name, child)
            if self._draining or (code == WRONG_SETTINGS and child.state is State.LOADING):
                return
            if held or lived > STEADY_SECONDS:
                pause = SHORTEST_PAUSE_SECONDS
                self._spares.keep()
                continue
            pause = await self._wait_longer(pause)

    async def _wait_longer(self, pause: float, why: str = "") -> float:
        if why:
            log.error(why, extra={"action": "start_failed"})
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)
        return pause

    async def _run_one(self, url: str) -> tuple[Started, int]:
        """Run one worker process to its end, and return its exit code too. Raises ``OSError`` if it cannot start."""
        child = await self._spares.take()
        self._children[child.name] = child
        self._last = time.monotonic()
        loop = asyncio.get_running_loop()
        loop.add_reader(child.line, self._asked, child, url)
        if self._draining:
            child.signal(signal.SIGTERM)  # it started while the others were being stopped
        else:
            child.tell(WORK, child.name, url)
        try:
            return child, await child.ended(self._patience)
        finally:
            del self._children[child.name]
            self._last = time.monotonic()
            loop.remove_reader(child.line)
            child.line.close()

    def _asked(self, child: Started, url: str) -> None:
        """Answer a worker that asks for a process for isolated turns or has closed its end."""
        try:
            asked = child.line.recv(1024)
        except OSError:
            asked = b""
        if not asked:
            asyncio.get_running_loop().remove_reader(child.line)
            return
        task = asyncio.create_task(self._run_alone(child, url))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _run_alone(self, worker: Started, url: str) -> None:
        """Assign a process for isolated turns to a worker, and notify the worker when the process has ended."""
        self._spares.keep()
        try:
            child = await self._spares.take()
        except OSError as exc:
            log.error("cannot start a process for isolated turns: %s", exc, extra={"action": "start_failed"})
            tell(worker.line, "none")
            return
        name = f"{child.name}-alone"
        self._alone[name] = child
        tell(worker.line, f"given {name}", child.line.fileno())
        child.line.close()  # only the worker keeps it open; without a worker the process ends
        code = await child.ended(self._patience)
        del self._alone[name]
        died = child.state is not State.DONE
        if died:
            log.error("process %s died (%s)", name, _how(code), extra={"action": "worker_died"})
        turns = await self._hand_back(url, name, child) if died else 0
        tell(worker.line, f"ended {name} {turns}")

    async def _hand_back(self, url: str, name: str, child: Started) -> int:
        cause = LOOP_STALLED if child.stalled else WORKER_DIED
        cells = [Cell(open_redis(one), prefix=self._settings.prefix) for one in cell_urls(url)]
        for cell in cells:
            self.deaths[cell.name, cause[0]] += 1
        return sum(await asyncio.gather(*(hand_back(cell, name, self._settings, cause) for cell in cells)))


def killed_after(settings: Settings) -> float:
    """Return how many seconds after SIGTERM a process that does not end is killed. Its turns are then requeued."""
    return settings.drain + SAFE_POINT_SECONDS + _giving_back_seconds(settings)


def _giving_back_seconds(settings: Settings) -> float:
    return max(settings.lease, GIVE_BACK_SECONDS) + LAST_SECONDS


def raise_open_files_limit() -> None:
    """Raise the limit of open files as far as the system allows (at most ``OPEN_FILES``): every stream is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_of_this_host(worker: str) -> bool:
    """Return whether this is the name of a worker process that a supervisor of this host has started."""
    return worker.rsplit("-", 2)[0] == host_name()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    names = {known.value: known.name for known in signal.Signals}  # not all signals have one
    return f"signal {names.get(-code, -code)}"


KEPT = 3  # a turn may kill two workers before it runs alone: two replacements and its own process
BEGIN_SECONDS = 5.0  # processes that have just started get the processors first
PATIENCE_SECONDS = 1.0  # after a first death, the needed process gets the processors first
CALM_SECONDS = 600.0
LOOK_SECONDS = 0.05
RETIRE_SECONDS = 30.0  # between checks whether the workers may stop


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
        """Return a standby process, or a new process if there is none. Raises ``OSError``."""
        while self._ready:
            one = self._ready.popleft()
            if one.process.returncode is None:
                self._fill()
                return one
            one.line.close()  # it could not load its App: its replacement reports the error
        return await self._start()

    def begin(self) -> None:
        """Start keeping the standby processes that do not require a death. Call it when the workers have started."""
        if self._least:
            self._kept = self._least
            self._later.append(asyncio.get_running_loop().call_later(BEGIN_SECONDS, self._fill))

    def keep(self) -> None:
        """Keep standby processes from now on, because a process has died."""
        first, self._kept = self._kept < KEPT, KEPT
        self._cancel_timers()
        loop = asyncio.get_running_loop()
        self._later.append(loop.call_later(CALM_SECONDS, self._let_go, self._least))
        if first:
            self._later.append(loop.call_later(PATIENCE_SECONDS, self._fill))
        else:
            self._fill()

    async def aclose(self) -> None:
        """Start no more standby processes, and end those that wait."""
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
                while one.loading:  # noqa: ASYNC110 - the awaited state is in another process
                    await asyncio.sleep(LOOK_SECONDS)  # the first needed process gets the processors
        except OSError as exc:
            # The next request for a process tries again.
            log.warning("cannot start a spare process: %s", exc, extra={"action": "start_failed"})

    async def _start(self) -> Started:
        return await start_process(f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}", self._environ)


def host_name() -> str:
    """Return this host's part of the names of workers."""
    return socket.gethostname().replace(":", "_")
