"""Turns that a function runs: the interface for frameworks with their own agent loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from antiphon.errors import ProviderRejected
from antiphon.model import Message, OpenCall, StopReason, ToolCall, ToolResult, Usage
from antiphon.tools import Context

__all__ = ["FunctionTurn", "ModelAnswer", "TurnFunction"]


class ModelAnswer(Struct):
    """The whole answer of one model call, as the history keeps it.

    >>> ModelAnswer(Message.assistant("Hello")).stop_reason
    'end'
    """

    message: Message
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = "end"
    model: str = ""


class FunctionTurn(Protocol):
    """The turn that a function runs.

    ``messages`` are the messages for the model: the history, followed by the ``input`` of this turn. ``system``,
    ``model`` and ``params`` are those of the agent and the turn. ``context`` is the turn's, with the session's
    variables.
    """

    @property
    def messages(self) -> list[Message]: ...
    @property
    def input(self) -> list[Message]: ...
    @property
    def system(self) -> str | None: ...
    @property
    def model(self) -> str: ...
    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def context(self) -> Context: ...

    async def model_call(self, ask: Callable[..., Awaitable[ModelAnswer]]) -> ModelAnswer:
        """Make the next model call, or return the answer that an earlier attempt at the turn received.

        ``ask`` takes no argument, or the request as the turn's hooks have changed it, with its ``model``, ``system``,
        ``messages`` and ``params``. An answer with tool calls is in the journal when this returns. Raises the errors
        of ``ask``, ``LimitReached`` and ``StepLimitReached``. Inside a tool call, the answer is not kept.
        """
        ...

    async def tool_call(self, call_id: str, run: Callable[..., Awaitable[Any]]) -> ToolResult:
        """Run a call of the last answer, or return the result that an earlier attempt at the turn received.

        ``run`` takes the context and, optionally, the arguments as hooks or a person have changed them. If a hook
        requires an approval for a call, the turn is suspended. A result that is not text is written as JSON. The
        result is in the journal when this returns. Raises the errors of ``run``. A call that the last answer does not
        have is run, but its result is not kept.
        """
        ...

    async def decided(self, calls: Sequence[OpenCall]) -> Mapping[str, ToolCall | ToolResult]:
        """Suspend the turn until callers have decided about these calls of the last answer.

        The function is called again when all are decided. This then returns, by call id, the call itself with the
        approved arguments if it was approved, and otherwise its result. The results are in the journal when this
        returns. Raises ``TurnFailed`` for a call that the last answer does not have.
        """
        ...

    def decision(self, call_id: str) -> ToolCall | ToolResult | None:
        """Return the decision about a call that has waited, in the form of ``decided``; None for other calls."""
        ...

    async def settle(self, results: Mapping[str, str]) -> None:
        """Keep results, by call id, for calls of the last answer that ran elsewhere and have no result yet."""
        ...

    async def text(self, text: str) -> None:
        """Publish a piece of the answer. It may be lost in a crash."""
        ...

    async def reasoning(self, text: str) -> None:
        """Publish a piece of the model's reasoning."""
        ...

    async def call_delta(self, call_id: str, name: str, arguments: str) -> None:
        """Publish a piece of a tool call's arguments. The first piece of a call has its name."""
        ...


class TurnFunction:
    """A provider whose turns a function runs, instead of our agent loop: ``Agent(provider=TurnFunction(run), …)``.

    >>> from antiphon import Agent, Message
    >>> async def run(turn):
    ...     async def ask():
    ...         await turn.text("Hello")
    ...         return ModelAnswer(Message.assistant("Hello"))
    ...     await turn.model_call(ask)
    >>> Agent(provider=TurnFunction(run), model="any").session().run("Hi").text
    'Hello'

    ``run`` takes a ``FunctionTurn``. If it returns text, that is the answer; otherwise the answer is that of its last
    model call. The turn has a lease, a stream, and limits of steps and tokens like any other. A cancel, a timeout and
    a lost lease cancel the function. When a worker dies, another one calls the function again: if it repeats its model
    calls and tool calls in the same order, they return the same values. An exception fails the turn
    (``turn_function``); one of a model service (with a ``status_code``) is retried as with the built-in providers.

    On workers, give it a name: ``App(providers={"support": TurnFunction(run)})``. The agent's own tools, approvals and
    fallbacks are not supported: an agent that has any fails its turns. A turn that steers waits and then runs as a
    turn of its own.
    """

    runs_hooks = True
    """Whether hooks of model calls and tools can run: before and after each call."""

    def __init__(self, run: Callable[[FunctionTurn], Awaitable[Any]], name: str = "function") -> None:
        self.run = run
        self.name = name

    def registered_as(self, name: str) -> None:
        """Take the name that the App uses.

        >>> TurnFunction(print).registered_as("support")
        """
        self.name = name

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        """Refuse a model call outside the function, such as a summary.

        >>> [piece async for piece in TurnFunction(print).stream(None)]
        Traceback (most recent call last):
        antiphon.errors.ProviderRejected: A function runs the turns of 'function', so it cannot be called as a model.
        """
        raise ProviderRejected(
            f"A function runs the turns of {self.name!r}, so it cannot be called as a model."
        )
        yield

    async def aclose(self) -> None:
        """Do nothing: there are no connections.

        >>> await TurnFunction(print).aclose()
        """
