"""Which part of a long history a model is sent. The stored history stays whole.

A window leaves out whole turns from the front, so that a tool call never loses its result. It moves in leaps:
once the limit is passed, it leaves out as much as brings the rest down to three quarters of it, and then
stays where it is until the limit is passed again. Between two leaps every request begins with the same
messages, and the model services find them in their caches.

What a ``Summary`` leaves out is summed up by the model, and it leaps further, because each leap is a model call. Its
summary is the first message that is sent, and is left out with the turns after it when the next one takes its place.

Pure functions. Where the window began last time may be given (``start``) or not: from the whole history the
same place is found again, as long as nothing but estimates is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Annotated

from msgspec import Meta, Struct, field

from antiphon.errors import CorruptRecord, UsageError
from antiphon.model import File, Image, Message, Reasoning, Text, ToolCall, ToolResult

__all__ = [
    "SavedSummary",
    "Summary",
    "Window",
    "estimated_tokens",
    "turn_starts",
    "window_of",
    "window_start",
]

SHARE_AFTER_LEAP, SHARE_AFTER_SUMMARY = 0.75, 0.5
BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1_000
FILE_TOKENS = 3_000
# How far a provider's count may correct the estimate; beyond that, the count is of something else.
LEAST_CORRECTION, MOST_CORRECTION = 0.25, 4.0


class Window(Struct, frozen=True, omit_defaults=True):
    """How much of the history is sent: all of it, the last ``turns``, or what fits into ``tokens`` of input.

    With both limits the stricter one holds. The last turn and the new input are always sent.

    >>> from antiphon import Agent
    >>> from antiphon.testing import script
    >>> lines = script("One.", "Two.", "Three.")
    >>> session = Agent(provider=lines, model="any", window=Window(turns=1, tokens=50_000)).session()
    >>> responses = [session.run(text) for text in ("1", "2", "3")]
    >>> [message.text for message in lines.requests[-1].messages], len(session.messages)
    (['2', 'Two.', '3'], 6)
    """

    turns: int | None = None
    tokens: int | None = None
    instructions: str | None = field(default=None, name="summary")  # None: what is left out is not summed up

    def __post_init__(self) -> None:
        if self.instructions is not None and self.turns is None and self.tokens is None:
            raise UsageError("A summary needs to know when: give Summary(tokens=…) or Summary(turns=…).")
        for name in ("turns", "tokens"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise UsageError(
                    f"A window of {limit} {name} sends nothing: give at least 1, or None for all."
                )


class Summary(Window, frozen=True, kw_only=True, omit_defaults=False):
    """A window whose older turns are summed up by the session's own model when the limit is passed.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", window=Summary(tokens=60))
    >>> session = agent.session()
    >>> for city in ("Tokyo", "Kyoto", "Osaka", "Nara"):
    ...     response = session.run(f"I want to see {city}, its gardens and its temples.")
    >>> session.to_dict()["summary"]["messages"], len(session.messages)
    (4, 8)

    The model is sent the summary and the turns after it; the history stays whole. ``instructions`` are added to what
    the model is asked for, such as ``"Keep all order numbers."``. Writing a summary is one more model call before the
    answer, in the ``usage`` of the turn's response. It is kept together with the turn: one that does not finish is
    summed up again. Where that call fails the turn goes on, shown what ``Window`` would show.
    """

    turns: int | None = None
    tokens: int | None = None
    instructions: str = field(default="", name="summary")


class SavedSummary(Struct):
    """A session's summary: what the model wrote about the first ``messages`` messages of the history."""

    messages: Annotated[int, Meta(ge=1)]
    text: str

    @property
    def message(self) -> Message:
        """The summary as the model is shown it, in place of those messages."""
        return Message.user(f"A summary of our conversation so far:\n\n{self.text}")

    def to_field(self) -> bytes:
        """As a session in Redis keeps it; the number stands in front, where scripts read it."""
        return f"{self.messages}:{self.text}".encode()

    @classmethod
    def from_field(cls, data: bytes | None) -> SavedSummary | None:
        """What ``to_field`` gave; None where there is nothing. Raises ``CorruptRecord``."""
        if not data:
            return None
        try:
            messages, _, text = data.decode().partition(":")
            return cls(int(messages), text)
        except ValueError as exc:
            raise CorruptRecord(f"The summary of a session is not readable: {exc}.") from exc


EVERYTHING = Window()


def window_of(value: int | Window | None) -> Window:
    """The window that an agent's ``window=`` means: a number is that many turns, None is everything.

    Raises ``UsageError`` for anything else.
    """
    if value is None:
        return EVERYTHING
    if isinstance(value, bool) or not isinstance(value, int | Window):
        raise UsageError(f"window= is a number of turns, a Window or a Summary, not {value!r}.")
    return value if isinstance(value, Window) else Window(turns=value)


def window_start(
    history: Sequence[Message],
    window: Window,
    *,
    new: Sequence[Message] = (),
    start: int = 0,
    reported: int | None = None,
) -> int:
    """The index of the first message of the history that is sent.

    ``start`` is where the window began for the last model call, and ``reported`` the tokens that the provider
    counted for it, input and output: then only ``new`` is an estimate.
    """
    if window.turns is None and window.tokens is None:
        return 0
    starts = [index for index in turn_starts(history) if index > start]
    starts.insert(0, start)
    turns = [history[begin:end] for begin, end in pairwise([*starts, len(history)])]
    first = 0
    if window.turns is not None:
        costs = [(0.0, 1.0) for _ in turns]
        first = _first_turn([*costs, (0.0, 0.0)], window.turns, _turns_after_leap(window, window.turns))
    if window.tokens is not None:
        costs = [*_token_costs(turns, reported), (float(estimated_tokens(new)), 0.0)]
        first = max(first, _first_turn(costs, window.tokens, _tokens_after_leap(window, window.tokens)))
    return starts[first] if history else 0


def turn_starts(history: Sequence[Message]) -> list[int]:
    """Where turns begin: at what is said to the model after it has spoken, unless it belongs to the same
    turn."""
    starts: list[int] = []
    for index, message in enumerate(history):
        before = history[index - 1] if index else None
        if before is None or (
            _is_input(message) and not _is_input(before) and not _same_turn(before, message)
        ):
            starts.append(index)
    return starts


def _is_input(message: Message) -> bool:
    return message.role in ("user", "system")


def _same_turn(one: Message, other: Message) -> bool:
    return one.turn_id is not None and one.turn_id == other.turn_id


def _first_turn(costs: Sequence[tuple[float, float]], limit: float, after_leap: float) -> int:
    """The first turn of the window when the last one begins, found by going through the turns as they came.

    ``costs`` are what each turn asks and what the rest of it takes.
    """
    first, total = 0, 0.0
    for index, (asked, rest) in enumerate(costs):
        total += asked
        if total > limit:
            while first < index - 1 and total > after_leap:
                total -= sum(costs[first])
                first += 1
        total += rest
    return first


def _turns_after_leap(window: Window, turns: int) -> int:
    """All of them where they are few, so that a small number means what it says; three quarters of many."""
    if window.instructions is not None:
        return max(int(turns * SHARE_AFTER_SUMMARY), 1)
    return turns - max(turns // 4 - 1, 0)


def _tokens_after_leap(window: Window, tokens: int) -> float:
    return tokens * (SHARE_AFTER_LEAP if window.instructions is None else SHARE_AFTER_SUMMARY)


def _token_costs(turns: Sequence[Sequence[Message]], reported: int | None) -> list[tuple[float, float]]:
    """Tokens per turn, asked and answered: estimated, and brought to the sum that the provider has
    counted."""
    estimates: list[tuple[float, float]] = []
    for turn in turns:
        asked = list(takewhile(_is_input, turn))
        estimates.append((float(estimated_tokens(asked)), float(estimated_tokens(turn[len(asked) :]))))
    total = sum(asked + rest for asked, rest in estimates)
    if not reported or not total:
        return estimates
    correction = min(max(reported / total, LEAST_CORRECTION), MOST_CORRECTION)
    return [(asked * correction, rest * correction) for asked, rest in estimates]


def estimated_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens the messages take, without asking anybody."""
    return sum(MESSAGE_TOKENS + sum(_part_tokens(part) for part in message.parts) for message in messages)


def _part_tokens(part: object) -> int:
    match part:
        case Text(text=text) | Reasoning(text=text):
            return _text_tokens(text)
        case ToolCall(name=name):
            return _text_tokens(name) + _text_tokens(part.arguments_text)
        case ToolResult(content=str(text)):
            return _text_tokens(text)
        case ToolResult(content=list(parts)):
            return sum(_part_tokens(each) for each in parts)
        case Image():
            return IMAGE_TOKENS
        case File():
            return FILE_TOKENS
        case _:
            return _text_tokens(str(part))


def _text_tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // BYTES_PER_TOKEN)
