"""Lets an immediate stop interrupt the work of a turn."""

from __future__ import annotations

import asyncio
from types import TracebackType

from antiphon_worker.process.lease import Lease, StopSignal
from antiphon_worker.process.publisher import TurnSink


class Interruptible:
    """Inside this context, an immediate stop cancels the current task, and is raised as ``StopSignal``."""

    __slots__ = ("_lease", "_sink", "_task")

    def __init__(self, lease: Lease, sink: TurnSink) -> None:
        self._lease = lease
        self._sink = sink

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._lease.on_stop(self._interrupt)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.on_stop(self._sink.release)
        if isinstance(exc, asyncio.CancelledError) and self._lease.stop is not None:
            self._task.uncancel()
            raise StopSignal(self._lease.stop) from None

    def _interrupt(self) -> None:
        self._sink.release()
        self._task.cancel()
