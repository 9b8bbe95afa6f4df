"""Carries out commands of our clients and of RQ's tools: cancel a turn, drain the worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import get_args

import msgspec
from msgspec import Struct

from antiphon.errors import AgentError, StoreError
from antiphon.input.ids import turn_id
from antiphon.input.values import Keep, check_keep
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon_worker.process.consumer import Consumer
from antiphon_worker.process.lease import Stop
from antiphon_worker.process.variants import Variants

log = logging.getLogger("antiphon.control")

SILENCE_SECONDS = 3600.0
REFUSED_SECONDS = 60.0


REASON_CHARACTERS = 500


class Command(Struct):
    """A command on either channel; each kind of command uses some of the fields."""

    command: str = ""
    turn_id: str = ""
    job_id: str = ""
    reason: str = ""
    keep: str = ""


class Control:
    """Listens to the worker's own channel and to RQ's. A lost command is only late: the lease keeper also gets it.

    Clients that may publish on these channels can cancel turns and drain workers. No message ends a worker in any
    other way.
    """

    def __init__(
        self, cell: Cell, feed: LiveFeed, worker: str, consumer: Consumer, drain: Callable[[], None],
        variants: Variants,
    ) -> None:  # fmt: skip
        self._cell = cell
        self._feed = feed
        self._worker = worker
        self._consumer = consumer
        self._drain = drain
        self._variants = variants

    async def run_own(self) -> None:
        """Listen to our channel until cancelled, and run the requested variants."""
        try:
            await self._listen(self._cell.keys.control(self._worker), self._own)
        finally:
            await self._variants.aclose()

    async def run_rq(self) -> None:
        """Listen to RQ's channel until cancelled."""
        await self._listen(self._cell.keys.of_rq("rq_pubsub", self._worker), self._rq)

    async def _listen(self, channel: str, act: Callable[[Command], Awaitable[None]]) -> None:
        while True:
            try:
                await self._hear(channel, act)
            except StoreError as exc:
                log.warning(
                    "commands on the channel %s cannot be received: %s",
                    channel,
                    exc,
                    extra={"action": "outage"},
                )
            await asyncio.sleep(REFUSED_SECONDS)

    async def _hear(self, channel: str, act: Callable[[Command], Awaitable[None]]) -> None:
        async with self._feed.listen(channel) as listener:
            while True:
                try:
                    message = await listener.get(SILENCE_SECONDS)
                except TimeoutError:
                    continue
                if message:
                    await self._act(message, act)

    async def _act(self, message: bytes, act: Callable[[Command], Awaitable[None]]) -> None:
        try:
            await act(msgspec.json.decode(message, type=Command))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            log.warning(
                "a command of %d bytes cannot be read", len(message), extra={"action": "command_refused"}
            )
        except AgentError as exc:
            log.warning("a command could not be carried out: %s", exc, extra={"action": "command_refused"})

    async def _own(self, command: Command) -> None:
        match command.command:
            case "cancel":
                self._cancel(command, command.reason or "cancelled")
            case "drain":
                log.info("the control channel asks this worker to drain")
                self._drain()
            case "variant":
                self._variants.start(command.turn_id, command.job_id)
            case other:
                log.warning("unknown command %.40r", other, extra={"action": "command_refused"})

    async def _rq(self, command: Command) -> None:
        match command.command:
            case "stop-job":
                await self._cell.cancel(turn_id(command.job_id), "stopped with RQ's stop-job")
            case "shutdown":
                log.info("RQ's channel asks this worker to drain")
                self._drain()
            case other:
                log.warning(
                    "RQ's command %.40r is not supported and was ignored",
                    other,
                    extra={"action": "command_refused"},
                )

    def _cancel(self, command: Command, reason: str) -> None:
        for lease in self._consumer.leases():
            if lease.turn_id == command.turn_id:
                lease.keep = check_keep(command.keep) if command.keep in get_args(Keep) else None
                if lease.stop is None:
                    opened = self._cell.stop_word(lease.session_id, reason.encode(errors="replace"))
                    lease.end(Stop.CANCELLED, opened[:REASON_CHARACTERS])
