"""Decodes one answer: the part that all wire formats share. A format adds its tables of names and its own behaviour."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from antiphon.errors import ProviderStreamBroken
from antiphon.model import Message, Part, Refusal, StopReason, Usage
from antiphon_worker.providers.base import (
    Increment,
    Increments,
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    TextPiece,
)
from antiphon_worker.providers.errors import error_of_body
from antiphon_worker.providers.stream.json_text import Mending, as_int, is_object, lenient, read_any

PIECES: dict[str, Callable[[str], Increment]] = {
    "text": TextPiece,
    "reasoning": ReasoningPiece,
    "refusal": RefusalPiece,
}


class Growing:
    """A part that is being streamed: the service's own item, and what was added to it, by kind."""

    __slots__ = ("added", "done", "item", "mending")

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item
        self.done = False  # ``item`` is complete
        self.added: dict[str, list[str]] = {}  # text, refusal, reasoning, arguments
        self.mending: dict[str, Mending] = {}

    def add(self, kind: str, text: str) -> None:
        pieces = self.added.get(kind)
        if pieces is None:
            self.added[kind] = [text]
        else:
            pieces.append(text)

    def said(self, kind: str) -> str:
        return "".join(self.added.get(kind, ()))


class UsageNames(Struct, frozen=True):
    """Where a service counts tokens: fields, or ``object.field``. The first one that is not 0 is used."""

    input: tuple[str, ...] = ("input_tokens",)
    output: tuple[str, ...] = ("output_tokens",)
    cached: tuple[str, ...] = ("input_tokens_details.cached_tokens",)
    written: tuple[str, ...] = ("input_tokens_details.cache_write_tokens",)
    reasoning: tuple[str, ...] = ("output_tokens_details.reasoning_tokens",)
    cache_apart: bool = False  # ``input`` excludes tokens read from and written to the cache


class Decoder(ABC):
    """Decodes one answer in one wire format."""

    EVENT: ClassVar[type[Any]]
    """The struct of an event."""
    TAKES: ClassVar[dict[str, Any]] = {}
    """The method for each type of event: it takes the event, its bytes, and where increments go."""
    USAGE: ClassVar[UsageNames] = UsageNames()

    _decode: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        cls._decode = staticmethod(msgspec.json.Decoder(cls.EVENT).decode)

    def __init__(self, provider: str, model: str) -> None:
        self.finished = False
        """Whether the format's own terminator has arrived."""
        self._provider = provider
        self._model = model
        self._usage: dict[str, Any] = {}  # as the service has counted so far
        self._torn = False  # the lenient reader was used: a text may begin or end with half a character

    def event(self, name: bytes, data: bytes, out: Increments) -> None:
        """Take one event. Raises ``ProviderError`` for an error of the service, ``ValueError`` for an invalid event."""
        try:
            event: Any = self._decode(data)
        except (msgspec.MsgspecError, UnicodeError):
            event = self._lenient(data)
            if event is None:
                return
        take = self.TAKES.get(event.type)
        if take is not None:
            take(self, event, data, out)
        elif event.type is None or event.type == "error" or name == b"error":
            raise error_of_body(self._provider, read_any(data))

    @property
    def counted(self) -> Usage:
        """What the service has counted so far."""
        return usage_of(self._usage, self.USAGE)

    @abstractmethod
    def whole(self, body: bytes, out: Increments) -> None:
        """Take an answer that arrived in one piece, as JSON."""

    @abstractmethod
    def result(self, out: Increments) -> StepResult:
        """Return the whole answer. Raises ``ProviderStreamBroken`` if its end is missing."""

    def _lenient(self, data: bytes) -> Any:
        """Return an event that the strict decoder refuses, or None if there is nothing in it."""
        if data.strip() in (b"", b"[DONE]"):
            return None
        event = lenient(self.EVENT, read_any(data))
        self._torn = True
        return event

    def _say(self, part: Growing, kind: str, text: str, out: Increments) -> None:
        """Add a piece of text to a part, and emit its complete characters."""
        if self._torn:
            text = part.mending.setdefault(kind, Mending()).piece(text)
        if text:
            pieces = part.added.get(kind)
            if pieces is None:
                part.added[kind] = [text]
            else:
                pieces.append(text)
            out.append(PIECES[kind](text))

    def _step(
        self, parts: list[Part], reason: StopReason, raw_reason: str | None, usage: dict[str, Any] | None
    ) -> StepResult:
        message = Message("assistant", parts, provider=self._provider, model=self._model)
        return StepResult(
            message, usage_of(usage or {}, self.USAGE), _meant(reason, message), raw_reason, self._model
        )

    def _broken_off(self) -> ProviderStreamBroken:
        return ProviderStreamBroken(f"The answer of {self._provider} ended without its last event.")


def _meant(reason: StopReason, message: Message) -> StopReason:
    """Return why an answer ended: services may report a normal end for one that requests tools or refuses."""
    if reason != "end":
        return reason
    if message.tool_calls:
        return "tool_use"
    refused = any(isinstance(part, Refusal) for part in message.parts)
    return "refusal" if refused and not message.text else "end"


def usage_of(usage: dict[str, Any], names: UsageNames) -> Usage:
    """Read the token counts and the cost."""
    cached, written = _count(usage, names.cached), _count(usage, names.written)
    given = _count(usage, names.input) + (cached + written if names.cache_apart else 0)
    made, thought = _count(usage, names.output), _count(usage, names.reasoning)
    return Usage(given, made, cached, written, thought, _cost_of(usage))


def _count(usage: dict[str, Any], places: tuple[str, ...]) -> int:
    for place in places:
        outer, _, name = place.rpartition(".")
        counts = usage.get(outer) if outer else usage
        if is_object(counts) and (found := as_int(counts.get(name)) or 0) > 0:
            return found
    return 0


TICKS_PER_DOLLAR = 10_000_000_000


def _cost_of(usage: dict[str, Any]) -> float | None:
    """Return the cost of a call in US dollars if the service reports it.

    OpenRouter sends a number (``cost``), others an object (``cost.total_cost``, ``cost.usd``), and x.ai units of 1e-10
    dollars (``cost_in_usd_ticks``).
    """
    cost = usage.get("cost")
    known = _number(cost.get("total_cost", cost.get("usd")) if is_object(cost) else cost)
    ticks = _number(usage.get("cost_in_usd_ticks"))
    return ticks / TICKS_PER_DOLLAR if known is None and ticks is not None else known


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
        return float(value)
    return None
