"""Decodes the answers of Chat Completions, from OpenAI and from compatible servers with their differences."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from antiphon.errors import ProviderStreamBroken
from antiphon.model import Item, Message, Refusal, StopReason, ToolCall
from antiphon_worker.providers.base import (
    Increments,
    ItemPart,
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.providers.errors import error_of_body
from antiphon_worker.providers.openai_chat.chunk import (
    CallDelta,
    Choice,
    Delta,
    Function,
    merged,
    merged_details,
    plain_text,
    read_chunk,
    real,
    real_function,
    reasoning_of_details,
    usage_of,
)
from antiphon_worker.providers.stream.json_text import Mending, as_dict, as_text, is_list, is_object, read_any
from antiphon_worker.providers.stream.parts import CallPieces, PartList, TextPieces

_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",
    "tool_calls": "tool_use",
    "tool_use": "tool_use",
    "function_call": "tool_use",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
}


PLAIN_TRIES = 4
"""After this many chunks that are not plain text, such as tool calls, chunks are no longer tried as plain text."""


class ChatDecoder:
    """Decodes one answer of Chat Completions. Of several choices it reads the first."""

    def __init__(self, provider: str, model: str, offered: frozenset[str] = frozenset()) -> None:
        self.finished = False
        self._provider = provider
        self._offered = offered  # names of the tools in the request
        self._model = model
        self._begun = False
        self._answered = False
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._parts = PartList()
        self._calls: dict[int, CallPieces] = {}
        self._last_call: CallPieces | None = None
        self._function_call: CallPieces | None = None
        self._details: list[dict[str, Any]] = []
        self._details_alone = True  # no other field has held reasoning
        self._executed: dict[Any, dict[str, Any]] = {}  # tools that the service ran, by index
        self._sources: dict[str, list[Any] | None] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self._audio: dict[str, Any] | None = None
        self._torn = False
        self._plain = (
            0  # how many more failures to allow for reading chunks as plain text, once the model is known
        )
        self._mending: dict[str, Mending] = {}

    def event(self, name: bytes, data: bytes, out: Increments) -> None:
        if self._plain and not name:
            text = plain_text(data)
            if text is not None:
                if text:
                    self._answered = True
                    self._parts.add("text", text)
                    out.append(TextPiece(text))
                return
            self._plain -= 1
        self._event(name, data, out)

    def _event(self, name: bytes, data: bytes, out: Increments) -> None:
        if data[:1] != b"{" and data.strip() in (b"[DONE]", b""):
            self.finished = self.finished or bool(data.strip())
            return
        chunk = read_chunk(data)
        if chunk.error is not None or name == b"error" or chunk.object == "error":
            raise error_of_body(self._provider, read_any(data))
        self._torn = self._torn or chunk.torn
        if chunk.choices:
            for choice in chunk.choices:
                if not choice.index:
                    self._choice(choice, self._said(choice), out)
        if chunk.usage is not None:
            self._usage = chunk.usage
        elif chunk.x_groq is not None:
            self._usage = as_dict(chunk.x_groq.get("usage")) or self._usage
        if chunk.citations or chunk.search_results:
            self._sources = {"citations": chunk.citations, "search_results": chunk.search_results}
        if chunk.model:
            self._model = chunk.model
            if not self._begun:
                self._begun, self._plain = True, PLAIN_TRIES
        if self._torn:
            self._plain = 0

    def whole(self, body: bytes, out: Increments) -> None:
        chunk = read_chunk(body)
        if chunk.error is not None or chunk.choices is None:
            raise error_of_body(self._provider, read_any(body), default=ProviderStreamBroken)
        self.event(b"", body, out)
        self.finished = True

    def result(self, out: Increments) -> StepResult:
        if not self.finished and self._finish_reason is None:
            raise ProviderStreamBroken(f"The answer of {self._provider} ended without its last event.")
        for kind, mending in self._mending.items():
            if mending.held:
                self._text(kind, "", mending.rest(), out)
        if self._details:
            self._keep_details()
        self._keep_the_rest()
        parts = self._parts.finished(self._offered)
        message = Message("assistant", parts, provider=self._provider, model=self._model)
        return StepResult(
            message, usage_of(self._usage), self._stop_reason(message), self._finish_reason, self._model
        )

    def _stop_reason(self, message: Message) -> StopReason:
        reason = _STOP_REASONS.get((self._finish_reason or "").lower(), "end")
        if self._executed and not message.tool_calls:
            return "end" if reason == "tool_use" else reason  # the service ran its tools itself
        if reason == "end":
            if any(isinstance(part, ToolCall) for part in message.parts):
                return "tool_use"
            if any(isinstance(part, Refusal) for part in message.parts) and not message.text:
                return "refusal"
        return reason

    def _said(self, choice: Choice) -> Delta | None:
        """Return the content of a choice: a piece, or the whole, beside which some servers put an empty piece."""
        delta = choice.delta
        if choice.message is None or self._answered or not (delta is None or delta.says_nothing()):
            return delta
        return choice.message

    def _choice(self, choice: Choice, delta: Delta | None, out: Increments) -> None:
        if delta is not None:
            content = delta.content
            if content:
                self._answered = True
                if isinstance(content, str) and not self._torn:
                    self._parts.add("text", content)
                    out.append(TextPiece(content))
                else:
                    self._content(content, out)
            if delta.tool_calls:
                for call in delta.tool_calls:
                    self._tool_call(call, out)
            self._others(delta, out)
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        if choice.usage is not None:
            self._usage = choice.usage
        for name, values in (choice.logprobs or {}).items():
            if is_list(values) and values:
                self._logprobs.setdefault(name, []).extend(values)
        if choice.error is not None:
            raise error_of_body(self._provider, {"error": choice.error})

    def _others(self, delta: Delta, out: Increments) -> None:
        if delta.reasoning_details:
            self._reasoning_details(delta, out)
        if delta.reasoning_content:
            self._reasoning("reasoning_content", delta.reasoning_content, out)
        elif delta.reasoning:
            self._reasoning("reasoning", delta.reasoning, out)
        if delta.refusal:
            self._text("refusal", delta.refusal, "", out)
        function = real_function(delta.function_call)
        if function is not None:
            self._legacy_call(function, out)
        if delta.annotations:
            self._annotate(delta.annotations, out)
        for image in delta.images or ():
            self._parts.append(Item(self._provider, image))
            out.append(ItemPart(image))
        if real(delta.audio):
            self._audio = merged(self._audio or {}, delta.audio or {})
        for tool in delta.executed_tools or ():
            merged(self._executed.setdefault(tool.get("index", len(self._executed)), {}), tool)
        if real(delta.extra_content):
            self._parts.said_of_text("extra_content", delta.extra_content)

    def _content(self, content: str | list[Any], out: Increments) -> None:
        """Read content that is text or a list of parts (Mistral)."""
        if isinstance(content, str):
            self._text("text", content, "", out)
            return
        for part in content:
            if isinstance(part, str):
                self._text("text", part, "", out)
            elif is_object(part):
                self._content_part(part, out)

    def _content_part(self, part: dict[str, Any], out: Increments) -> None:
        kind = part.get("type")
        if kind == "thinking" or kind == "reasoning":
            thought = part.get("thinking") or part.get("text")
            pieces = thought if is_list(thought) else [{"text": thought}]
            text = "".join(as_text(piece.get("text")) or "" for piece in pieces if is_object(piece))
            if text:
                self._reasoning("thinking", text, out)
        elif kind == "refusal":
            self._text("refusal", as_text(part.get("refusal")) or "", "", out)
        elif isinstance(part.get("text"), str):
            self._text("text", part["text"], "", out)
        else:
            self._parts.append(Item(self._provider, part))
            out.append(ItemPart(part))

    def _reasoning(self, source: str, text: str, out: Increments) -> None:
        self._answered = True
        self._details_alone = False
        pieces = self._text("reasoning", text, "", out)
        if pieces.item is None:
            pieces.item = {"type": source}

    def _text(self, kind: str, text: str, mended: str, out: Increments) -> TextPieces:
        if self._torn:
            text = self._mending.setdefault(kind, Mending()).piece(text)
        text += mended
        pieces = self._parts.add(kind, text)
        if text:
            piece = TextPiece if kind == "text" else ReasoningPiece if kind == "reasoning" else RefusalPiece
            out.append(piece(text))
        return pieces

    def _annotate(self, annotations: list[dict[str, Any]], out: Increments) -> None:
        self._parts.add("text", "").annotations.extend(annotations)
        for annotation in annotations:
            out.append(ItemPart(annotation))

    def _reasoning_details(self, delta: Delta, out: Increments) -> None:
        """Keep the blocks. If no other field holds the reasoning, use their text."""
        details = delta.reasoning_details or []
        self._details += details
        self._details_alone = self._details_alone and not (delta.reasoning_content or delta.reasoning)
        text = reasoning_of_details(details) if self._details_alone else ""
        if text:
            self._answered = True
            self._text("reasoning", text, "", out)

    def _keep_the_rest(self) -> None:
        """Read what belongs to the whole answer: audio, tools of the service, sources, probabilities."""
        if self._audio is not None:
            self._parts.append(Item(self._provider, {"type": "audio", **self._audio}))
        if self._executed:
            tools = list(self._executed.values())
            self._parts.append(Item(self._provider, {"type": "executed_tools", "executed_tools": tools}))
        for name, value in [*self._sources.items(), ("logprobs", self._logprobs)]:
            if value:
                self._parts.said_of_text(name, value)

    def _keep_details(self) -> None:
        """Add OpenRouter's reasoning blocks, which later requests must repeat unchanged, to the reasoning."""
        pieces = self._parts.first("reasoning") or self._parts.add("reasoning", "")
        pieces.item = {"type": "reasoning_details", "reasoning_details": merged_details(self._details)}

    def _tool_call(self, delta: CallDelta, out: Increments) -> None:
        self._answered = True
        custom = None if real_function(delta.function) else real(delta.custom)
        function = delta.function or Function()
        if custom is not None:
            function = Function(as_text(custom.get("name")), as_text(custom.get("input")))
        call = self._call_of(delta, function)
        new = call is None
        if call is None:
            call = CallPieces(delta.id or f"call_{uuid.uuid4().hex[:24]}")
            if custom is not None:
                call.item = {"type": "custom"}
            self._parts.append(call)
            if delta.index is not None:
                self._calls[delta.index] = call
        self._last_call = call
        if real(delta.extra_content):
            call.item = {"type": "function", **(call.item or {}), "extra_content": delta.extra_content}
        self._extend(call, function, new, out)

    def _extend(self, call: CallPieces, function: Function, new: bool, out: Increments) -> None:
        given = function.arguments or ""
        arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        if function.name:
            call.names.append(function.name)
        if arguments:
            call.arguments.append(arguments)
        if new or arguments:
            out.append(ToolCallPiece(call.call_id, (function.name or "") if new else "", arguments))

    def _call_of(self, delta: CallDelta, function: Function) -> CallPieces | None:
        """Return the call that a piece belongs to, or None for a new call.

        ``index`` tells calls apart. If a server leaves it out, or sends 0 for all, the ids do: another id begins a new
        call, unless the arguments so far are an incomplete fragment.
        """
        call = self._last_call if delta.index is None else self._calls.get(delta.index)
        if call is None or not delta.id or delta.id == call.call_id:
            return call
        arguments = "".join(call.arguments)
        if not arguments.strip():
            return call if function.name and function.name in call.names else None
        return None if _is_object(arguments) else call

    def _legacy_call(self, function: Function, out: Increments) -> None:
        call = self._function_call
        new = call is None
        if call is None:
            call = self._function_call = CallPieces(f"call_{uuid.uuid4().hex[:24]}")
            self._parts.append(call)
        self._answered = True
        self._extend(call, function, new, out)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
