"""Converts the increments of a model call to events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from antiphon.errors import ProviderStreamBroken, TurnFailed
from antiphon.events import Event, ItemEvent, ReasoningDelta, RefusalDelta, ToolCallDelta, TurnRetrying
from antiphon.ext.turns import ModelAnswer
from antiphon.input.limits import check_depth, check_size
from antiphon.model import Item, Message, ToolCall
from antiphon.redis.files import without_contents
from antiphon.window import byte_size
from antiphon_worker.providers.base import (
    Increment,
    ItemPart,
    Outlet,
    ReasoningPiece,
    RefusalPiece,
    Source,
    StepResult,
    TextPiece,
    ToolCallPiece,
)


class Sink(Protocol):
    """Publishes events that may be lost in a crash."""

    def put(self, event: Event) -> None:
        """Accept an event without waiting."""
        ...

    def text(self, step: int, text: str) -> None:
        """Accept a piece of the answer's text, like ``put(TextDelta(…))`` without creating the event."""
        ...

    def said(self) -> str:
        """Return the text of the answer so far that is not yet in a finished step."""
        ...

    @property
    def full(self) -> bool: ...

    async def drain(self) -> None:
        """Wait until there is room again."""
        ...

    def read_from(self, source: Source | None) -> None:
        """Learn from which connection the answer is read."""
        ...


class StepEvents:
    """A provider's ``Outlet`` that puts the increments of one model call into a sink, as events."""

    def __init__(self, step: int, provider: str, sink: Sink) -> None:
        self.step = step
        self._provider = provider
        self._sink = sink
        self.drain = sink.drain
        self.paused = False  # hooks run: the service is not late
        self.held = 0  # bytes of the answer that hooks have not accepted yet
        self.heard = False  # a piece has arrived since it was last set to False
        self._size = 0  # bytes received, without the text

    @property
    def full(self) -> bool:
        return self.paused or self._sink.full

    def read_from(self, source: Source | None) -> None:
        """Let the sink know from which connection the answer is read."""
        self._sink.read_from(source)

    @property
    def received(self) -> int:
        """How many bytes of the answer have arrived."""
        return self._size + self.held + byte_size(self._sink.said())

    def append(self, increment: Increment) -> None:
        self.heard = True
        if type(increment) is TextPiece:
            self._sink.text(self.step, increment.text)
        else:
            self._sink.put(self._event_of(increment))

    def withdraw(self, reason: str) -> None:
        """Withdraw the part of the answer that readers have received."""
        self._sink.put(withdrawn(self.step, reason))

    def _event_of(self, increment: Increment) -> Event:
        step, provider = self.step, self._provider
        match increment:
            case ReasoningPiece(text=text):
                self._size += byte_size(text)
                return ReasoningDelta(step=step, text=text)
            case ToolCallPiece(call_id=call_id, name=name, arguments=arguments):
                self._size += byte_size(name) + byte_size(arguments)
                return ToolCallDelta(step=step, call_id=call_id, name=name, arguments=arguments)
            case RefusalPiece(text=text):
                self._size += byte_size(text)
                return RefusalDelta(step=step, text=text)
            case ItemPart(item=item):
                return ItemEvent(step=step, provider=provider, item=without_contents(item)[0])
            case _:
                raise TypeError(f"The provider {provider!r} yielded a {type(increment).__name__}.")


class Discarded:
    """An outlet for callers that need only the complete result of a call."""

    full = False

    def append(self, increment: Increment) -> None:
        """Discard the increment."""

    async def drain(self) -> None:
        """Return at once, because this outlet is never full."""

    def read_from(self, source: Source | None) -> None:
        """Do nothing, because nothing waits for the increments."""


def withdrawn(step: int, reason: str) -> TurnRetrying:
    """Return the event that makes readers drop the deltas of a step."""
    return TurnRetrying(step=step, reason=reason, code="withdrawn")


async def answered(stream: AsyncIterator[Increment], outlet: Outlet) -> StepResult:
    """Put all increments of a model call into an outlet, and return its result. Raises the provider's errors."""
    into = getattr(stream, "into", None)
    return await (into(outlet) if into is not None else _forwarded(stream, outlet))


async def _forwarded(stream: AsyncIterator[Increment], outlet: Outlet) -> StepResult:
    result = None
    try:
        async for increment in stream:
            if type(increment) is StepResult:
                result = increment
                continue
            outlet.append(increment)
            if outlet.full:
                await outlet.drain()
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    if result is None:
        raise ProviderStreamBroken("The provider's answer ended without a result.")
    check_form(result)
    return result


def check_answer(message: Message) -> None:
    """Raise ``LimitReached`` for an answer that is too large to keep, or has too many or too large calls.

    >>> check_answer(Message.assistant("Hello"))
    """
    calls = 0
    for part in message.parts:
        match part:
            case ToolCall():
                calls += 1
                _check_call(part)
            case Item():
                check_depth(part.item, "An item in the model's answer")
            case _:
                pass
    if calls:
        check_size("answer_calls", calls, "The tool calls of the model's answer")
    check_size("answer_bytes", len(msgspec.json.encode(message)), "The model's answer in bytes")


def _check_call(call: ToolCall) -> None:
    check_depth([call.arguments, call.item], "The arguments of a tool call")
    check_size("call_bytes", len(msgspec.json.encode(call)), "A tool call of the model in bytes")


def check_form(answer: StepResult | ModelAnswer) -> None:
    """Raise ``TurnFailed`` for an answer whose JSON could not be decoded."""
    try:
        msgspec.json.decode(msgspec.json.encode(answer), type=type(answer))
    except msgspec.ValidationError as exc:
        raise TurnFailed(
            f"A provider or function of the App returned an invalid answer: {exc}.",
            code="internal_error",
        ) from exc
