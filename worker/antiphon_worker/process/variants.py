"""Runs ended turns again for ``turn.replay``, on the revisions of this worker's App."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.errors import AgentError, RevisionUnavailable, StoreError
from antiphon.input.ids import TurnId
from antiphon.model.recording import Variant, VariantRun
from antiphon.redis.recording import record_turn
from antiphon.telemetry import log_fault
from antiphon.wire.cell import Cell
from antiphon.wire.variants import keep_variant, variants_of
from antiphon_worker.app import App

log = logging.getLogger("antiphon.variants")

AT_ONCE = 4
SECONDS = 600.0
AGAIN_SECONDS = 1.0


class Variants:
    """The variants that a worker process runs: a few at a time, in addition to its turns. They end with it."""

    def __init__(self, cell: Cell, worker: str, app: App) -> None:
        self._cell = cell
        self._worker = worker
        self._app = app
        self._room = asyncio.Semaphore(AT_ONCE)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._given_up: set[str] = set()

    def start(self, turn_id: str, variant_id: str) -> None:
        """Run a requested variant, unless it already runs or has failed to run. Its readers ask again."""
        if variant_id not in self._running and variant_id not in self._given_up:
            task = asyncio.create_task(self._run(TurnId(turn_id), variant_id), name=f"variant {variant_id}")
            self._running[variant_id] = task
            task.add_done_callback(lambda _: self._running.pop(variant_id, None))

    async def aclose(self) -> None:
        """Stop the running variants. Readers notice that their worker is gone."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, turn_id: TurnId, variant_id: str) -> None:
        async with self._room:
            try:
                record = await _patiently(lambda: self._cell.turn(turn_id))
                for run in await _patiently(lambda: variants_of(self._cell, record)):
                    if (run.id, run.worker, run.status) == (variant_id, self._worker, "running"):
                        run.variant, run.status = await self._variant(turn_id, run), "finished"
                        # It was paid for, so keep trying.
                        await _patiently(lambda run=run: keep_variant(self._cell, record, run))
            except AgentError as exc:
                self._given_up.add(variant_id)
                log.warning(
                    "variant %s of turn %s could not be run: %s", variant_id, turn_id, exc,
                    extra={"action": "variant_failed", "turn": turn_id},
                )  # fmt: skip

    async def _variant(self, turn_id: TurnId, run: VariantRun) -> Variant:
        """Run one variant, and turn its failures into a result."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self._made(turn_id, run)
        except AgentError as exc:
            return Variant(run.model or "", error=f"{exc.code}: {exc.message}")
        except TimeoutError:
            return Variant(run.model or "", error=f"It did not end within {SECONDS:g} s.")
        except Exception as exc:  # noqa: BLE001 - hooks and providers are the user's code
            log_fault(log, exc, "variant %s failed", run.id, action="variant_failed")
            return Variant(run.model or "", error=f"internal_error: {type(exc).__name__}")

    async def _made(self, turn_id: TurnId, run: VariantRun) -> Variant:
        from antiphon_worker.loop.variants import run_variant

        own = self._app.revisions.get(run.agent)
        if own is None or own.id != run.revision:
            raise RevisionUnavailable(f"The worker has no {run.agent}@{run.revision}.")
        recording = await record_turn(self._cell, turn_id)
        agents = await self._app.replayable(run.agent)
        return await run_variant(recording, *agents, step=run.step, model=run.model, system=run.system)


async def _patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a call returns; try again while Redis does not answer."""
    while True:
        try:
            return await call()
        except StoreError as exc:
            if not exc.retryable:
                raise
        await asyncio.sleep(AGAIN_SECONDS)
