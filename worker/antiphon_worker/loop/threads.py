"""Threads for synchronous tools.

Not ``ThreadPoolExecutor``: its threads are waited for when the interpreter ends, so that one tool that hangs
would keep a worker from stopping. These are daemon threads. They are used again (libraries keep connections
per thread), and one whose call was given up on no longer counts, so that hanging tools do not starve the
others.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["Threads"]


class _Job:
    __slots__ = ("call", "context", "future", "given_up", "running")

    def __init__(self, call: Callable[[], Any], context: contextvars.Context) -> None:
        self.call = call
        self.context = context
        self.future: Future[tuple[Any, BaseException | None]] = Future()
        self.running = False  # written under the condition
        self.given_up = False  # written under the condition

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Call, and return what happened as a value: a future refuses some exceptions (StopIteration)."""
        try:
            return self.context.run(self.call), None
        except BaseException as exc:  # noqa: BLE001 - handed to the caller, who decides
            return None, exc


class Threads:
    """At most ``limit`` calls at a time, each with a copy of the caller's context variables."""

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._condition = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._threads = 0  # those that count: not stuck in a call that was given up on
        self._idle = 0

    async def run(self, call: Callable[[], Any]) -> Any:
        """Call in a thread. When cancelled, a call that has begun runs on, and its outcome is dropped."""
        job = _Job(call, contextvars.copy_context())
        self._put(job)
        try:
            value, error = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if error is not None:
            raise error
        return value

    def _put(self, job: _Job) -> None:
        if self._pid != os.getpid():
            self._begin()  # a fork leaves the threads behind
        with self._condition:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._condition.notify()
            elif self._threads < self.limit:
                self._start()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name="antiphon tool", daemon=True).start()

    def _give_up(self, job: _Job) -> None:
        with self._condition:
            if not job.running:
                if job in self._jobs:
                    self._jobs.remove(job)
                return
            job.given_up = True
            self._threads -= 1
            if self._jobs and not self._idle:
                self._start()

    def _serve(self) -> None:
        with self._condition:
            self._idle += 1
        while True:
            job = self._take()
            wanted = job.future.set_running_or_notify_cancel()
            outcome = job.outcome() if wanted else None
            with self._condition:
                job.running = False
                given_up = job.given_up
                if not given_up:
                    self._idle += 1
            if outcome is not None:
                job.future.set_result(outcome)  # only now: whoever waits for it finds this thread idle
            if given_up:
                return

    def _take(self) -> _Job:
        with self._condition:
            while not self._jobs:
                self._condition.wait()
            self._idle -= 1
            job = self._jobs.popleft()
            job.running = True
            return job
