"""The processes of the demo: an embedded Valkey, a model server, a supervisor with its workers, and a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from antiphon.client import DEFAULT_QUEUE
from antiphon.errors import AgentError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.lists.inspection import workers
from antiphon_demo.process_guard import Guard
from antiphon_demo.service import Service, own_service_environment
from antiphon_demo.valkey import EmbeddedValkey

ANSWER_LENGTH = 60  # pieces in an answer of our own model server
READY_SECONDS = 60.0
LOOK_SECONDS = 0.02
WATCH_SECONDS = 0.5
LAST_WORDS = 5
PAGE_PORT = 8700


class Stage:
    """Starts everything; ``guard`` ends it. ``page`` is the address of the operator dashboard, '' if there is none."""

    page = ""

    def __init__(
        self, guard: Guard, *, processes: int, pace: float, service: Service, serves: bool = False
    ) -> None:
        self._guard = guard
        self._folder = guard.folder()
        self._processes = processes
        self._pace = pace
        self._service = service
        self._serves = serves
        self._log = self._folder / "worker.log"
        self._gateway_log = self._folder / "gateway.log"
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._gateway: subprocess.Popen[bytes] | None = None

    async def set_up(self) -> None:
        """Start everything, and wait until the workers accept turns. Raises ``AgentError`` if they do not."""
        valkey = asyncio.to_thread(EmbeddedValkey, self._guard, self._folder / "valkey")
        served = asyncio.to_thread(self._start_model_server) if self._service.own else _nothing()
        embedded, environment = await asyncio.gather(valkey, served)
        self.redis_url = embedded.url
        self.cell = Cell(open_redis(self.redis_url))
        self._start_workers(environment)
        if self._serves:
            self._start_gateway(PAGE_PORT)
        try:
            async with asyncio.timeout(READY_SECONDS):
                while len(await workers(self.cell, DEFAULT_QUEUE)) < self._processes:
                    self._check_workers()
                    await asyncio.sleep(LOOK_SECONDS)
                if self._gateway is not None:
                    self.page = await self._page_of(self._gateway)
        except TimeoutError:
            raise AgentError(f"The workers were not ready in {READY_SECONDS:g} seconds.") from None

    async def _page_of(self, gateway: subprocess.Popen[bytes]) -> str:
        """Return the address that the gateway prints. If it cannot use our port, it is started on any free one."""
        while not (found := re.search(r"\[page\] (\S+)\n", self._gateway_log.read_text(errors="replace"))):
            if self._gateway is gateway and gateway.poll() is not None:
                self._start_gateway(0)
            self._check()
            await asyncio.sleep(LOOK_SECONDS)
        return found[1]

    async def watch(self) -> None:
        """Raise ``AgentError`` when the workers or the gateway have ended."""
        while True:
            self._check()
            await asyncio.sleep(WATCH_SECONDS)

    def last_words(self) -> str:
        """Return the last lines of the workers' log."""
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return "\n".join(lines[-LAST_WORDS:]) or "nothing"

    def _check(self) -> None:
        self._check_workers()
        if self._gateway is not None and self._gateway.poll() is not None:
            raise AgentError("The gateway has ended.")

    def _check_workers(self) -> None:
        if self._supervisor is not None and self._supervisor.poll() is not None:
            raise AgentError("The workers have ended.")

    async def aclose(self) -> None:
        """Close our own connection; the guard ends the processes."""
        if hasattr(self, "cell"):
            await self.cell.redis.aclose()

    def _start_model_server(self) -> dict[str, str]:
        command = [sys.executable, "-m", "antiphon_demo.modelserver", "--with-parent"]
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
        self._supervisor = self._start("worker", self._log, environment, "--processes", str(self._processes))

    def _start_gateway(self, port: int) -> None:
        """Start a gateway for this machine alone."""
        self._gateway = self._start("serve", self._gateway_log, {}, "--port", str(port))

    def _start(
        self, command: str, log: Path, environment: dict[str, str], *flags: str
    ) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        with log.open("wb") as output:
            return self._guard.start(
                [sys.executable, "-m", "antiphon.cli", command, "--redis-url", self.redis_url, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited | environment,
            )


async def _nothing() -> dict[str, str]:
    return {}
