"""What a provider takes, gives and promises.

``Provider.stream(request)`` yields the increments of one model call as they arrive and, last, exactly one
``StepResult``; it ends early only by raising a ``ProviderError``. Closing the iterator closes the connection.

An iterator may have ``async def into(outlet) -> StepResult`` too: the same answer, handed to an ``Outlet`` where it is
read, without a task being woken for each piece. It is used instead of the iteration where it is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

from antiphon.model import Message, StopReason, Usage

__all__ = [
    "Increment",
    "Increments",
    "ItemPart",
    "ModelRequest",
    "Outlet",
    "OutputSchema",
    "Provider",
    "ReasoningPiece",
    "RefusalPiece",
    "StepResult",
    "TextPiece",
    "ToolCallPiece",
    "ToolSpec",
]


class ToolSpec(Struct, frozen=True):
    """A tool as it is offered to a model; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


class OutputSchema(Struct, frozen=True):
    """Structured output: the answer's text is JSON that fits ``schema``."""

    name: str
    schema: dict[str, Any]
    strict: bool = True


class ModelRequest(Struct):
    """One model call. ``messages`` holds no system messages in front: those are in ``system``.

    ``params`` are the caller's (``temperature``, ``max_tokens``, ``stop``, ``tool_choice``, ``reasoning``, …);
    the provider renames what its service calls otherwise, and hands on what neither it nor its SDK knows.
    """

    model: str
    messages: list[Message]
    system: str | None = None
    tools: list[ToolSpec] = field(default_factory=list)
    output: OutputSchema | None = None
    params: dict[str, Any] = field(default_factory=dict)


class TextPiece(Struct, gc=False):
    text: str


class ReasoningPiece(Struct, gc=False):
    text: str


class RefusalPiece(Struct, gc=False):
    text: str


class ToolCallPiece(Struct, gc=False):
    """``name`` comes with the first piece of a call; ``arguments`` is a piece of JSON text."""

    call_id: str
    name: str
    arguments: str


class ItemPart(Struct):
    """A provider's own item, whole (a search, a citation, a generated image)."""

    item: dict[str, Any]


class StepResult(Struct):
    """The whole answer of one model call. ``message`` is what the history keeps and the next request sends."""

    message: Message
    usage: Usage
    stop_reason: StopReason
    raw_stop_reason: str | None
    model: str
    request_id: str | None = None


Increment: TypeAlias = TextPiece | ReasoningPiece | RefusalPiece | ToolCallPiece | ItemPart | StepResult


class Increments(Protocol):
    """Where increments are appended: a list, or an ``Outlet``."""

    def append(self, increment: Increment, /) -> None:
        """Take an increment; never waits."""
        ...


class Outlet(Increments, Protocol):
    """Where the increments of a model call go as they come."""

    @property
    def full(self) -> bool:
        """Whether to wait before more is put."""
        ...

    async def drain(self) -> None:
        """Return when there is room again."""
        ...


class Provider(Protocol):
    """A model service."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Increment]: ...

    async def aclose(self) -> None: ...
