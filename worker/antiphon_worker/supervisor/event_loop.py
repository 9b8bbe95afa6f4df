"""The event loop of a worker process, which survives exceptions of its tasks."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from antiphon.telemetry import log_fault

log = logging.getLogger("antiphon.process")

T = TypeVar("T")

MOST_THREADS = 128


class _Threads(ThreadPoolExecutor):
    """The threads of ``asyncio.to_thread``, which frameworks use for synchronous tools of many concurrent turns.

    By default, a small machine has only a few, and the rest of the worker would wait for them. A call that raises
    ``StopIteration`` would never end, because futures do not accept it.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        return super().submit(_ended, fn, *args, **options)


def _ended(call: Callable[..., T], *args: Any, **options: Any) -> T:
    try:
        return call(*args, **options)
    except StopIteration as exc:
        raise RuntimeError("A function in a thread raised StopIteration.") from exc


def run_to_its_end(
    main: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Run a coroutine like ``asyncio.run``, even if another task raises ``SystemExit`` or ``KeyboardInterrupt``.

    An event loop stops at these. Here they only fail that task, like other exceptions, because functions of an App
    may start tasks while other turns run in the same loop. Ctrl-C before its handler is installed still ends the
    loop.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(_Threads(MOST_THREADS))
        work = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(work)
            except (SystemExit, KeyboardInterrupt) as exc:
                if work.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    raise
                log_fault(log, exc, "a task tried to end this process", action="end_refused")
