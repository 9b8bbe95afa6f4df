"""Follows the events of a turn: the parts of its answer as they begin, grow, end and are taken back.

Each protocol has a subclass of ``TurnStream`` that returns what it sends at each of these changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct

from antiphon.events import Event, StepFinished, ToolResultEvent, TurnRetrying, TurnSuspended
from antiphon.model import Usage

T = TypeVar("T")


class Part(Struct, eq=False):
    """A part of an answer: a text of some kind, or a tool call with its arguments as text.

    ``seq`` is that of its first event, and ``place`` its index among the parts of its step.
    """

    kind: str
    step: int
    seq: int
    place: int
    call_id: str = ""
    name: str = ""
    text: str = ""


class TurnStream(Generic[T]):
    """Converts the events of one turn to those of a protocol. Pure: the same turn yields the same events everywhere.

    One part is open at a time; with ``PARALLEL``, several tool calls may be open. ``KINDS`` names the kinds of texts.
    """

    KINDS: ClassVar[Mapping[str, str]] = {
        "text_delta": "text", "refusal_delta": "text", "reasoning_delta": "reasoning",
    }  # fmt: skip
    PARALLEL: ClassVar[bool] = False

    def __init__(self) -> None:
        self.usage = Usage()
        self.seq = self.step = 0
        self.open: list[Part] = []
        self.of_step: list[Part] = []

    def of(self, event: Event) -> list[T]:
        """Return what the protocol sends for an event of the turn, in order."""
        self.seq = event.seq
        return [*self._of(event)]

    def _of(self, event: Event) -> Iterable[T]:
        match event.type:
            case "text_delta" | "refusal_delta" | "reasoning_delta":
                return self.add(event.text, self.KINDS[event.type], event.step)
            case "tool_call_delta":
                return self.add(event.arguments, "call", event.step, event.call_id, event.name)
            case "tool_call":
                return self.whole_call(event, event.step)
            case "tool_result":
                return [*self.close(), *self.result(event)]
            case "step_finished":
                self.usage += event.usage
                return self.taken_back(event) if event.rejected else [*self.close(), *self.step_ended()]
            case "turn_retrying":
                return self.taken_back(event)
            case "turn_suspended":
                return self.asked(event)
            case _:
                return self.other(event)

    # What a protocol sends.

    def began(self, part: Part) -> Iterable[T]:
        """Return what to send when a part begins."""
        return ()

    def grew(self, part: Part, text: str) -> Iterable[T]:
        """Return what to send when a part has grown by this text."""
        return ()

    def ended(self, part: Part, *, whole: bool) -> Iterable[T]:
        """Return what to send when a part ends. It is ``whole`` unless the model call broke off within it."""
        return ()

    def result(self, event: ToolResultEvent) -> Iterable[T]:
        """Return what to send for the result of a tool call."""
        return ()

    def step_ended(self) -> Iterable[T]:
        """Return what to send when a model call has ended and its parts count."""
        return ()

    def taken_back(self, event: StepFinished | TurnRetrying) -> Iterable[T]:
        """Return what to send when the parts of a step no longer count: it begins again, or its answer was rejected."""
        self.open.clear()
        self.forget(event.step)
        return ()

    def asked(self, event: TurnSuspended) -> Iterable[T]:
        """Return what to send when the turn waits for decisions about tool calls."""
        return [one for call in event.calls for one in self.whole_call(call, self.step)]

    def other(self, event: Event) -> Iterable[T]:
        """Return what to send for any other event."""
        return ()

    # Operations on the parts.

    def begin(self, kind: str, step: int, call_id: str = "", name: str = "") -> tuple[Part, list[T]]:
        """Return the open part of this kind, or a new one, and what to send for it."""
        for part in self.open:
            if (part.kind, part.call_id) == (kind, call_id):
                return part, []
        beside = self.PARALLEL and kind == "call" and self.open and self.open[-1].kind == "call"
        found = [] if beside else self.close()
        if step != self.step:
            self.step, self.of_step = step, []
        part = Part(kind, step, self.seq, len(self.of_step), call_id, name)
        self.open.append(part)
        self.of_step.append(part)
        return part, [*found, *self.began(part)]

    def add(self, text: str, kind: str, step: int, call_id: str = "", name: str = "") -> list[T]:
        """Add text to the open part of this kind, or to a new one."""
        part, found = self.begin(kind, step, call_id, name)
        part.text += text
        return [*found, *self.grew(part, text)]

    def whole_call(self, call: Any, step: int) -> list[T]:
        """Send a tool call unless it was sent before, and end it."""
        found = list[T]()
        if not self.knows(call.call_id):
            arguments = msgspec.json.encode(call.arguments).decode()
            found = self.add(arguments, "call", step, call.call_id, call.name)
        return [*found, *self.close(call.call_id)]

    def knows(self, call_id: str) -> bool:
        """Return whether a call of this step was sent before."""
        return any(one.call_id == call_id for one in self.of_step)

    def close(self, call_id: str = "", *, whole: bool = True) -> list[T]:
        """End all open parts, or only the call with this id."""
        ended = [one for one in self.open if not call_id or one.call_id == call_id]
        self.open = [one for one in self.open if one not in ended]
        return [sent for one in ended for sent in self.ended(one, whole=whole)]

    def forget(self, step: int) -> None:
        """Count the parts of a step from the beginning again."""
        if step == self.step:
            self.step, self.of_step = 0, []
