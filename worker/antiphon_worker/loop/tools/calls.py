"""Running tool calls: what they say to the clients, and which ones they are, for reports about a stalled process; and
the signal that stops a turn, told from failures."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from antiphon.events import CustomEvent, Event, ToolProgress
from antiphon.input.limits import check_size
from antiphon.model import ToolCall
from antiphon_worker.loop.step_events import Sink

__all__ = ["CallsUnderWay", "RunningCall", "TurnStopped", "described", "is_stop", "text_of"]

log = logging.getLogger("antiphon.tools")

PAUSE_SECONDS = 0.05


class RunningCall:
    """One tool call, as its ``Context`` sees it. ``cancelled``, ``progress`` and ``emit`` may be used from any thread.

    What the call says reaches the sink at once after a silence, and then every ``PAUSE_SECONDS``, or later if the sink
    is full. Of several reports of progress in a row, the last one goes. Entered by the task that runs the call. When it
    is closed, what is unsent goes at once, and what the tool says later is dropped.
    """

    def __init__(self, call: ToolCall, step: int, sink: Sink, turn_id: str) -> None:
        self.call = call
        self.step = step
        self._sink = sink
        self._turn_id = turn_id
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._unsent: list[Event] = []  # guarded by _lock, like the next three
        self._sending = False  # _send will run
        self._emitted = 0
        self._over = False
        self._dropped = False  # an event, which the log has said

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def cancelled(self) -> bool:
        task = self._task
        return self._over or (task is not None and task.cancelling() > 0)

    def progress(self, text: str, fraction: float | None) -> None:
        call = self.call
        self._put(
            ToolProgress(step=self.step, call_id=call.call_id, name=call.name, text=text, fraction=fraction)
        )

    def emit(self, name: str, data: Any) -> None:
        with self._lock:
            self._emitted += 1
            emitted = self._emitted
        check_size("custom_events", emitted, f"The events of one call of {self.call.name}")
        self._put(CustomEvent(step=self.step, call_id=self.call.call_id, name=name, data=data))

    def close(self) -> None:
        """End the call for its tool. Does nothing the second time."""
        with self._lock:
            self._over = True
            events, self._unsent = self._unsent, []
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._task = None
        for event in events:
            self._sink.put(event)

    def _put(self, event: Event) -> None:
        with self._lock:
            over, sending = self._over, self._sending
            if not over:
                if type(event) is ToolProgress and self._unsent and type(self._unsent[-1]) is ToolProgress:
                    self._unsent.pop()
                self._unsent.append(event)
                self._sending = True
        if over:
            self._drop()
        elif not sending:
            with suppress(RuntimeError):  # the loop has been closed, and the turn with it
                self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """Put what is unsent into the sink, and come back after a pause. Ends after a silence."""
        self._pause = None
        with self._lock:
            self._sending = bool(self._unsent)
            if not self._sending:
                return
            events: list[Event] = []
            if not self._sink.full:
                events, self._unsent = self._unsent, []
        for event in events:
            self._sink.put(event)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._send)

    def _drop(self) -> None:
        """Log once that the tool goes on after its call."""
        if self._dropped:
            return
        self._dropped = True
        call = self.call
        log.warning(
            "tool %s (call %s) in turn %s said something after its call was over: it is dropped",
            call.name, call.call_id, self._turn_id,
            extra={"action": "event_dropped", "tool": call.name, "turn": self._turn_id},
        )  # fmt: skip


class CallsUnderWay:
    """The tool calls that are running. Used from the event loop and from the threads of tools."""

    def __init__(self) -> None:
        self._calls: dict[object, str] = {}
        self._tell: Callable[[Iterable[str]], None] | None = None

    def on_change(self, tell: Callable[[Iterable[str]], None]) -> None:
        """Set a function that is called with descriptions of all running calls whenever one starts or returns."""
        self._tell = tell

    @contextmanager
    def of(self, tool: str, turn_id: str) -> Generator[None]:
        """Track a call while this context is active. A child that the tool has forked, and that comes back, ends here.

        It would go on as this process: on its connections, and on its event loop.
        """
        call, pid = object(), os.getpid()
        self._calls[call] = f"{tool} in turn {turn_id}"
        self._changed()
        try:
            yield
        finally:
            if os.getpid() != pid:
                os._exit(1)
            del self._calls[call]
            self._changed()

    def _changed(self) -> None:
        if self._tell is not None:
            self._tell(dict.fromkeys(self._calls.copy().values()))


class TurnStopped(BaseException):
    """The turn must stop. Apart from a cancellation, this is the only exception that a tool call lets through."""


def is_stop(exc: BaseException) -> bool:
    """Return True for what must pass through a turn: its stop signal, and a cancellation of the current task.

    Everything else is a failure of the code that raised it. That includes ``KeyboardInterrupt``, because signals never
    arrive as exceptions in a turn, and a ``CancelledError`` of a task that nobody has cancelled.
    """
    if isinstance(exc, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(exc, TurnStopped)


def described(exc: BaseException) -> str:
    """Return the type of an exception, and its message if it has one."""
    text = text_of(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def text_of(value: object) -> str:
    """Return the text of an object whose class may fail to describe it."""
    try:
        return str(value)
    except BaseException as broken:  # noqa: BLE001 - whatever the class raises, there is a text
        return f"(its message could not be read: {type(broken).__name__})"
