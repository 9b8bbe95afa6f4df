"""Keeps the services of a worker process running, whatever Redis contains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from antiphon.errors import AgentError
from antiphon.telemetry import log_fault

log = logging.getLogger("antiphon.worker")

PAUSE_SECONDS = 1.0
STEADY_SECONDS = 5.0
"""How long a service must run before it counts as working again."""


class Service:
    """One service. If it fails, the exception is logged once, and the service starts again after a pause."""

    def __init__(self, start: Callable[[], Awaitable[None]], what: str) -> None:
        self._start = start
        self._what = what
        self._failure = ""

    async def run(self) -> None:
        """Run the service until it returns or is cancelled."""
        while True:
            steady = asyncio.get_running_loop().call_later(STEADY_SECONDS, self._works)
            try:
                return await self._start()
            except Exception as exc:  # noqa: BLE001 - the other services and the turns continue
                self._fails(exc)
            finally:
                steady.cancel()
            await asyncio.sleep(PAUSE_SECONDS)

    def _fails(self, exc: Exception) -> None:
        failure = f"{type(exc).__name__}: {exc}"
        if failure == self._failure:
            return
        self._failure = failure
        if isinstance(exc, AgentError):
            log.error(
                "the %s is interrupted, trying again: %s", self._what, exc, extra={"action": "service_failed"}
            )
        else:
            log_fault(log, exc, "the %s is interrupted, trying again", self._what, action="service_failed")

    def _works(self) -> None:
        if self._failure:
            log.info("the %s works again", self._what, extra={"action": "service_works"})
        self._failure = ""
