"""Selects and repairs the part of the history that the model receives, with a summary of the rest.

A summary is one model call between the claim and the first step. Its request begins like the previous request of the
session (system prompt, tools, older turns), so that the model services can use their caches. The summary is saved when
the turn finishes. If the turn is retried after a crash or a provider error, the summary is written again, which costs
tokens but is harmless; once a step is journalled, its entry has the summary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from antiphon.errors import AgentError, ContextTooLong, ProviderRejected
from antiphon.model import Message, ToolCall, ToolResult, Usage
from antiphon.window import SavedSummary, Window, estimated_tokens, turn_starts, window_start
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.step_events import answered
from antiphon_worker.loop.steps import Journal
from antiphon_worker.loop.toolbox import is_stop
from antiphon_worker.providers.base import Increment, ModelRequest, Provider, Source, StepResult
from antiphon_worker.providers.http.limits import HeldBack
from antiphon_worker.resilience import unforced

NO_RESULT = "The result of this call is unknown."


def whole(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a result for each tool call, and without results that have no call."""
    return _repaired(messages) if _has_tools(messages) else [*messages]


def _has_tools(messages: Sequence[Message]) -> bool:
    for message in messages:
        if message.role == "tool":
            return True
        if message.role == "assistant":
            for part in message.parts:
                if type(part) is ToolCall:
                    return True
    return False


def _repaired(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    open_calls: dict[str, str] = {}  # names by ids
    for message in messages:
        if message.role != "tool":
            found += _closed(open_calls)
            open_calls = {call.call_id: call.name for call in message.tool_calls}
            found.append(message)
            continue
        parts = [
            part for part in message.parts if not isinstance(part, ToolResult) or part.call_id in open_calls
        ]
        for result in message.tool_results:
            open_calls.pop(result.call_id, None)
        if len(parts) == len(message.parts):
            found.append(message)
        elif parts:
            found.append(msgspec.structs.replace(message, parts=parts))
    return found + _closed(open_calls)


def _closed(open_calls: dict[str, str]) -> list[Message]:
    results = [ToolResult(call_id, NO_RESULT, name, is_error=True) for call_id, name in open_calls.items()]
    return [Message.tool(results)] if results else []


log = logging.getLogger("antiphon.summary")

INSTRUCTION = (
    "Write a summary of our conversation so far, in its language and in at most {words} words. It will take the place"
    " of these messages: you will be shown the summary and what is said after it, and nothing else. Keep what later"
    " answers may need: what I want and have told you, names, numbers and decisions, what the tools found and did,"
    " and what is still open. Write the summary alone, without an answer to anything and without calling a tool."
    " {instructions}"
)
TOKENS_PER_WORD_OF_SUMMARY = 10  # of the window's limit
LEAST_WORDS, MOST_WORDS = 50, 1_000
PORTION_TOKENS = 50_000  # for a window without a limit of tokens
COMPLETE = ("end", "stop_sequence", "max_tokens")
# Parameters that apply to an agent's answers, but not to a summary.
ABOUT_ANSWERS = {
    "background", "max_completion_tokens", "max_output_tokens", "max_tokens", "response_format", "stop",
    "stop_sequences", "text", "verbosity",
}  # fmt: skip


class SummaryWriter:
    """Writes summaries with the provider and the model of a turn. ``usage`` is the total usage of these calls."""

    def __init__(self, provider: Provider, inp: LoopInput, journal: Journal, session_id: str) -> None:
        self.usage = Usage()
        self._provider = provider
        self._inp = inp
        self._journal = journal
        self._session_id = session_id

    async def write(
        self, window: Window, summary: SavedSummary | None, older: Sequence[Message]
    ) -> SavedSummary | None:
        """Summarise the previous summary and these messages, in portions that fit into the window.

        If a call fails, return the last summary written: the turn continues without the rest. Raises ``HeldBack`` if
        the call must wait for a rate limit.
        """
        limit = window.tokens or PORTION_TOKENS
        words = min(max(limit // TOKENS_PER_WORD_OF_SUMMARY, LEAST_WORDS), MOST_WORDS)
        asked = INSTRUCTION.format(words=words, instructions=window.instructions or "").strip()
        portions = [*_portions(older, limit)]
        while portions:
            await self._journal.checkpoint()
            head, portion = [summary.message] if summary else [], portions.pop(0)
            try:
                text = await self._ask([*head, *portion, Message.user(asked)])
            except BaseException as exc:
                if isinstance(exc, ContextTooLong) and len(halves := _halves(portion)) > 1:
                    portions[:0] = halves
                    continue
                if is_stop(exc) or isinstance(exc, HeldBack):
                    raise  # a turn that waits for a rate limit keeps its older turns
                log.warning(
                    "session %s: no summary could be written, so the model will not see the older turns: %s",
                    self._session_id, exc.code if isinstance(exc, AgentError) else type(exc).__name__,
                    extra={"action": "summary_failed"},
                )  # fmt: skip
                log.debug("session %s: no summary could be written", self._session_id, exc_info=exc)
                break
            summary = SavedSummary((summary.messages if summary else 0) + len(portion), text)
        return summary

    async def _ask(self, messages: list[Message]) -> str:
        """Ask the model for a text. Raises the provider's errors, and ``ProviderRejected`` if there is none.

        A tool choice other than that of the turn's calls would invalidate the messages in the service's cache. So
        tools are forbidden only after the model has called one.
        """
        inp = self._inp
        params = {name: value for name, value in unforced(inp.params).items() if name not in ABOUT_ANSWERS}
        request = ModelRequest(
            inp.model,
            whole(messages),
            inp.system,
            inp.offered,
            params=params,
            gate=inp.gate,
            cache_key=inp.cache_key,
        )
        result = await self._answer(request)
        if result.message.tool_calls:
            result = await self._answer(
                msgspec.structs.replace(request, params=params | {"tool_choice": "none"})
            )
        text = result.message.text.strip()
        if not text or result.message.tool_calls or result.stop_reason not in COMPLETE:
            raise ProviderRejected(f"The model wrote no summary (its stop reason is {result.stop_reason!r}).")
        return text

    async def _answer(self, request: ModelRequest) -> StepResult:
        if self._inp.files is not None:
            request.messages = await self._inp.files.filled(request.messages)
        stream = self._provider.stream(request)
        try:
            result = await answered(stream, _Discard())
        except asyncio.CancelledError:
            self._inp.meter.count_stopped(request, stream, None)
            raise
        self.usage += self._inp.meter.count(result.usage, result.model, request.model)
        return result


class _Discard:
    """An outlet that discards increments. The text of a summary comes from the result of the call."""

    full = False

    def append(self, increment: Increment) -> None:
        """Discard the increment."""

    async def drain(self) -> None:
        """Return at once, because this outlet is never full."""

    def read_from(self, source: Source | None) -> None:
        """Do nothing, because nothing waits for the increments."""


def _portions(messages: Sequence[Message], tokens: int) -> Iterator[Sequence[Message]]:
    """Yield groups of whole turns. Each group has as many turns as fit into this many tokens, and at least one."""
    portion: list[Message] = []
    for begin, end in pairwise([*turn_starts(messages), len(messages)]):
        turn = messages[begin:end]
        if portion and estimated_tokens(portion) + estimated_tokens(turn) > tokens:
            yield portion
            portion = []
        portion += turn
    if portion:
        yield portion


def _halves(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Split the messages between two turns, or return them unchanged if they are one turn."""
    starts = turn_starts(messages)
    if len(starts) < 2:
        return [messages]
    middle = starts[len(starts) // 2]
    return [messages[:middle], messages[middle:]]


class LoadedHistory(Struct):
    """The loaded part of a history, from index ``start`` on, and the session's data about the last window.

    ``counted`` is the number of tokens of the last model call, or None. ``read`` loads messages before ``start``,
    between two indexes.
    """

    messages: list[Message]
    start: int
    counted: int | None
    summary: SavedSummary | None
    read: Callable[[int, int], Awaitable[list[Message]]]


class VisibleHistory(Struct):
    """The messages of a history that the model receives.

    ``start`` is the index of the first one in the history, or None if the whole history is sent. ``summary`` is a new
    summary to save with the turn, or None.
    """

    messages: list[Message]
    start: int | None
    summary: SavedSummary | None = None


async def visible_history(
    loaded: LoadedHistory, window: Window, new: Sequence[Message], writer: SummaryWriter
) -> VisibleHistory:
    """Return the summary and the messages in the window. If the window advances, a new summary is written first.

    The previous summary counts as part of the first turn, and is summarised again together with it.
    """
    if window.turns is None and window.tokens is None:
        before = await loaded.read(0, loaded.start) if loaded.start else []
        return VisibleHistory([*before, *loaded.messages], None)
    summary = loaded.summary if window.instructions is not None else None
    covered = summary.messages if summary else 0
    messages, start = loaded.messages[max(covered - loaded.start, 0) :], max(covered, loaded.start)
    head = [summary.message] if summary else []
    first = window_start([*head, *messages], window, new=new, reported=loaded.counted)
    if first == 0:
        return VisibleHistory([*head, *messages], start)
    first -= len(head)
    newer = messages[first:]
    if window.instructions is None:
        return VisibleHistory(newer, start + first)
    older = [*await loaded.read(covered, start), *messages[:first]]
    written = await writer.write(window, summary, older)
    head = [written.message] if written else []
    return VisibleHistory([*head, *newer], start + first, written if written is not summary else None)
