"""Hooks: functions of an App or Agent that run before and after turns, model calls, tool calls and steps.

A hook runs at the moment that its parameter is annotated with. It returns nothing, or what should happen instead:

>>> from antiphon import Agent, tool
>>> from antiphon.hooks import Ask, Replace, ToolEnd, ToolStart
>>> def large_refunds(call: ToolStart) -> Ask | None:
...     return Ask() if call.name == "refund" and call.arguments["cents"] > 10_000 else None
>>> def no_card_numbers(call: ToolEnd) -> Replace:
...     return Replace(result=call.result.replace("4111 1111 1111 1111", "[card]"))
>>> @tool
... def refund(cents: int) -> str:
...     "Refund an order to card 4111 1111 1111 1111."
...     return "Refunded to 4111 1111 1111 1111."
>>> agent = Agent("scripted", "any", tools=[refund], hooks=[large_refunds, no_card_numbers])
>>> [hook.name for hook in agent.hooks]
['large_refunds', 'no_card_numbers']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.values import duration
from antiphon.model import Message, ToolOutcome, Usage
from antiphon.tools import Context

__all__ = [
    "Answer",
    "Ask",
    "Block",
    "Hook",
    "ModelEnd",
    "ModelStart",
    "Moment",
    "Replace",
    "StepEnd",
    "StepStart",
    "ToolEnd",
    "ToolStart",
    "TurnEnd",
    "TurnFailure",
    "TurnStart",
    "hook",
]

SECONDS = 30.0


class Block(Struct, frozen=True):
    """Stop here. The caller, the model or the code receives ``reason``.

    A blocked turn or model call fails the turn with the code ``blocked``. A blocked tool call has the reason as its
    error result. A blocked step raises ``StepFailed``.

    >>> Block("This account is closed.").reason
    'This account is closed.'
    """

    reason: str


class Answer(Struct, frozen=True):
    """Use this text as the answer of the model, or as the result of the tool, without calling it.

    >>> Answer("I can only help with orders.").text
    'I can only help with orders.'
    """

    text: str


class Ask(Struct, frozen=True):
    """Make the tool call wait until a person has approved it, like a call of a tool with ``approval=True``.

    >>> Ask() == Ask()
    True
    """


class Replace:
    """Continue with other values: the keywords are attributes that hooks may replace at this moment.

    >>> Replace(arguments={"cents": 100}).changes
    {'arguments': {'cents': 100}}
    """

    def __init__(self, **changes: Any) -> None:
        self.changes = changes


class Moment(Struct, frozen=True):
    """When a hook runs. ``context`` has the session, the turn and a copy of the variables; ``agent`` names the agent.

    >>> StepStart(Context("user-123", "turn-1"), "support", "charge").agent
    'support'
    """

    context: Context
    agent: str | None

    replaces: ClassVar[tuple[str, ...]] = ()
    verdicts: ClassVar[tuple[type, ...]] = (Block,)


class TurnStart(Moment, frozen=True):
    """A turn begins. ``input`` contains the new messages; a hook may replace them with text or messages.

    >>> TurnStart(Context(), None, [Message.user("Hello")]).text
    'Hello'
    """

    input: list[Message]

    replaces: ClassVar[tuple[str, ...]] = ("input",)

    @property
    def text(self) -> str:
        """The text of the input.

        >>> TurnStart(Context(), None, [Message.user("Hello"), Message.user("again")]).text
        'Hello\\nagain'
        """
        return "\n".join(message.text for message in self.input)


class TurnEnd(Moment, frozen=True):
    """A turn has its answer: ``text``, and ``output`` if it has a schema. A hook may block it.

    >>> TurnEnd(Context(), None, "Hello", None, [], Usage()).text
    'Hello'
    """

    text: str
    output: Any
    tool_calls: list[ToolOutcome]
    usage: Usage


class TurnFailure(Moment, frozen=True):
    """A turn is about to fail with this ``code`` and ``error``, as readers see them. A hook can only observe it.

    If the worker dies before the failure is stored, the turn runs again, and a new failure runs the hook again.

    >>> TurnFailure(Context(), None, "provider_rejected", "The request is too large.").code
    'provider_rejected'
    """

    code: str
    error: str

    verdicts: ClassVar[tuple[type, ...]] = ()


class ModelStart(Moment, frozen=True):
    """A model is about to be called with ``messages``, for the step with this number; 0 is a summary of the history.

    A hook may replace ``model`` with another one of the same service, and ``system``, ``messages`` and ``params``.

    >>> ModelStart(Context(), None, 1, "any", None, [Message.user("Hello")], {}).messages[-1].text
    'Hello'
    """

    step: int
    model: str
    system: str | None
    messages: list[Message]
    params: dict[str, Any]

    replaces: ClassVar[tuple[str, ...]] = ("model", "system", "messages", "params")
    verdicts: ClassVar[tuple[type, ...]] = (Block, Answer)


class ModelEnd(Moment, frozen=True):
    """A model has answered with ``text``, which a hook may replace, and may have called tools (``message.tool_calls``).

    >>> ModelEnd(Context(), None, 1, "any", "Hello", Message.assistant("Hello"), Usage()).text
    'Hello'
    """

    step: int
    model: str
    text: str
    message: Message
    usage: Usage

    replaces: ClassVar[tuple[str, ...]] = ("text",)


class ToolStart(Moment, frozen=True):
    """A tool is about to be called. A hook may replace its ``arguments``, answer for it, or ask a person.

    >>> ToolStart(Context(), None, "refund", {"cents": 100}).arguments
    {'cents': 100}
    """

    name: str
    arguments: dict[str, Any]

    replaces: ClassVar[tuple[str, ...]] = ("arguments",)
    verdicts: ClassVar[tuple[type, ...]] = (Block, Answer, Ask)


class ToolEnd(Moment, frozen=True):
    """A tool call has a ``result``, perhaps from a person or the client. A hook may replace the result.

    >>> ToolEnd(Context(), None, "refund", {"cents": 100}, "Refunded.", False).is_error
    False
    """

    name: str
    arguments: dict[str, Any]
    result: str
    is_error: bool

    replaces: ClassVar[tuple[str, ...]] = ("result",)


class StepStart(Moment, frozen=True):
    """A durable step (``context.step``) with this name is about to run.

    >>> StepStart(Context(), None, "charge").name
    'charge'
    """

    name: str


class StepEnd(Moment, frozen=True):
    """A durable step has returned ``value``, which a hook may replace, or has failed with ``error``.

    >>> StepEnd(Context(), None, "charge", {"paid": 17}, "").value
    {'paid': 17}
    """

    name: str
    value: Any
    error: str

    replaces: ClassVar[tuple[str, ...]] = ("value",)


MOMENTS = (TurnStart, TurnEnd, TurnFailure, ModelStart, ModelEnd, ToolStart, ToolEnd, StepStart, StepEnd)
Verdict: TypeAlias = Block | Answer | Ask | Replace
OnError: TypeAlias = Literal["block", "continue"]
M = TypeVar("M", bound=Moment)
Function: TypeAlias = Callable[[M], Any]


class Hook(Generic[M]):
    """A hook with its options, as ``hook`` returns it. It can be called like the function.

    >>> def audit(call: ToolStart) -> None:
    ...     print(call.name)
    >>> Hook(audit, timeout=5, on_error="continue").moments
    (<class 'antiphon.hooks.ToolStart'>,)
    """

    def __init__(
        self, function: Function[M], *, timeout: float | timedelta = SECONDS, on_error: OnError = "block",
        hold: bool = False,
    ) -> None:  # fmt: skip
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.moments = _moments_of(function, self.name)
        seconds = duration(timeout, f"timeout= of the hook {self.name}")
        if seconds is None:
            raise UsageError(f"timeout= of the hook {self.name} must be a number of seconds, not None.")
        self.seconds = seconds
        if on_error not in get_args(OnError):
            raise UsageError(
                f'on_error= of the hook {self.name} must be "block" or "continue", not {on_error!r}.'
            )
        if hold and ModelEnd not in self.moments:
            raise UsageError(f"hold= of the hook {self.name} is only for hooks that take a ModelEnd.")
        self.on_error, self.hold = on_error, hold

    def __call__(self, moment: M) -> Any:
        """Call the function itself.

        >>> Hook(large_refunds)(ToolStart(Context(), None, "refund", {"cents": 20_000}))
        Ask()
        """
        return self.function(moment)


@overload
def hook(function: Function[M]) -> Hook[M]: ...
@overload
def hook(
    *, timeout: float | timedelta = ..., on_error: OnError = ..., hold: bool = ...
) -> Callable[[Function[M]], Hook[M]]: ...
def hook(
    function: Function[Any] | None = None, *, timeout: float | timedelta = SECONDS, on_error: OnError = "block",
    hold: bool = False,
) -> Any:  # fmt: skip
    """Give a hook options. Without options, pass the plain function to ``hooks=``.

    ``timeout`` is in seconds. ``on_error`` is what happens if the hook raises, takes longer, or returns something that
    the moment does not allow: ``"block"`` as ``Block`` would, or ``"continue"`` as if it had returned nothing. With
    ``hold``, for hooks that take a ``ModelEnd``, an answer is streamed after the hook has accepted all of it; otherwise
    it is streamed as it arrives, and withdrawn if the hook blocks or replaces it. Raises ``UsageError``.

    >>> @hook(timeout=5, on_error="continue")
    ... def audit(call: ToolStart) -> None:
    ...     print("call of", call.name)
    >>> audit(ToolStart(Context(), None, "refund", {}))
    call of refund
    """
    if function is not None:
        return Hook(function, timeout=timeout, on_error=on_error, hold=hold)
    return partial(Hook, timeout=timeout, on_error=on_error, hold=hold)


def hooks_of(given: Any) -> list[Hook[Any]]:
    """Return the hooks of an App or Agent. Raises ``UsageError`` for anything but hooks and functions."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UsageError(f"hooks= must be a list of functions, not {given!r}.")
    return [one if isinstance(one, Hook) else Hook(one) for one in cast("Iterable[Any]", given)]


def _moments_of(function: Any, name: str) -> tuple[type[Moment], ...]:
    """Return the moments in the annotation of the function's first parameter."""
    if not callable(function):
        raise UsageError(f"hooks= must be a list of functions, not of {function!r}.")
    code = function if inspect.isroutine(function) else type(function).__call__
    try:
        first = next(iter(inspect.signature(function).parameters), "")
        asked = get_type_hints(code).get(first)
    except (NameError, TypeError, ValueError) as exc:
        raise UsageError(f"The annotations of the hook {name} cannot be read: {exc}.") from exc
    found = get_args(asked) or (asked,)
    if not all(one in MOMENTS for one in found):
        raise UsageError(
            f"The first parameter of the hook {name} must be annotated with when it runs: "
            f"{', '.join(one.__name__ for one in MOMENTS)}."
        )
    return cast("tuple[type[Moment], ...]", found)
