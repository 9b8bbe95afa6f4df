"""Commands from outside: cancel a turn, drain the worker; ours and those of RQ's tools."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from antiphon.errors import AgentError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.keys import rq_key
from antiphon_worker.process.consumer import Consumer
from antiphon_worker.process.lease import Stop

__all__ = ["Control"]

log = logging.getLogger("antiphon.control")

SILENCE_SECONDS = 3600.0


class Control:
    """Hears the worker's own channel and RQ's. A command that is lost only delays: the keeper hears of it too."""

    def __init__(
        self, cell: Cell, feed: LiveFeed, worker: str, consumer: Consumer, drain: Callable[[], None]
    ) -> None:
        self._cell = cell
        self._feed = feed
        self._worker = worker
        self._consumer = consumer
        self._drain = drain

    async def run_own(self) -> None:
        """Listen to our channel until cancelled."""
        await self._listen(self._cell.keys.control(self._worker), self._own)

    async def run_rq(self) -> None:
        """Listen to RQ's channel until cancelled."""
        await self._listen(rq_key("rq_pubsub", self._worker), self._rq)

    async def _listen(self, channel: str, act: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        async with self._feed.listen(channel) as listener:
            while True:
                try:
                    message = await listener.get(SILENCE_SECONDS)
                except TimeoutError:
                    continue
                if message:
                    await self._act(message, act)

    async def _act(self, message: bytes, act: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        try:
            await act(msgspec.json.decode(message, type=dict[str, Any]))
        except (msgspec.DecodeError, AgentError) as exc:
            log.warning("a command was not understood or could not be carried out: %s", exc)

    async def _own(self, command: dict[str, Any]) -> None:
        match command.get("command"):
            case "cancel":
                self._cancel(str(command.get("turn_id")), str(command.get("reason") or "cancelled"))
            case "drain":
                self._drain()
            case other:
                log.warning("unknown command %r", other)

    async def _rq(self, command: dict[str, Any]) -> None:
        match command.get("command"):
            case "stop-job":
                await self._cell.cancel(command["job_id"], "stopped with RQ's stop-job")
            case "shutdown":
                self._drain()
            case other:
                log.warning("RQ's command %r means nothing here", other)

    def _cancel(self, turn_id: str, reason: str) -> None:
        for lease in self._consumer.leases():
            if lease.turn_id == turn_id and lease.stop is None:
                lease.end(Stop.CANCELLED, reason)
