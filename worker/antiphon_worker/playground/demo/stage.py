"""The processes of the demo: an embedded Valkey, a model server, a supervisor with its workers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from antiphon.client import DEFAULT_QUEUE
from antiphon.errors import AgentError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.inspection import workers
from antiphon_worker.playground.demo.service import Service, own_service_environment
from antiphon_worker.playground.process_guard import Guard
from antiphon_worker.playground.valkey import EmbeddedValkey

__all__ = ["ANSWER_LENGTH", "Stage"]

ANSWER_LENGTH = 60  # pieces in an answer of our own model server
READY_SECONDS = 60.0
LOOK_SECONDS = 0.02
WATCH_SECONDS = 0.5
LAST_WORDS = 5


class Stage:
    """Starts everything; ``guard`` ends it."""

    def __init__(self, guard: Guard, *, processes: int, pace: float, service: Service) -> None:
        self._guard = guard
        self._folder = guard.folder()
        self._processes = processes
        self._pace = pace
        self._service = service
        self._log = self._folder / "worker.log"
        self._supervisor: subprocess.Popen[bytes] | None = None

    async def set_up(self) -> None:
        """Return when the workers accept turns. Raises ``AgentError`` if they do not."""
        valkey = asyncio.to_thread(EmbeddedValkey, self._guard, self._folder / "valkey")
        served = asyncio.to_thread(self._start_model_server) if self._service.own else _nothing()
        embedded, environment = await asyncio.gather(valkey, served)
        self.redis_url = embedded.url
        self.cell = Cell(open_redis(self.redis_url))
        self._start_workers(environment)
        async with asyncio.timeout(READY_SECONDS):
            while len(await workers(self.cell, DEFAULT_QUEUE)) < self._processes:
                self._check()
                await asyncio.sleep(LOOK_SECONDS)

    async def watch(self) -> None:
        """Raise ``AgentError`` when the workers have ended."""
        while True:
            self._check()
            await asyncio.sleep(WATCH_SECONDS)

    def last_words(self) -> str:
        """The last lines of the workers' log."""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return "\n".join(lines[-LAST_WORDS:]) or "nothing"

    def _check(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is not None:
            raise AgentError("The workers have ended.")

    async def aclose(self) -> None:
        """Close our own connection; the processes are the guard's."""
        if hasattr(self, "cell"):
            await self.cell.redis.aclose()

    def _start_model_server(self) -> dict[str, str]:
        command = [sys.executable, "-m", "antiphon_worker.playground.modelserver", "--with-parent"]
        server = self._guard.start(
            [*command, "--pace", str(self._pace), "--length", str(ANSWER_LENGTH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        line = server.stdout.readline() if server.stdout else b""
        if not line:
            raise AgentError("The model server did not start.")
        urls = json.loads(line)
        return own_service_environment(urls["base_url"], urls["openai_url"])

    def _start_workers(self, environment: dict[str, str]) -> None:
        """Start workers as a deployment does, without the caller's own settings."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        command = [sys.executable, "-m", "antiphon.cli", "worker", "--redis-url", self.redis_url]
        with Path(self._log).open("wb") as log:
            self._supervisor = self._guard.start(
                [*command, "--processes", str(self._processes)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=inherited | environment,
            )


async def _nothing() -> dict[str, str]:
    return {}
