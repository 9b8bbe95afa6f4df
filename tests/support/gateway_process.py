"""``antiphon serve`` and workers as processes, which a test starts, stops and kills."""

import re
from pathlib import Path
from typing import Any

import httpx2
import openai
from support.eventually import wait_until_async
from support.processes import COMMAND, Process, Processes
from support.stage import Stage


class Stand:
    """Gateways and workers that a test starts and kills."""

    def __init__(self, redis_url: str, processes: Processes, directory: Path) -> None:
        self.stage = Stage(directory / "stage")
        self._redis_url, self._processes = redis_url, processes

    def gateway(self, *flags: str, port: int = 0, **env: str) -> tuple[Process, str]:
        """Start a gateway, and return its process and its URL."""
        process = self._processes.start(
            COMMAND,
            "serve",
            "--redis-url",
            self._redis_url,
            "--port",
            str(port),
            *flags,
            name="serve",
            env=env,
        )
        printed = process.wait_for_output("[serving]")
        return process, re.findall(r"\[serving\] (http://\S+)", printed)[0]

    def worker(self) -> Process:
        """Start a worker, and return its process once it takes turns."""
        worker = self._processes.worker(self._redis_url, "--lease", "2", env=self.stage.env)
        worker.wait_for_output("takes turns")
        return worker

    async def waits(self, gate: str, times: int = 1) -> None:
        await wait_until_async(
            lambda: len(self.stage.notes("waits", gate=gate)) >= times, 20, f"waits at {gate}"
        )


async def gathered(stream: Any, into: list[Any]) -> bool:
    """Read a stream, and return whether it came to its end."""
    try:
        async for one in stream:
            into.append(one)  # noqa: PERF401 - what arrived before the end is kept
    except (httpx2.TransportError, openai.APIConnectionError):
        return False
    return True
