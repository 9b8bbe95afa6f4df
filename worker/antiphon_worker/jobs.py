"""Runs turns under `rq worker`: many concurrently with our worker class, or one at a time with RQ's own classes.

A stock worker executes whatever function a job names. Give it queues that only trusted services may write to, or start
it with ``--worker-class antiphon_worker.rq.Worker``.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Any

from rq import get_current_job
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry
from rq.worker import Worker as RQWorker

from antiphon.errors import AgentError, SettingsError, StoreError, UsageError
from antiphon.input.ids import TurnId
from antiphon.model import TERMINAL
from antiphon.redis.cells import open_cells
from antiphon.telemetry import flush_telemetry
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_like, open_redis, url_like
from antiphon.wire.lists.inspection import work_left
from antiphon.wire.records import TurnRecord
from antiphon_worker.app import load_app
from antiphon_worker.process.isolated_turn import run_one_turn
from antiphon_worker.process.worker import Worker, worker_name
from antiphon_worker.rq.foreign_jobs import IN_THE_CLEAR, submit_job
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.event_loop import run_to_its_end
from antiphon_worker.supervisor.watchdog import beating_under_rq

LOOK_SECONDS = 0.25


class TurnWorker(RQWorker):
    """One of our workers under RQ's command line: ``rq worker --worker-class antiphon_worker.rq.Worker``.

    It runs many turns of the given queues concurrently, holds their leases and recovers those of dead workers. A job
    of another function fails visibly; no function, callback, webhook or pickle of a job is ever executed or read.
    Settings come from ``ANTIPHON_*`` variables; ``--burst``, ``--max-idle-time`` and ``--with-scheduler`` work.
    """

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = "INFO",
        date_format: str = "",
        log_format: str = "",
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,
        dequeue_strategy: Any = None,
    ) -> bool:
        """Work until SIGTERM or Ctrl-C or, with ``burst``, until no work is left. Raises ``SettingsError``."""
        from antiphon.telemetry import set_up_logging

        if max_jobs is not None:
            raise SettingsError(
                "antiphon_worker.rq.Worker runs many turns at once and does not support --max-jobs: omit it."
            )
        settings = Settings.load({"queues": ",".join(self.queue_names())})
        set_up_logging((logging_level or settings.log_level).lower(), settings.log_format)
        if with_scheduler:
            self._start_scheduler(burst, logging_level)
        try:
            run_to_its_end(self._work(settings, 0.0 if burst else max_idle_time))
        finally:
            if self.scheduler is not None and not burst:
                self.stop_scheduler()
        return True

    async def _work(self, settings: Settings, patience: float | None) -> None:
        app = load_app(settings.app)
        url = settings.promised(url_like(self.connection)) or settings.redis_urls[0]
        worker = Worker(settings, app, url=url)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        watching = asyncio.create_task(_drain_when_idle(worker, url, settings, patience))
        try:
            await app.preload()
            async with beating_under_rq(settings.stall_timeout):
                await worker.run()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await app.aclose()


async def _drain_when_idle(worker: Worker, url: str, settings: Settings, patience: float | None) -> None:
    """Stop the worker after this many idle seconds; None means never."""
    if patience is None:
        return None
    cell = Cell(open_redis(url), prefix=settings.prefix)
    busy_at = time.monotonic()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                left = await work_left(cell, worker.name, settings.queues)
            except StoreError:
                left = True  # the worker logs the error
            busy_at = time.monotonic() if left else busy_at
            if time.monotonic() - busy_at >= patience and not left:
                return worker.drain()
    finally:
        await cell.redis.aclose()


def run_turn(*arguments: Any, **options: Any) -> dict[str, Any] | None:
    """Run the turn with the job's id, or the turn that its arguments describe: ``(session_id, text, options)``.

    Returns the ids and the status of the turn. Raises ``TurnFailed`` if the turn failed, so that RQ shows the job as
    failed. If the turn has not ended (it waits for a decision or for a retry, or this worker must not run it now),
    the job's record stays as the session wrote it.
    """
    job = get_current_job()
    if job is None:
        raise AgentError("run_turn only works inside an RQ worker: use Client.submit() elsewhere.")
    record = run_to_its_end(_run_turn(job, arguments, options))
    if record is None or record.status not in TERMINAL:
        _leave_record(job)
    elif record.status == "cancelled":
        _show_as_cancelled(job)
    if record is None:
        return None
    return {"turn_id": record.turn_id, "session_id": record.session_id, "status": record.status}


async def _run_turn(job: Job, arguments: Sequence[Any], options: dict[str, Any]) -> TurnRecord | None:
    settings = Settings.load()

    def open_cell() -> Cell:
        return Cell(open_like(job.connection, durability=settings.promise), prefix=settings.prefix)

    cell = open_cell()
    try:
        if len(arguments) != 1 and cell.seal.on:
            raise UsageError(IN_THE_CLEAR)
        if len(arguments) != 1:
            cells = open_cells(settings.cell_urls, prefix=settings.prefix)
            await submit_job(cell, cells, job.id, job.origin, list(arguments), options)
    finally:
        await cell.redis.aclose()
    app = load_app(settings.app)
    worker = job.worker_name or worker_name()
    try:
        async with beating_under_rq(settings.stall_timeout):
            return await run_one_turn(TurnId(job.id), settings, app, open_cell, worker)
    finally:
        await app.aclose()
        flush_telemetry()  # RQ ends its processes without running exit functions


def _leave_record(job: Job) -> None:
    """Prevent the stock worker from marking the job as finished and from letting its record expire."""

    def leave(*_: Any, **__: Any) -> None:
        pass

    job._handle_success = job.cleanup = leave  # type: ignore[method-assign]  # RQ offers no other way


def _show_as_cancelled(job: Job) -> None:
    """Make the stock worker record the cancellation: it marks every job whose function returns as finished."""

    def show(result_ttl: int, pipeline: Any, **_: Any) -> None:
        job.set_status(JobStatus.CANCELED, pipeline=pipeline)
        registry = CanceledJobRegistry(
            job.origin, job.connection, job_class=type(job), serializer=job.serializer
        )
        registry.add(job, result_ttl, pipeline=pipeline)

    job._handle_success = show  # type: ignore[method-assign]  # RQ offers no other way
