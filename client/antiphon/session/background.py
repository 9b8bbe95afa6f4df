"""The one event loop on which synchronous calls run, in a daemon thread that starts when it is first needed.

It works in scripts, in threads, in views of a web framework and inside a running event loop (a notebook),
because the caller's thread only waits. After a fork the child makes a loop of its own. The caller's context
variables go with each call. Interrupting a call (Ctrl-C) cancels its work and waits until it has cleaned up.
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
        """Cancel what still runs, let it clean up, and stop."""
        if not self.thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._clean_up(), self.loop).result(END_SECONDS)
        except TimeoutError:
            return  # something does not let itself be cancelled; a daemon thread dies with the process
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
_iterated: set[AsyncGenerator[Any, None]] = set()  # those that are to be closed when the process ends
_lock = threading.Lock()
_left_behind: list[
    object
] = []  # a parent's loop, kept whole: its connections would leave the parent's selector


def call(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result.

    Raises ``UsageError`` on the background loop itself, where waiting would never end: asynchronous tools use
    the ``_async`` methods.
    """
    background = _started()
    if threading.current_thread() is background.thread:
        work.close()
        raise UsageError("This call would wait for itself: in an asynchronous tool, use the _async method.")
    started = _Started(background.loop, work)
    try:
        started.begin()
        value, error = started.wait()
    except BaseException:  # only the waiting itself raises here: the caller was interrupted
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
    """True on the background loop, where the calls that wait are carried out."""
    return _background is not None and threading.current_thread() is _background.thread


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over an asynchronous generator. Leaving early closes it before the caller goes on."""
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
    """Start a coroutine on the background loop and do not wait. It handles its own errors."""
    background = _started()
    background.loop.call_soon_threadsafe(_create_task, background.loop, work, contextvars.copy_context())


async def when_loop_ends(last_act: Callable[[], Awaitable[None]]) -> None:
    """Await this when the running loop is shut down (by ``asyncio.run``, or by the end of the process for ours).

    A loop closes the asynchronous generators that are still open; this is one.
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
    """A coroutine on the loop; its outcome comes as a value, and only after it has cleaned up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._work = work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Any] | None = None  # on the loop
        self._outcome: tuple[Any, BaseException | None] | None = None
        # A bare lock, released when there is an outcome: waiting for it can be interrupted at any moment, where an
        # interrupted ``Future`` or ``Event`` may leave its own lock behind, held for ever.
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
        """Where it was cancelled before its first step, nothing of it has run."""
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
        return  # the loop that it lived on is gone: this is the end of the process, or the child of a fork
    if threading.current_thread() is background.thread:  # the iterator was dropped there; nobody can wait
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
    """In the child of a fork: the thread stayed behind, and with it all that ran on the loop."""
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
