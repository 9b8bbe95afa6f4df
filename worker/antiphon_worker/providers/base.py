"""The interface of providers: requests, increments and results of model calls.

``Provider.stream(request)`` yields the increments of one model call as they arrive, and then exactly one
``StepResult``. It ends earlier only by raising a ``ProviderError``. Closing the iterator closes the connection.

An iterator may also have ``async def into(outlet) -> StepResult``. It puts the same increments into an ``Outlet`` as
they are read, without waking a task for each one. If it exists, it is used instead of the iteration.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct, field

from antiphon.model import Message, StopReason, Usage
from antiphon_worker.providers.http.limits import Gate


class ToolSpec(Struct, frozen=True):
    """The description of a tool for a model. ``parameters`` is a JSON schema of the type object."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


_NO_NAMES = frozenset[str]()  # an empty set takes 216 bytes


def names_of(tools: Sequence[ToolSpec]) -> frozenset[str]:
    """Return the names of these tools."""
    return frozenset(tool.name for tool in tools) if tools else _NO_NAMES


class OutputSchema(Struct, frozen=True):
    """Structured output: the answer's text must be JSON that matches ``schema``."""

    name: str
    schema: dict[str, Any]
    strict: bool = True


class Published(Struct):
    """How much of an answer readers have: characters by kind (``text``, ``reasoning``, ``refusal``), characters of
    arguments by tool call id, and the number of items."""

    texts: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    items: int = 0


class AnswerKeeper(Protocol):
    """Keeps the id of the answer to one model call, so that another attempt can continue to read it.

    ``response_id`` is the id that an earlier attempt kept, or ''. ``stopped`` is true if the rest will not be read,
    so that the service may stop writing it.
    """

    @property
    def response_id(self) -> str: ...

    @property
    def stopped(self) -> bool: ...

    async def begun(self, response_id: str) -> None:
        """Keep the id. It is durable when this returns."""
        ...

    async def gone(self, usage: Usage) -> None:
        """Forget the id of an answer that the service will not complete, and count its usage. The step starts again."""
        ...

    async def published(self) -> Published:
        """Return how much of the answer readers have."""
        ...


class ModelRequest(Struct):
    """One model call. ``messages`` has no leading system messages: those are in ``system``.

    ``params`` are the caller's parameters (``temperature``, ``max_tokens``, ``stop``, ``tool_choice``, ``reasoning``,
    …). The provider renames them for its service, and passes on parameters that it does not know. ``gate`` is where the
    call waits for a known rate limit; only providers over HTTP use it. Calls with the same ``cache_key`` begin
    alike, so that a service may route them to the same cache; it is sent as a hash. ``keeper`` keeps the id of an
    answer that the service writes in the background. ``step`` is the number of the model call in its turn, or 0
    if it is not a step of the turn, such as a call for a summary.
    """

    model: str
    messages: list[Message]
    system: str | None = None
    tools: list[ToolSpec] = field(default_factory=list)
    output: OutputSchema | None = None
    params: dict[str, Any] = field(default_factory=dict)
    gate: Gate | None = None
    cache_key: str = ""
    keeper: AnswerKeeper | None = None
    step: int = 0


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
    """A complete item in the provider's own format (a search, a citation, a generated image)."""

    item: dict[str, Any]


class StepResult(Struct):
    """The complete answer of one model call. ``message`` is stored in the history and sent with later requests."""

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
        """Accept an increment without waiting."""
        ...


class Source(Protocol):
    """The connection from which an answer is read."""

    def pause(self) -> None:
        """Leave what arrives in the socket until ``resume``, to read it together. Does nothing at the answer's end."""
        ...

    def resume(self) -> None:
        """Read again. Does nothing unless paused."""
        ...


class Outlet(Increments, Protocol):
    """Receives the increments of a model call as they arrive."""

    @property
    def full(self) -> bool:
        """True if the caller must await ``drain`` before it appends more."""
        ...

    async def drain(self) -> None:
        """Wait until there is room again."""
        ...

    def read_from(self, source: Source | None) -> None:
        """Learn from which connection the increments come from now on, or that they come from none."""
        ...


class Provider(Protocol):
    """A model service."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Increment]: ...

    async def aclose(self) -> None: ...
