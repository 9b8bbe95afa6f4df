"""A provider that plays a script and needs neither an API key nor a network.

Without a script it repeats the user's words, as ``provider="scripted"`` does in demos. A request can also contain a
script as its parameter ``script``: a list of answers, each a text or a list of texts and message parts. The n-th
answer is used for a request that already contains n-1 answers. The parameter ``pause`` is the pause in seconds before
each piece; requests of older releases call it ``delay``. Tests use an ``antiphon.testing.Script``.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec

from antiphon.errors import ProviderRejected
from antiphon.input.limits import check_size
from antiphon.model import (
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    StopReason,
    Text,
    ToolCall,
    Usage,
)
from antiphon.testing import Answer, Script, ScriptPart, answer, beyond_the_end
from antiphon_worker.providers.base import (
    Increment,
    ItemPart,
    ModelRequest,
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    TextPiece,
    ToolCallPiece,
)

_WORDS = re.compile(r"\s*\S+\s*|\s+")
_ARGUMENT_CHARACTERS = 24
_CHARACTERS_PER_TOKEN = 4


class ScriptedProvider:
    """Plays ``script``, or repeats the user's words, under a ``name``. ``delay`` is the pause before each piece."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        name: str = "scripted",
        delay: float = 0.0,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self.script = script
        self.name = name
        self.delay = delay
        self._sleep = sleep

    async def aclose(self) -> None:
        """Return at once, because there are no connections to close."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        """Yield the answer of one model call, piece by piece."""
        said = await self.script.next(request) if self.script else _answer_by_request(request)
        delay = _delay(said, request, self.delay)
        parts: list[Part] = []
        for part in _numbered(said.parts, request):
            if isinstance(part, BaseException):
                raise part
            if callable(part):
                outcome = part()
                if inspect.isawaitable(outcome):
                    await outcome
                continue
            for piece in _pieces(part):
                if delay > 0:
                    await self._sleep(delay)
                yield piece
            _keep(parts, part)
        yield _result(said, request, parts, self.name)


def _answer_by_request(request: ModelRequest) -> Answer:
    entries = request.params.get("script")
    if entries is None:
        return answer(_echo(request.messages))
    try:
        answers = msgspec.convert(
            entries, list[str | list[str | Text | Reasoning | ToolCall | Refusal | Item]]
        )
    except msgspec.ValidationError as exc:
        raise ProviderRejected(f"The parameter 'script' cannot be played: {exc}.") from exc
    check_size("script_answers", len(answers), "The answers of the parameter 'script'")
    index = sum(message.role == "assistant" for message in request.messages)
    if index >= len(answers):
        raise ProviderRejected(beyond_the_end(len(answers), index + 1))
    entry = answers[index]
    return answer(entry) if isinstance(entry, str) else answer(*entry)


def _echo(messages: list[Message]) -> str:
    last = messages[-1] if messages else Message.user("")
    if last.role == "tool":
        return "The tools said: " + " ".join(result.text for result in last.tool_results)
    return f"You said: {last.text}"


def _delay(said: Answer, request: ModelRequest, default: float) -> float:
    if said.delay is not None:
        return said.delay
    name = next((name for name in ("pause", "delay") if name in request.params), None)
    if name is None:
        return default
    pause = request.params[name]
    if isinstance(pause, bool) or not isinstance(pause, int | float) or not 0 <= pause < float("inf"):
        raise ProviderRejected(f"The parameter {name!r} must be a number of seconds, not {pause!r}.")
    check_size("script_delay", pause, f"The parameter {name!r}")
    return pause


def _numbered(parts: tuple[ScriptPart, ...], request: ModelRequest) -> Iterator[Any]:
    """Yield the parts, with an id for each tool call. A repeated request gives the same ids."""
    number = sum(len(message.tool_calls) for message in request.messages)
    for part in parts:
        if isinstance(part, ToolCall):
            number += 1
            part = msgspec.structs.replace(part, call_id=part.call_id or f"call_{number}")
        yield Text(part) if isinstance(part, str) else part


def _pieces(part: Part) -> Iterator[Increment]:
    match part:
        case Text(text=text):
            yield from (TextPiece(word) for word in _WORDS.findall(text))
        case Reasoning(text=text):
            yield from (ReasoningPiece(word) for word in _WORDS.findall(text))
        case Refusal(text=text):
            yield from (RefusalPiece(word) for word in _WORDS.findall(text))
        case ToolCall(call_id=call_id, name=name):
            yield ToolCallPiece(call_id, name, "")
            text = part.arguments_text
            for at in range(0, len(text), _ARGUMENT_CHARACTERS):
                yield ToolCallPiece(call_id, "", text[at : at + _ARGUMENT_CHARACTERS])
        case Item(item=item):
            yield ItemPart(item)
        case _:
            raise ProviderRejected(f"A script cannot contain a {type(part).__name__}.")


def _keep(parts: list[Part], part: Part) -> None:
    """Add a part to the message. Consecutive texts become one part, as in the answers of services."""
    if isinstance(part, Text) and parts and isinstance(parts[-1], Text) and not part.annotations:
        parts[-1] = Text(parts[-1].text + part.text, parts[-1].annotations)
    else:
        parts.append(part)


def _result(said: Answer, request: ModelRequest, parts: list[Part], provider: str) -> StepResult:
    model = said.model or request.model
    message = Message("assistant", parts, provider=provider, model=model)
    stop_reason = said.stop_reason or _stop_reason(parts)
    return StepResult(
        message=message,
        usage=said.usage or _usage(request, message),
        stop_reason=stop_reason,
        raw_stop_reason=said.raw_stop_reason or stop_reason,
        model=model,
    )


def _stop_reason(parts: list[Part]) -> StopReason:
    if any(isinstance(part, ToolCall) for part in parts):
        return "tool_use"
    return "refusal" if any(isinstance(part, Refusal) for part in parts) else "end"


def _usage(request: ModelRequest, message: Message) -> Usage:
    asked = len(request.system or "") + sum(_length(each) for each in request.messages)
    return Usage(asked // _CHARACTERS_PER_TOKEN + 1, _length(message) // _CHARACTERS_PER_TOKEN + 1)


def _length(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments_text) for call in message.tool_calls)
    return len(message.text) + calls + sum(len(result.text) for result in message.tool_results)
