"""The background event loop that runs the synchronous calls.

Because the caller's thread only waits, this works in scripts, threads, web views and notebooks that already run an
event loop. It blocks that loop; the log names the asynchronous method to use there, once. After a fork, the child
process starts its own loop. Each call runs with the caller's context variables. Interrupting a call (Ctrl-C) cancels
the work and waits for its cleanup.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from antiphon.errors import UsageError


class _Mark:
    """A turn that the code belongs to. Not active after the turn has ended, even in tasks that a tool left running."""

    __slots__ = ("active", "session_id", "turn_id")

    def __init__(self, session_id: str, turn_id: str) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self.active = True


_marks: ContextVar[tuple[_Mark, ...]] = ContextVar("antiphon_within", default=())


class Within:
    """Mark the code in this block as part of the turn."""

    __slots__ = ("_mark", "_token")

    def __init__(self, session_id: str, turn_id: str) -> None:
        self._mark = _Mark(session_id, turn_id)

    def __enter__(self) -> None:
        self._token = _marks.set((*_marks.get(), self._mark))

    def __exit__(self, *_: object) -> None:
        self._mark.active = False
        _marks.reset(self._token)


def own_turns(session_id: str) -> set[str]:
    """Return the turns of a session that the running code is part of.

    Turn ids are unique everywhere; session ids only within one Redis or one process.
    """
    return {mark.turn_id for mark in _marks.get() if mark.active and mark.session_id == session_id}


def waits_for_itself(session_id: str) -> UsageError:
    """Return the error for a call that would wait for its own turn."""
    return UsageError(
        "This call would wait for the turn that it is part of. In a tool, return the result (also a child's answer), "
        "change the session through the tool's Context, or use a separate session: session.child().",
        session_id=session_id,
    )


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncItems(Protocol[T_co]):
    """An asynchronous generator, or another iterator that can be closed."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...
    def __anext__(self) -> Awaitable[T_co]: ...
    def aclose(self) -> Coroutine[Any, Any, None]: ...


END_SECONDS = 5.0
SIGNAL_SECONDS = 1.0
"""How often a waiting thread looks for a signal that did not wake it, because another thread received it."""

log = logging.getLogger("antiphon.session")


class _Background:
    """A loop and the thread that runs it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.runs = True
        self.thread = threading.Thread(target=self._run, name="antiphon", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._run_until_stopped():
                pass
        finally:
            self.runs = False

    def _run_until_stopped(self) -> bool:
        """Run the loop. Returns False if a task raised an exception that stops loops: only that task has failed."""
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as exc:
            log.error(
                "a task raised %s, which ends nothing else",
                type(exc).__name__,
                extra={"action": "task_failed"},
            )
            return False
        return True

    def end(self) -> None:
        """Cancel all running tasks, wait for their cleanup, and stop the loop."""
        if not self.runs:
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
_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, set[AsyncGenerator[None, None]]] = WeakKeyDictionary()
_iterated: set[AsyncItems[Any]] = set()  # what to close when the process ends
_lock = threading.Lock()
_left_behind: list[
    object
] = []  # keeps the parent's loop alive after a fork: closing its connections would change the parent's selector


_blocking: set[str] = set()  # the asynchronous names of the calls that the log has named


def call(work: Coroutine[Any, Any, T], *, instead: str | None = None) -> T:
    """Run a coroutine on the background loop and wait for its result.

    Raises ``UsageError`` when called on the background loop itself, where it would deadlock. Use the ``_async``
    methods in asynchronous tools. On any other event loop, this logs once that the call blocks the loop, and names
    ``instead`` (by default, the coroutine's own name).
    """
    background = _background
    if background is None or not background.runs:
        background = _begin()
    running = asyncio._get_running_loop()
    if running is not None:
        if running is background.loop:
            work.close()
            raise UsageError(
                "This call would deadlock: in an asynchronous tool, call the _async method instead."
            )
        _warn(instead or work.__qualname__)
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


def _warn(instead: str) -> None:
    if instead not in _blocking:
        _blocking.add(instead)
        log.warning(
            "a synchronous call blocks an event loop: use %s there instead", instead,
            extra={"action": "blocked_loop", "instead": instead},
        )  # fmt: skip


def on_background() -> bool:
    """Return True if the current thread runs the background loop."""
    return _background is not None and threading.current_thread() is _background.thread


def iterate(items: AsyncItems[T], *, instead: str | None = None) -> Generator[T, None, None]:
    """Iterate over asynchronous items. Leaving the loop early closes it before the next line runs.

    ``instead`` is the asynchronous name, as in ``call``.
    """
    _iterated.add(items)
    instead = instead or _name(items)
    try:
        while True:
            try:
                item = call(_next(items), instead=instead)
            except StopAsyncIteration:
                return
            yield item
    finally:
        _iterated.discard(items)
        _close(items, instead)


def spawn(work: Coroutine[Any, Any, Any]) -> None:
    """Start a coroutine on the background loop without waiting. The coroutine handles its own errors."""
    background = _begin()
    background.loop.call_soon_threadsafe(_create_task, background.loop, work, contextvars.copy_context())


async def when_loop_ends(last_act: Callable[[], Awaitable[None]]) -> None:
    """Run ``last_act`` when the running loop shuts down.

    ``asyncio.run`` shuts down its own loop; the background loop shuts down when the process ends. This works because
    a loop closes all open asynchronous generators when it shuts down.
    """
    held = _waiting.setdefault(asyncio.get_running_loop(), set())

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            held.discard(waiting)  # a loop may go on after its generators are closed
            await last_act()

    waiting = wait()
    held.add(waiting)
    await anext(waiting)


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
        self._loop.call_soon_threadsafe(self._begin, context=self._context)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def wait(self) -> tuple[Any, BaseException | None]:
        while self._outcome is None:
            self._pending.acquire(timeout=SIGNAL_SECONDS)
        return self._outcome

    def _begin(self) -> None:
        if self._outcome is None:
            self._task = self._loop.create_task(self._run(), context=self._context)

    def _cancel(self) -> None:
        if self._task is not None:
            self._loop.call_soon(
                self._task.cancel
            )  # after its first step: a task that is cancelled before it never reports its end
        else:
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


def _name(items: AsyncItems[Any]) -> str:
    return str(getattr(items, "__qualname__", "the asynchronous one"))


async def _next(items: AsyncItems[T]) -> T:
    return await items.__anext__()


def _close(items: AsyncItems[Any], instead: str) -> None:
    background = _background
    if background is None or not background.runs:
        return  # the generator's loop is gone: the process is ending, or this is the child of a fork
    if threading.current_thread() is background.thread:  # the loop's own thread must not wait
        _create_task(background.loop, items.aclose(), contextvars.copy_context())  # pyright: ignore[reportArgumentType]
    else:
        call(items.aclose(), instead=instead)  # pyright: ignore[reportArgumentType]


def _begin() -> _Background:
    """Return the background loop, started if need be."""
    global _background  # noqa: PLW0603 - one loop per process
    with _lock:
        if _background is None or not _background.runs:
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
