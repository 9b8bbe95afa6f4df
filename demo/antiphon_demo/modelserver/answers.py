"""The answers of the model server, which depend only on the conversation.

Every answer begins with ``[turn 3, before 5d41402a]``: how many user turns the model received, and a digest of
everything before the last one. Then come the words of the last user turn, and the results of tools if there are any.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import Any

import msgspec

from antiphon_demo.modelserver.directives import DEFAULT_LENGTH, Call, read_calls, read_length


def example_of(schema: Mapping[str, Any], text: str) -> Any:
    """Return an example of a JSON schema, the same every time. Strings without restrictions are ``text``."""
    return _example(schema, text, schema)


def _example(schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), text, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _example(schema[choice][0], text, root)
    kinds = schema.get("type")
    kind = kinds if isinstance(kinds, str | None) else kinds[0]
    return _of_kind(kind, schema, text, root)


def _of_kind(kind: object, schema: Mapping[str, Any], text: str, root: Mapping[str, Any]) -> Any:
    match kind:
        case "object":
            properties: Mapping[str, Any] = schema.get("properties", {})
            return {name: _example(inner, text, root) for name, inner in properties.items()}
        case "array":
            return [_example(schema.get("items", {}), text, root)] * max(1, schema.get("minItems", 1))
        case "integer" | "number":
            return schema.get("minimum", len(text.split()))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return text


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve ``#/$defs/Name``."""
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


@dataclass(slots=True)
class Conversation:
    """The conversation that a request contains, in order.

    Consecutive texts of one role count as one, so that it does not matter how a wire format splits or joins messages.
    """

    said: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    results: list[str] = field(default_factory=list[str])
    rounds: int = 0

    def add(self, role: str, text: str) -> None:
        """Add a text of the user or the model. A user's text begins a new turn."""
        if role not in ("user", "assistant") or not text:
            return
        if role == "user":
            self.results, self.rounds = [], 0
        if self.said and self.said[-1][0] == role:
            text = f"{self.said.pop()[1]}\n{text}"
        self.said.append((role, text))

    def add_calls(self) -> None:
        """Record another request of the model for tools since the last user turn."""
        self.rounds += 1

    def add_result(self, text: str) -> None:
        self.results.append(text)

    @property
    def question(self) -> str:
        """Return the last user turn."""
        return next((text for role, text in reversed(self.said) if role == "user"), "")

    def digest(self) -> str:
        """Return a digest of everything before the last user turn."""
        last = max((index for index, (role, _) in enumerate(self.said) if role == "user"), default=0)
        digest = hashlib.blake2b(digest_size=4)
        for role, text in self.said[:last]:
            digest.update(f"{role}\0{text}\0".encode())
        return digest.hexdigest()

    def turns(self) -> int:
        return sum(role == "user" for role, _ in self.said)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, independent of its wire format."""

    model: str
    conversation: Conversation
    tools: frozenset[str] = frozenset()
    schema: dict[str, Any] | None = None
    max_tokens: int | None = None
    stream: bool = False
    stream_usage: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's answer: pieces of text or tool calls."""

    model: str
    pieces: Sequence[str]
    calls: Sequence[Call]
    stop: str  # end, max_tokens or tool_use
    input_tokens: int
    output_tokens: int

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def spoken(self, stamp: bool) -> Iterator[str]:
        """Iterate over the pieces; with ``stamp``, each ends with the time at which it was taken."""
        if not stamp:
            return iter(self.pieces)
        return (f"{piece} @{time.monotonic_ns():019d}" for piece in self.pieces)


def reply_to(
    said: Iterable[tuple[str, str]], *, length: int = DEFAULT_LENGTH, results: Sequence[str] = ()
) -> str:
    """Return the server's answer to these ``(role, text)``, which end with the user's text.

    ``length`` is the server's default; a text can ask for another one. ``results`` are the results of the tools
    called since the last user turn.
    """
    conversation = Conversation()
    for role, text in said:
        conversation.add(role, text)
    conversation.results = list(results)
    return "".join(_pieces(conversation, read_length(conversation.question) or length))


def answer(ask: Ask, length: int, request_bytes: int) -> Reply:
    """Return the reply to a request. A token is a piece of text, or four bytes of the request."""
    calls = _calls(ask)
    if calls:
        pieces: Sequence[str] = []
    elif ask.schema is not None:
        pieces = _split(msgspec.json.encode(example_of(ask.schema, ask.conversation.question)).decode())
    else:
        pieces = _pieces(ask.conversation, length)
    stop = "tool_use" if calls else "end"
    if ask.max_tokens is not None and len(pieces) > ask.max_tokens:
        pieces, stop = pieces[: ask.max_tokens], "max_tokens"
    output_tokens = len(pieces) + sum(1 + len(call.arguments) // 4 for call in calls)
    return Reply(ask.model, pieces, calls, stop, request_bytes // 4 + 1, output_tokens)


def _calls(ask: Ask) -> list[Call]:
    steps = read_calls(ask.conversation.question)
    if ask.conversation.rounds >= len(steps):
        return []
    return [call for call in steps[ask.conversation.rounds] if call.name in ask.tools]


def _pieces(conversation: Conversation, length: int) -> list[str]:
    """Return the answer in pieces of one word each, as many as asked for but at least four."""
    question = conversation.question
    marker = ["[turn", f" {conversation.turns()},", " before", f" {conversation.digest()}]"]
    words = question.split() or ["nothing"]
    told = ["The", "tools", "said:", *(word for result in conversation.results for word in result.split())]
    text = chain(["You", "said:"], words, told if conversation.results else [], cycle(words))
    return [*marker, *(f" {word}" for word in islice(text, max(0, length - len(marker))))]


def _split(text: str) -> list[str]:
    return [text[start : start + 8] for start in range(0, len(text), 8)]
