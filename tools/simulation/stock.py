"""RQ's own worker: RQ's code takes and ends a job; between the two, our code runs the job's turn."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from random import Random
from typing import Any

from rq import Queue
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.worker import SimpleWorker

from antiphon.wire.scripts import KEEP_JOB_SECONDS, KEEP_TURN_SECONDS
from antiphon_worker.jobs import _leave_record, _show_as_cancelled
from simulation.model import ENDED
from simulation.workers import Worker
from simulation.world import QUEUES, World


@dataclass
class Taken:
    """A job that RQ has marked as started."""

    job: Job
    queue: Queue
    execution: Execution
    asked: bool = False  # whether our code has tried to claim its turn
    held: bool = False  # whether it has claimed it


class StockWorker(Worker):
    """Runs one job at a time. If its process dies, RQ's parent process marks the job as failed, or dies as well."""

    def __init__(self, world: World, name: str, dead: list[str], app: str) -> None:
        self._taken: Taken | None = None
        logging.getLogger("rq.worker").setLevel(logging.CRITICAL)
        self._rq = SimpleWorker(QUEUES, connection=world.rq_redis, serializer=JSONSerializer, name=name)
        super().__init__(world, name, dead, app)

    def act(self, random: Random) -> Any:
        before = self.name
        super().act(random)
        taken = self._taken
        if taken and self._tasks:
            taken.held = True
        if taken and self.name != before:
            self._taken = None
            if random.random() < 0.5:
                self._world.rq_does(
                    f"calls {taken.job.id} failed, whose process died", lambda: self._killed(taken)
                )

    def _claim(self, random: Random, only: str = "") -> None:
        taken = self._taken
        if taken is None:
            self._world.rq_does("a stock worker takes a job", self._take)
        elif self._tasks:
            self._renew(random)
        elif not taken.asked:
            taken.asked = True
            super()._claim(random, only=taken.job.id)
        else:
            self._taken = None
            status = self._world.model.turns[taken.job.id].status if taken.held else ""
            self._world.rq_does(
                f"a stock worker ends {taken.job.id}: {status}", lambda: self._whole_end(taken, status)
            )

    def _take(self) -> None:
        queues = [Queue(name, connection=self._world.rq_redis, serializer=JSONSerializer) for name in QUEUES]
        found = Queue.dequeue_any(queues, None, connection=self._world.rq_redis, serializer=JSONSerializer)
        if found:
            job, queue = found
            self._taken = Taken(job, queue, self._rq.prepare_execution(job))
            self._world.executions.add((job.origin, self._taken.execution.composite_key))
            self._rq.prepare_job_execution(job)
            job.started_at = job.ended_at = self._taken.execution.created_at

    def _whole_end(self, taken: Taken, status: str) -> None:
        """End a job, and keep RQ's entry as long as the scripts do, by the clock of this world."""
        self._end(taken, status)
        model, turn = self._world.model, taken.job.id
        for kind in ("finished", "failed", "canceled"):
            kept = KEEP_TURN_SECONDS if kind == "failed" else KEEP_JOB_SECONDS
            until, key = round(model.now / 1000 + kept), f"rq:{kind}:{taken.job.origin}"
            if self._world.rq_redis.zadd(key, {turn: until}, xx=True, ch=True):
                model.recorded_at[turn] = model.now

    def _end(self, taken: Taken, status: str) -> None:
        if status == "failed":
            try:
                raise RuntimeError("TurnFailed")
            except RuntimeError:
                return self._rq._finalize_failure(taken.job, taken.queue, taken.execution, sys.exc_info())
        if status not in ENDED:
            _leave_record(taken.job)
        elif status == "cancelled":
            _show_as_cancelled(taken.job)
        self._rq._finalize_success(taken.job, taken.queue, taken.execution, None)
        return None

    def _killed(self, taken: Taken) -> None:
        """Handle a killed process like ``monitor_work_horse``."""
        if taken.job.get_status() not in (None, JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED):
            self._rq.handle_job_failure(taken.job, taken.queue, taken.execution, exc_string="terminated")
