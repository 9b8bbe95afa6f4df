"""Runs tool calls. Each call has a result: a failure is sent to the model as an error result and is not raised.

An error result is one sentence: the type and message of the exception, or the reason why the tool was not run. The
traceback goes to the log at the level debug. ``tool_errors`` sets how much of an exception the sentence contains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

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
from antiphon.model import File, Image, Text, ToolCall, ToolResult
from antiphon.tools import Context, Tool
from antiphon.tools.threads import Job, Threads
from antiphon_worker.loop.tools.calls import CallsUnderWay, described, is_stop, text_of
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
    """Return the descriptions of tools for a model."""
    return [ToolSpec(tool.name, tool.description, tool.parameters, tool.strict) for tool in tools]


class ToolBox:
    """Runs tools by name.

    ``timeout`` (seconds) applies to tools without their own. The middle of a result's text is left out if it has more
    than ``limit`` characters. Synchronous tools run in ``threads``, and their timeout starts when they get a thread. A
    tool that exceeds it keeps running in its thread, but its result is discarded. A tool that gets no thread within
    ``patience`` seconds is not run. ``tool_errors`` is what models and clients see of an exception in a tool: its type
    and message, its ``"type"``, or the text that a function returns. Raises ``InvalidTool`` and ``SettingsError``.
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
        return ToolBox(
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
        """Return a result as it is stored: no longer than the limit."""
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
