"""Running tool calls: every call ends in a result, and every failure is told to the model, never raised.

What the model is told on a failure is one sentence (the exception's type and message, or the reason why the
call could not be made), never a traceback: that goes to the log, at the level debug. ``tool_errors`` says how much of
an exception the sentence holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from antiphon.errors import (
    InvalidTool,
    SettingsError,
    ToolArgumentsInvalid,
    ToolError,
    ToolNotFound,
    ToolRaised,
    ToolTimedOut,
)
from antiphon.model import File, Image, Text, ToolCall, ToolResult
from antiphon.tools import Context, Tool
from antiphon_worker.loop.calls import CallsUnderWay
from antiphon_worker.loop.stopping import TurnStopped
from antiphon_worker.loop.threads import Job, Threads
from antiphon_worker.providers.base import ToolSpec

__all__ = ["ToolBox", "ToolErrors", "shorten", "tool_specs"]

log = logging.getLogger("antiphon.tools")

AnyTool: TypeAlias = Tool[..., Any]
Content: TypeAlias = str | list[Text | Image | File]
ToolErrors: TypeAlias = Literal["message", "type"] | Callable[[BaseException], str]

RESULT_CHARACTERS = 64 * 1024
RAW_ARGUMENTS_CHARACTERS = 500
TIMEOUT_SECONDS = 300.0
THREAD_SECONDS = 60.0


def tool_specs(tools: Sequence[AnyTool]) -> list[ToolSpec]:
    """The tools as they are offered to a model."""
    return [ToolSpec(tool.name, tool.description, tool.parameters, tool.strict) for tool in tools]


class ToolBox:
    """Tools by name, and how they are run.

    ``timeout`` (seconds) holds for tools that name none, ``limit`` is the number of characters of a result's
    text beyond which its middle is left out. Synchronous tools run in ``threads``, and their time counts from there
    on: one that does not return in time goes on in its thread, its outcome is dropped; one that has no thread after
    ``patience`` seconds is not run. ``tool_errors`` is what the model and the clients are told of an exception of a
    tool: its type and message, its ``"type"``, or what a function says of it. Raises ``InvalidTool``,
    ``SettingsError``.
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
            raise SettingsError(f'tool_errors= is "message", "type" or a function, not {tool_errors!r}.')
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidTool(f"Tools must have different names; these come twice: {', '.join(twice)}.")
        self.timeout = timeout
        self.limit = limit
        self.threads = threads or Threads()
        self.patience = patience
        self.calls = calls or CallsUnderWay()
        self.tool_errors: ToolErrors = tool_errors

    def offering(self, tools: Sequence[AnyTool]) -> ToolBox:
        """A toolbox that runs only these tools, in the same way."""
        if len(tools) == len(self.tools) and all(self.tools.get(tool.name) is tool for tool in tools):
            return self
        return ToolBox(
            tools, timeout=self.timeout, limit=self.limit, threads=self.threads, patience=self.patience,
            calls=self.calls, tool_errors=self.tool_errors,
        )  # fmt: skip

    def at_most_once(self, name: str) -> bool:
        """True where a call of this tool must never be started twice."""
        tool = self.tools.get(name)
        return tool is not None and tool.at_most_once

    async def run(self, call: ToolCall, context: Context) -> ToolResult:
        """Run one call. Raises only when this task is cancelled, and ``TurnStopped``."""
        try:
            with self.calls.of(call.name, context.turn_id):
                content, is_error = await self._call(call, context), False
        except ToolError as exc:
            content, is_error = _told(exc), True
            if exc.__cause__ is not None:  # it went wrong, and was not said on purpose
                _log(call, context, exc)
        return ToolResult(call.call_id, _shortened(content, self.limit), call.name, is_error)

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
        except (ToolError, TurnStopped):
            raise
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ToolRaised("The tool was cancelled from within.") from exc
        except BaseException as exc:  # a tool may raise KeyboardInterrupt, and must not end more than itself
            raise ToolRaised(self._said_of(exc)) from exc

    def _said_of(self, exc: BaseException) -> str:
        """What the model and the clients are told of an exception that a tool raised."""
        if self.tool_errors == "message":
            return _described(exc)
        if self.tool_errors == "type":
            return type(exc).__name__
        try:
            return str(self.tool_errors(exc))
        except Exception as broken:  # noqa: BLE001 - the function is the App's, and the turn goes on
            log.warning("tool_errors= of the App raised %s", type(broken).__name__)
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
            raise ToolTimedOut(f"The tool did not return within {seconds:g} seconds.") from exc

    async def _in_thread(
        self, tool: AnyTool, args: list[Any], kwargs: dict[str, Any], context: Context
    ) -> Job:
        """The call of a synchronous tool, once there is a thread for it."""

        def in_thread() -> Any:
            with self.calls.of(tool.name, context.turn_id):  # it may go on when the call was given up on
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
                    f"The tool was not run: no thread was free for it within {self.patience:g} seconds."
                )
        return job


def _log(call: ToolCall, context: Context, exc: ToolError) -> None:
    """What the exception says may be what a user wrote: above debug the log names its type alone."""
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


def _described(exc: BaseException) -> str:
    text = _text_of(exc)
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _told(exc: ToolError) -> str:
    return _text_of(exc.args[0]) if exc.args else type(exc).__name__


def _text_of(value: object) -> str:
    try:
        return str(value)
    except BaseException as broken:  # noqa: BLE001 - a tool's own exception class may fail to describe itself
        return f"(its message could not be read: {type(broken).__name__})"


def _shortened(content: Content, limit: int) -> Content:
    """Within the limit as a whole, and without lone surrogates, which no service and no store takes."""
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
    """The text, or its head and tail with the number of characters left out between them."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out:,} characters left out …]\n{text[len(text) - tail :]}"
