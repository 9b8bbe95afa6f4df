"""The background event loop that runs the synchronous calls, in a daemon thread started on first use.

Because the caller's thread only waits, this works in scripts, threads, web views and notebooks that already run an
event loop. After a fork, the child process starts its own loop. Each call runs with the caller's context variables.
Interrupting a call (Ctrl-C) cancels the work and waits for its cleanup.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from antiphon.errors import UsageError

__all__ = ["call", "iterate", "on_background", "spawn", "when_loop_ends"]

T = TypeVar("T")

END_SECONDS = 5.0


class _Background:
    """A loop and the thread that runs it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="antiphon", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def end(self) -> None:
        """Cancel all running tasks, wait for their cleanup, and stop the loop."""
        if not self.thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._clean_up(), self.loop).result(END_SECONDS)
        except TimeoutError:
            return  # a task ignores its cancellation; the daemon thread ends with the process
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(END_SECONDS)
        self.loop.close()

    async def _clean_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.gather(*(items.aclose() for items in _iterated), return_exceptions=True)
        await self.loop.shutdown_asyncgens()


_background: _Background | None = None
_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None, None]]] = WeakKeyDictionary()
_iterated: set[AsyncGenerator[Any, None]] = set()  # generators to close when the process ends
_lock = threading.Lock()
_left_behind: list[
    object
] = []  # keeps the parent's loop alive after a fork: closing its connections would change the parent's selector


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result.

    Raises ``UsageError`` when called on the background loop itself, where it would deadlock. Use the ``_async``
    methods in asynchronous tools.
    """
    background = _started()
    if threading.current_thread() is background.thread:
        work.close()
        raise UsageError("This call would deadlock: in an asynchronous tool, call the _async method instead.")
    started = _Started(background.loop, work)
    try:
        started.begin()
        value, error = started.wait()
    except BaseException:  # only an interrupted wait raises here
        started.cancel()
        started.wait()
        raise
    if error is not None:
        try:
            raise error
        finally:
            del error  # the traceback holds this frame
    return value  # pyright: ignore[reportReturnType]


def on_background() -> bool:
    """Return True if the current thread runs the background loop."""
    return _background is not None and threading.current_thread() is _background.thread


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over an asynchronous generator. Leaving the loop early closes it before the next line runs."""
    _iterated.add(items)
    try:
        while True:
            try:
                item = call(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        _iterated.discard(items)
        _close(items)


def spawn(work: Coroutine[Any, Any, Any]) -> None:
    """Start a coroutine on the background loop without waiting. The coroutine handles its own errors."""
    background = _started()
    background.loop.call_soon_threadsafe(_create_task, background.loop, work, contextvars.copy_context())


async def when_loop_ends(last_act: Callable[[], Awaitable[None]]) -> None:
    """Run ``last_act`` when the running loop shuts down.

    ``asyncio.run`` shuts down its own loop; the background loop shuts down when the process ends. This works because
    a loop closes all open asynchronous generators when it shuts down.
    """

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await last_act()

    waiting = wait()
    await anext(waiting)
    _waiting.setdefault(asyncio.get_running_loop(), []).append(waiting)


_tasks: set[asyncio.Task[Any]] = set()


def _create_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: contextvars.Context
) -> asyncio.Task[Any]:
    task = loop.create_task(work, context=context)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


class _Started:
    """A coroutine running on the loop. Its result or exception is available once its cleanup is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._work = work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Any] | None = None  # on the loop
        self._outcome: tuple[Any, BaseException | None] | None = None
        # A plain lock, released once there is an outcome. Waiting for it can be interrupted at any point. An
        # interrupted ``Future`` or ``Event`` can leave its internal lock held forever.
        self._pending = threading.Lock()
        self._pending.acquire()

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def wait(self) -> tuple[Any, BaseException | None]:
        while self._outcome is None:
            self._pending.acquire()
        return self._outcome

    def _begin(self) -> None:
        self._task = _create_task(self._loop, self._run(), self._context)
        self._task.add_done_callback(lambda _: self._settle())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._settle()

    def _settle(self) -> None:
        """Record the cancellation of a task that was cancelled before its first step."""
        if self._outcome is None:
            self._work.close()
            self._end((None, asyncio.CancelledError()))

    async def _run(self) -> None:
        try:
            outcome = await self._work, None
        except BaseException as exc:  # noqa: BLE001 - raised again in the caller's thread
            outcome = None, exc
        self._end(outcome)

    def _end(self, outcome: tuple[Any, BaseException | None]) -> None:
        self._outcome = outcome
        self._pending.release()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


def _close(items: AsyncGenerator[Any, None]) -> None:
    background = _background
    if background is None or not background.thread.is_alive():
        return  # the generator's loop is gone: the process is ending, or this is the child of a fork
    if threading.current_thread() is background.thread:  # the loop's own thread must not wait
        _create_task(background.loop, items.aclose(), contextvars.copy_context())  # pyright: ignore[reportArgumentType]
    else:
        call(items.aclose())  # pyright: ignore[reportArgumentType]


def _started() -> _Background:
    global _background  # noqa: PLW0603 - one loop per process
    if _background is not None and _background.thread.is_alive():
        return _background
    with _lock:
        if _background is None or not _background.thread.is_alive():
            _background = _Background()
        return _background


def _forget() -> None:
    """Reset the module in the child of a fork, which does not have the parent's thread and tasks."""
    global _background, _lock
    _left_behind.append(_background)
    _background, _lock = None, threading.Lock()
    _tasks.clear()
    _iterated.clear()


def _end() -> None:
    if _background is not None:
        _background.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
