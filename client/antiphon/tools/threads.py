"""Threads for synchronous functions: tools, stores, and functions of a caller such as ``on_tool``.

``ThreadPoolExecutor`` is not used, because the interpreter waits for its threads when it exits: one hanging function
would keep a process from stopping. These threads are daemon threads. They are reused, because libraries keep
connections per thread. A thread whose call was abandoned no longer counts, so that hanging functions do not block
others. A tool can use at most half of the threads that the other tools leave free.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


class Job:
    """One call. ``admitted`` is done when the call has a thread, or None if it got one at once."""

    __slots__ = ("admitted", "call", "context", "future", "given_up", "running", "share")

    def __init__(self, call: Callable[[], Any], share: str) -> None:
        self.call = call
        self.context = contextvars.copy_context()
        self.share = share
        self.future: Future[tuple[Any, BaseException | None]] = Future()
        self.admitted: asyncio.Future[None] | None = None
        self.running = False  # written under the condition
        self.given_up = False  # written under the condition

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Call, and return the result or the exception, because futures do not accept every exception."""
        try:
            return self.context.run(self.call), None
        except BaseException as exc:  # noqa: BLE001 - returned to the caller
            return None, exc


class Threads:
    """Runs at most ``limit`` calls at a time, each with a copy of the caller's context variables.

    The calls of one ``share`` use at most half of the threads that the other shares leave free, and at least one.
    """

    def __init__(self, limit: int = 128) -> None:
        self.limit = limit
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._condition = threading.Condition()
        self._waiting: list[Job] = []  # in order
        self._admitted: deque[Job] = deque()  # each gets a thread
        self._busy: Counter[str] = Counter()  # calls admitted and not ended, by share
        self._idle = 0

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run a call in a thread. If this is cancelled, a call that has started keeps running; its result is lost."""
        return await self.outcome(self.put(call))

    async def ask(self, function: Callable[..., Any], given: Any) -> Any:
        """Call a function of an App: an asynchronous one here, any other in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function(given)
        answer = await self.run(lambda: function(given))
        return await answer if inspect.isawaitable(answer) else answer

    def put(self, call: Callable[[], Any], share: str = "") -> Job:
        """Run a call in a thread as soon as its share has one free."""
        if self._pid != os.getpid():
            self._begin()  # a forked child does not have the parent's threads
        job = Job(call, share)
        with self._condition:
            if not self._admit(job):
                job.admitted = asyncio.get_running_loop().create_future()
                self._waiting.append(job)
        return job

    async def outcome(self, job: Job) -> Any:
        """Wait for the call and return its result, or raise its exception."""
        try:
            value, error = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self.give_up(job)
            raise
        if error is not None:
            raise error
        return value

    def withdraw(self, job: Job) -> bool:
        """Remove a call that waits for a thread. Return False if it already has one."""
        with self._condition:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            return True

    def _has_room(self, share: str) -> bool:
        busy, own = self._busy.total(), self._busy[share]
        most = max(1, (self.limit - busy + own) // 2) if share else self.limit
        return busy < self.limit and own < most

    def _admit(self, job: Job) -> bool:
        """Give the call a thread. Return False if its share has no room, or if the system starts no more threads."""
        if not self._has_room(job.share):
            return False
        if self._idle > len(self._admitted):
            self._condition.notify()
        else:
            try:
                threading.Thread(target=self._serve, name="antiphon tool", daemon=True).start()
            except RuntimeError:
                return False
        self._busy[job.share] += 1
        self._admitted.append(job)
        return True

    def _release(self, job: Job) -> None:
        """Free the place of a call that has ended or was abandoned, for others."""
        self._busy[job.share] -= 1
        for waiting in self._waiting.copy():
            if self._admit(waiting):
                self._waiting.remove(waiting)
                if waiting.admitted is not None:
                    with suppress(RuntimeError):  # its loop has been closed
                        waiting.admitted.get_loop().call_soon_threadsafe(_resolve, waiting.admitted)

    def give_up(self, job: Job) -> None:
        """Abandon a call. If it has not started, it never runs; if it has, it keeps running but no longer counts."""
        with self._condition:
            if job in self._waiting:
                self._waiting.remove(job)
            elif job in self._admitted:
                self._admitted.remove(job)
                self._release(job)
            elif job.running:
                job.given_up = True
                self._release(job)

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
                    self._release(job)
            if outcome is not None:
                job.future.set_result(
                    outcome
                )  # set last, so that this thread is idle when the caller continues
            if given_up:
                return

    def _take(self) -> Job:
        with self._condition:
            while not self._admitted:
                self._condition.wait()
            self._idle -= 1
            job = self._admitted.popleft()
            job.running = True
            return job


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
