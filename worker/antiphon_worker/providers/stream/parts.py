"""Collects the parts of an answer while it is streamed, in the order of their arrival."""

from __future__ import annotations

from typing import Any

from antiphon.model import Item, Part, Reasoning, Refusal, Text, ToolCall


class TextPieces:
    """A text, a reasoning or a refusal that is being streamed."""

    __slots__ = ("annotations", "item", "kind", "pieces")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.annotations: list[dict[str, Any]] = []
        self.item: dict[str, Any] | None = None

    def part(self) -> Part | None:
        text = "".join(self.pieces)
        if self.kind == "text":
            return Text(text, self.annotations, self.item) if text or self.annotations or self.item else None
        if self.kind == "refusal":
            return Refusal(text) if text else None
        return Reasoning(text, self.item) if text or self.item else None


class CallPieces:
    """A tool call that is being streamed."""

    __slots__ = ("arguments", "call_id", "item", "names")

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.names: list[str] = []
        self.arguments: list[str] = []
        self.item: dict[str, Any] | None = None

    def name(self, offered: frozenset[str]) -> str:
        """The name, which arrives in pieces or, from some servers, whole with every piece."""
        joined = "".join(self.names)
        if joined in offered:
            return joined
        return next((name for name in self.names if name in offered), joined)

    def part(self, offered: frozenset[str]) -> ToolCall:
        name, text = self.name(offered), "".join(self.arguments)
        if self.item is not None and self.item.get("type") == "custom":
            return ToolCall(self.call_id, name, {"input": text}, None, self.item)
        return ToolCall.from_text(self.call_id, name, text, self.item)


class PartList:
    """Parts in the order of their first pieces; a piece of another kind begins a new part."""

    __slots__ = ("_last", "parts")

    def __init__(self) -> None:
        self.parts: list[TextPieces | CallPieces | Item] = []
        self._last: TextPieces | None = None

    def add(self, kind: str, text: str) -> TextPieces:
        last = self._last
        if last is None or last.kind != kind:
            last = self._last = TextPieces(kind)
            self.parts.append(last)
        last.pieces.append(text)
        return last

    def said_of_text(self, name: str, value: Any) -> None:
        """Keep a service's annotations together with the text."""
        text = self.first("text") or self.add("text", "")
        text.item = {**(text.item or {}), name: value}

    def first(self, kind: str) -> TextPieces | None:
        return next((part for part in self.parts if isinstance(part, TextPieces) and part.kind == kind), None)

    def append(self, part: CallPieces | Item) -> None:
        self.parts.append(part)
        self._last = None

    def finished(self, offered: frozenset[str]) -> list[Part]:
        parts: list[Part] = []
        for made in self.parts:
            if isinstance(made, TextPieces):
                part = made.part()
                if part is not None:
                    parts.append(part)
            else:
                parts.append(made.part(offered) if isinstance(made, CallPieces) else made)
        return parts
