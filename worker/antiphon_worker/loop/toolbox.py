"""Runs tool calls. Each call has a result: a failure becomes an error result for the model.

An error result is one sentence: the type and message of the exception, or the reason why the tool was not run. The
traceback goes to the log at the level debug. ``tool_errors`` sets how much of an exception the sentence contains.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import msgspec

from antiphon.errors import (
    InvalidTool,
    SettingsError,
    ToolArgumentsInvalid,
    ToolError,
    ToolNotFound,
    ToolRaised,
    ToolTimedOut,
)
from antiphon.events import CustomEvent, Event, ToolProgress
from antiphon.input.limits import check_size
from antiphon.model import File, Image, Text, ToolCall, ToolResult, Wait
from antiphon.tools import Context, Tool
from antiphon.tools.durable import DurableCall
from antiphon.tools.threads import Job, Threads
from antiphon_worker.loop.step_events import Sink
from antiphon_worker.providers.base import ToolSpec

log = logging.getLogger("antiphon.tools")

PAUSE_SECONDS = 0.05


class RunningCall:
    """One tool call, as its ``Context`` sees it. ``cancelled``, ``progress`` and ``emit`` may be used from any thread.

    Events of the call reach the sink immediately after a silence, and then every ``PAUSE_SECONDS``, or later if the
    sink is full. Of consecutive progress reports, only the last is sent. Entered by the task that runs the call. When
    it is closed, unsent events are sent immediately, and later ones are dropped.
    """

    def __init__(self, call: ToolCall, step: int, sink: Sink, turn_id: str, durable: DurableCall) -> None:
        self.call = call
        self.durable = durable
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
        self._dropped = False  # whether a dropped event was logged

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
        """End the call. Closing it again does nothing."""
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
        """Put unsent events into the sink, and run again after a pause. Ends after a silence."""
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
        """Log once that the tool continues after its call."""
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
        """Track a call while this context is active. A process that the tool forked exits here if it returns.

        Otherwise it would continue as a copy of this process, using its connections and its event loop.
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
    """The turn must stop. Apart from a cancellation, only this exception passes through a tool call."""


def is_stop(exc: BaseException) -> bool:
    """Return True for exceptions that must pass through a turn: its stop signal, and a cancellation of its task.

    All others are failures of the code that raised them. That includes ``KeyboardInterrupt``, because signals never
    arrive as exceptions in a turn, and a ``CancelledError`` of a task that was not cancelled.
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


AnyTool: TypeAlias = Tool[..., Any]
Content: TypeAlias = str | list[Text | Image | File]
ToolErrors: TypeAlias = Literal["message", "type"] | Callable[[BaseException], str]

RESULT_CHARACTERS = 64 * 1024
RAW_ARGUMENTS_CHARACTERS = 500
TIMEOUT_SECONDS = 300.0
THREAD_SECONDS = 60.0


def tool_specs(tools: Sequence[AnyTool]) -> list[ToolSpec]:
    """Return the descriptions of tools for a model."""
    return [ToolSpec(tool.name, tool.description, tool.parameters, tool.strict) for tool in tools]


class ToolBox:
    """Runs tools by name.

    ``timeout`` (seconds) applies to tools without their own. The middle of a result's text is omitted if it has more
    than ``limit`` characters. Synchronous tools run in ``threads``, and their timeout starts when they get a thread.
    A synchronous tool that exceeds it keeps running in its thread, but its result is discarded. A tool that gets no
    thread within ``patience`` seconds is not run. ``tool_errors`` determines what models and clients see of an
    exception in a tool: its type and message (``"message"``), its ``"type"``, or the text that a function returns.
    Raises ``InvalidTool`` and ``SettingsError``.
    """

    def __init__(
        self,
        tools: Sequence[AnyTool] = (),
        *,
        timeout: float | None = TIMEOUT_SECONDS,
        limit: int = RESULT_CHARACTERS,
        threads: Threads | None = None,
        patience: float = THREAD_SECONDS,
        calls: CallsUnderWay | None = None,
        tool_errors: ToolErrors = "message",
    ) -> None:
        if tool_errors not in ("message", "type") and not callable(tool_errors):
            raise SettingsError(f'tool_errors= must be "message", "type" or a function, not {tool_errors!r}.')
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidTool(f"Tools must have different names; these appear twice: {', '.join(twice)}.")
        self.timeout = timeout
        self.limit = limit
        self.threads = threads or Threads()
        self.patience = patience
        self.calls = calls or CallsUnderWay()
        self.tool_errors: ToolErrors = tool_errors

    def offering(self, tools: Sequence[AnyTool]) -> ToolBox:
        """Return a toolbox with the same settings that runs only these tools."""
        if len(tools) == len(self.tools) and all(self.tools.get(tool.name) is tool for tool in tools):
            return self
        return type(self)(
            tools, timeout=self.timeout, limit=self.limit, threads=self.threads, patience=self.patience,
            calls=self.calls, tool_errors=self.tool_errors,
        )  # fmt: skip

    def at_most_once(self, name: str) -> bool:
        """Return True if a call of this tool must never be started twice."""
        tool = self.tools.get(name)
        return tool is not None and tool.at_most_once

    async def run(self, call: ToolCall, context: Context) -> ToolResult:
        """Run one call and return its result. Raises only ``TurnStopped``, and when this task is cancelled."""
        try:
            with self.calls.of(call.name, context.turn_id):
                content, is_error = await self._call(call, context), False
        except ToolError as exc:
            content, is_error = _told(exc), True
            if exc.__cause__ is not None:  # not a ToolError that the tool raised itself
                _log(call, context, exc)
        return self.shortened(ToolResult(call.call_id, content, call.name, is_error))

    def shortened(self, result: ToolResult) -> ToolResult:
        """Return a result as stored: no longer than the limit."""
        return msgspec.structs.replace(result, content=_shortened(result.content, self.limit))

    async def _call(self, call: ToolCall, context: Context) -> Content:
        tool = self.tools.get(call.name)
        if tool is None:
            names = ", ".join(self.tools) or "there are none"
            raise ToolNotFound(f"There is no tool named {call.name!r}. The tools: {names}.")
        if call.invalid:
            raw = shorten(call.raw or "", RAW_ARGUMENTS_CHARACTERS)
            raise ToolArgumentsInvalid(f"The arguments are not a JSON object: {raw}")
        try:
            args, kwargs = tool.bind(call.arguments, context)
            return tool.content_of(await self._run_within_time(tool, args, kwargs, context))
        except ToolError:
            raise
        except BaseException as exc:  # also KeyboardInterrupt, which must only end the tool
            if is_stop(exc):
                raise
            if isinstance(exc, asyncio.CancelledError):
                raise ToolRaised("The tool was cancelled from within.") from exc
            raise ToolRaised(self._said_of(exc)) from exc

    def _said_of(self, exc: BaseException) -> str:
        """Return the text that the model and the clients see of an exception in a tool."""
        if self.tool_errors == "message":
            return described(exc)
        if self.tool_errors == "type":
            return type(exc).__name__
        try:
            return str(self.tool_errors(exc))
        except BaseException as broken:  # noqa: BLE001 - an error in the App's function must not fail the turn
            log.warning(
                "tool_errors= of the App raised %s", type(broken).__name__, extra={"action": "rule_failed"}
            )
            return type(exc).__name__

    async def _run_within_time(
        self, tool: AnyTool, args: list[Any], kwargs: dict[str, Any], context: Context
    ) -> Any:
        seconds = self.timeout if tool.timeout is None else tool.timeout
        job = None if tool.is_async else await self._in_thread(tool, args, kwargs, context)
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                if job is None:
                    return await tool.function(*args, **kwargs)
                return await self.threads.outcome(job)
        except TimeoutError as exc:
            if not timer.expired():
                raise
            raise ToolTimedOut(f"The tool did not return within {seconds:g} s.") from exc

    async def _in_thread(
        self, tool: AnyTool, args: list[Any], kwargs: dict[str, Any], context: Context
    ) -> Job:
        """Return the call of a synchronous tool as soon as it has a thread."""

        def in_thread() -> Any:
            with self.calls.of(tool.name, context.turn_id):  # may still run after the call was abandoned
                return tool.function(*args, **kwargs)

        job = self.threads.put(in_thread, share=tool.name)
        if job.admitted is not None:
            try:
                await asyncio.wait([job.admitted], timeout=self.patience)
            except asyncio.CancelledError:
                self.threads.give_up(job)
                raise
            if self.threads.withdraw(job):
                raise ToolTimedOut(
                    f"The tool was not run: no thread was free for it within {self.patience:g} s."
                )
        return job


def _log(call: ToolCall, context: Context, exc: ToolError) -> None:
    """Log a failed call. Exception texts may contain user data: above the level debug only the type is logged."""
    where = {
        "action": str(exc.code), "tool": call.name, "turn": context.turn_id, "session": context.session_id
    }  # fmt: skip
    log.warning(
        "tool %s (call %s) in turn %s of session %s: %s",
        call.name, call.call_id, context.turn_id, context.session_id, type(exc.__cause__).__name__, extra=where,
    )  # fmt: skip
    log.debug(
        "tool %s (call %s): %s", call.name, call.call_id, _told(exc), exc_info=exc.__cause__, extra=where
    )


def _told(exc: ToolError) -> str:
    return text_of(exc.args[0]) if exc.args else type(exc).__name__


def _shortened(content: Content, limit: int) -> Content:
    """Shorten the content to the limit, and replace lone surrogates, which services and stores do not accept."""
    if isinstance(content, str):
        return shorten(_encodable(content), limit)
    room, parts = limit, list(content)
    for i, part in enumerate(parts):
        if isinstance(part, Text):
            text = shorten(_encodable(part.text), room)
            room = max(0, room - len(text))
            parts[i] = Text(text, part.annotations)
    return parts


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def shorten(text: str, limit: int) -> str:
    """Return the text, or its start and end with the number of omitted characters between them."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out:,} characters left out …]\n{text[len(text) - tail :]}"


class StepWaits(TurnStopped):
    """The turn is suspended until ``wait`` is over: its step then has an answer, or goes to the usual endpoint."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.id)
        self.wait = wait
