"""The parent of the worker processes.

1. starts them and starts them again when they die  2. hands back at once what a dead one held
3. passes SIGTERM on: they drain; a second one makes them abort  4. ends when they have ended
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.connect import open_redis, redact
from antiphon.wire.preflight import check_redis, read_redis
from antiphon_worker.settings import Settings

__all__ = ["Supervisor", "is_of_this_host"]

log = logging.getLogger("antiphon.supervisor")

OPEN_FILES = 65_536
STEADY_SECONDS = 10.0
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0


class Supervisor:
    """Runs ``settings.processes`` worker processes for every cell."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._draining = False

    async def run(self) -> None:
        """Check the Redis servers, then work until SIGTERM or SIGINT. Raises ``StoreError`` for an unfit Redis."""
        for url in self._settings.redis_urls:
            await self._check(url)
        raise_open_files_limit()
        loop = asyncio.get_running_loop()
        for known in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(known, self.drain)
        async with asyncio.TaskGroup() as group:
            for url in self._settings.redis_urls:
                for _ in range(self._settings.processes):
                    group.create_task(self._keep_one(url))

    def drain(self) -> None:
        """Let the children drain; called again, let them abort."""
        self._draining = True
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)

    async def _check(self, url: str) -> None:
        redis = open_redis(url, retries=1)
        try:
            facts = await read_redis(redis)
            check_redis(facts, self._settings.durability)
            log.info("%s: %s", redact(url), facts.sentence(), extra={"action": "redis_checked"})
        finally:
            await redis.aclose()

    async def _keep_one(self, url: str) -> None:
        """One place for a process: filled again when it dies, at once where it was fit for work."""
        pause = SHORTEST_PAUSE_SECONDS
        while not self._draining:
            name = _new_name()
            began = time.monotonic()
            code = await self._run_one(url, name)
            stopped_early = self._draining and code == -signal.SIGTERM  # before it took turns
            if code == 0 or stopped_early:
                return
            log.error("worker %s died (%s)", name, _how(code), extra={"action": "worker_died"})
            held = await self._hand_back(url, name)
            if self._draining or code == 2:
                return
            fit = held or time.monotonic() - began > STEADY_SECONDS
            pause = SHORTEST_PAUSE_SECONDS if fit else min(pause * 2, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _run_one(self, url: str, name: str) -> int:
        environment = {
            **os.environ, **self._settings.environ(), "ANTIPHON_CELL_URL": url, "ANTIPHON_WORKER_NAME": name,
            "ANTIPHON_SUPERVISED": "1",
        }  # fmt: skip
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon_worker", stdin=asyncio.subprocess.PIPE, env=environment
        )
        self._children[name] = child
        try:
            return await child.wait()
        finally:
            del self._children[name]
            if child.stdin is not None:
                child.stdin.close()

    async def _hand_back(self, url: str, name: str) -> int:
        """What the dead one held starts again elsewhere now, not when its leases expire. Gives how many turns."""
        cell = Cell(open_redis(url), prefix=self._settings.prefix)
        try:
            acts = await cell.reap(
                holder=name, crash_limit=self._settings.crash_limit, queues=self._settings.queues
            )
            log.info(
                "%d turns of worker %s are handed back", len(acts), name, extra={"action": "handed_back"}
            )
            return len(acts)
        except StoreError as exc:
            log.warning("the turns of worker %s wait for their leases to expire: %s", name, exc)
            return 0
        finally:
            await cell.redis.aclose()


def raise_open_files_limit() -> None:
    """A stream is an open file: take as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_of_this_host(worker: str) -> bool:
    """True for the name of a worker process that a supervisor of this host has started."""
    return worker.rsplit("-", 2)[0] == _host()


def _new_name() -> str:
    return f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


def _host() -> str:
    return socket.gethostname().replace(":", "_")


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
