"""Runs one turn of this process to its end: claims it when it can run, and otherwise waits."""

from __future__ import annotations

import asyncio
import math
import secrets
from contextlib import suppress

from antiphon.errors import AgentError
from antiphon.events import TurnFailedEvent
from antiphon.input.values import Keep
from antiphon.model import ServiceAnswer, encode
from antiphon.wire.records import ClaimedTurn, Emit, claims
from antiphon_worker.local.cell import MemoryCell
from antiphon_worker.local.moves import ENDED
from antiphon_worker.local.own_app import OwnApp
from antiphon_worker.local.records import Turn
from antiphon_worker.process.lease import Lease, Stop
from antiphon_worker.process.outcomes import Outcome
from antiphon_worker.process.publisher import TurnSink
from antiphon_worker.process.turn import TurnRunner
from antiphon_worker.settings import Settings

LEASE_MS = 100 * 365 * 86_400_000
LEFT = "The process ended."
SETTINGS = Settings(turn_timeout=math.inf, retry_seconds=0.0, error_limit=1_000_000)
"""The engine's worker settings: here, a turn is retried only if its agent has a ``Retry``."""


class DirectPublisher:
    """Publishes the events of a turn before its event loop does anything else."""

    def __init__(self, cell: MemoryCell) -> None:
        self._cell = cell
        self._due: set[TurnSink] = set()

    def wake(self, sink: TurnSink) -> None:
        if sink not in self._due:
            self._due.add(sink)
            asyncio.get_running_loop().call_soon(self._send, sink)

    def forget(self, sink: TurnSink) -> None:
        self._due.discard(sink)

    def _send(self, sink: TurnSink) -> None:
        if sink not in self._due:
            return
        self._due.discard(sink)
        emit: Emit | None = sink.next_emit()
        if emit is not None:
            _, [answer] = self._cell.apply(
                "emit", emit.session_id, emit.fence, emit.batch, len(emit.bodies), *emit.bodies
            )
            sink.answer(answer.decode())


class OwnTurn(TurnRunner):
    """Runs turns of this process. It logs nothing, because callers learn of the end themselves."""

    has_others = False

    def _log_end(self, turn: ClaimedTurn, outcome: Outcome, provider: str, took: float) -> None:
        pass


class Server:
    """Runs one turn on the event loop that awaits ``run``. It can be woken and stopped from any thread."""

    def __init__(self, cell: MemoryCell, turn: Turn, app: OwnApp) -> None:
        self._cell = cell
        self._turn = turn
        self._app = app
        self._name = f"local-{turn.id}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._lease: Lease | None = None

    def wake(self) -> None:
        """Check the turn again: it is claimable, or waits for another time."""
        self._call(self._woken.set)

    def stop(self, reason: str, keep: Keep) -> None:
        """Stop the running turn, at its next step of the event loop."""

        def stop() -> None:
            if self._lease is not None:
                self._lease.keep = keep
                self._lease.end(Stop.CANCELLED, reason)

        self._call(stop)

    async def run(self) -> None:
        """Serve the turn until its run has ended. If this is cancelled, the turn is cancelled too."""
        self._loop = asyncio.get_running_loop()
        try:
            while self._turn.status not in ENDED:
                self._woken.clear()
                claimed = await self._claim()
                if claimed is not None:
                    await self._attempt(claimed)
                elif self._turn.status not in ENDED:
                    await self._wait()
        except BaseException:
            self._leave()
            raise
        finally:
            self._cell.forget_worker(self._name)

    async def _claim(self) -> ClaimedTurn | None:
        try:
            found = await self._cell.claim(
                self._name, secrets.token_hex(6), lease_ms=LEASE_MS, limit=1, queues=(), only=self._turn.id
            )
        except AgentError as exc:  # its store has failed
            found = self._claimed_anyway()
            if found is not None:
                await self._fail(found, exc)
            return None
        return next(iter(found.turns), None)

    def _claimed_anyway(self) -> ClaimedTurn | None:
        answer = self._cell.apply(
            "claim", self._name, secrets.token_hex(6), LEASE_MS, 1, 0, self._turn.id, ""
        )
        return next(iter(claims(*answer[1:]).turns), None)

    async def _attempt(self, claimed: ClaimedTurn) -> None:
        lease = self._lease = Lease(claimed.session_id, claimed.turn_id, claimed.fence, math.inf)
        runner = OwnTurn(self._cell, DirectPublisher(self._cell), self._app, SETTINGS)  # type: ignore[arg-type]
        try:
            await runner.run(claimed, lease)
        except AgentError as exc:  # its store has failed
            await self._fail(claimed, exc)
        finally:
            self._lease = None

    async def _fail(self, turn: ClaimedTurn, error: AgentError) -> None:
        """End the turn with this error, only in memory."""
        event = TurnFailedEvent.of(error)
        event.session_id, event.turn_id, event.run, event.attempt = (
            turn.session_id,
            turn.turn_id,
            turn.run,
            turn.attempt,
        )
        service = ServiceAnswer.of(error)
        self._cell.apply(
            "finish", turn.session_id, turn.turn_id, turn.fence, "failed", b"", str(error.code), error.message.encode(),
            b"" if service is None else encode(service), b"", "", b"", "", 10_000, "", b"", "", "", 0, encode(event),
        )  # fmt: skip

    async def _wait(self) -> None:
        """Wait until the turn is woken, or something of it is due; then do that."""
        try:
            async with asyncio.timeout(self._cell.seconds_until(self._turn)):
                await self._woken.wait()
        except TimeoutError:
            self._cell.apply("reap", "", 100, 1, 10_000, "worker_died", LEFT, "")

    def _leave(self) -> None:
        """End an unfinished turn because the loop ends. It leaves nothing in the history."""
        if self._turn.status not in ENDED:
            self._cell.apply("cancel", self._turn.id, b"the process ended", "nothing", 10_000)
            self._cell.apply("reap", self._name, 1, 1, 10_000, "worker_died", LEFT, "")
            if self._turn.status not in ENDED and self._claimed_anyway() is not None:
                self._cell.apply("reap", self._name, 1, 1, 10_000, "worker_died", LEFT, "")

    def _call(self, act: object) -> None:
        loop = self._loop
        if loop is None:
            return  # not begun: ``run`` checks the turn first
        with suppress(RuntimeError):  # the loop has ended, and the turn with it
            loop.call_soon_threadsafe(act)  # type: ignore[arg-type]
