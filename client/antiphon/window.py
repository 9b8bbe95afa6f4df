"""Selects the part of a long history that the model receives. The stored history stays complete.

A window drops whole turns from the start of the history, so that a tool call is never separated from its result. It
moves in leaps: when the limit is exceeded, it drops turns until three quarters of the limit are left, and then stays
in place until the limit is exceeded again. Between two leaps all requests begin with the same messages, so that the
model services can use their caches.

A ``Summary`` lets the model summarise the dropped turns. It leaps further, because each leap costs a model call. The
summary is sent as the first message. At the next leap a new summary replaces it.

The functions of this module are pure. ``start``, the previous start of the window, is optional: computing it from the
whole history gives the same result if only estimates are used.
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
# Limits for correcting the estimate by a provider's count. A count outside them does not describe the same messages.
LEAST_CORRECTION, MOST_CORRECTION = 0.25, 4.0


class Window(Struct, frozen=True, omit_defaults=True):
    """Limits the history that the model receives to the last ``turns``, or to ``tokens`` of input.

    If both are given, the stricter limit applies. Without limits the whole history is sent. The last turn and the new
    input are always sent.

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
    instructions: str | None = field(default=None, name="summary")  # None: dropped turns are not summarised

    def __post_init__(self) -> None:
        if self.instructions is not None and self.turns is None and self.tokens is None:
            raise UsageError("A Summary needs a limit: give Summary(tokens=…) or Summary(turns=…).")
        for name in ("turns", "tokens"):
            limit = getattr(self, name)
            if limit is not None and not isinstance(limit, int):
                raise UsageError(f"{name}= must be a whole number, not {limit!r}.")
            if limit is not None and limit < 1:
                raise UsageError(
                    f"A window of {limit} {name} sends nothing: use at least 1, or None for no limit."
                )


class Summary(Window, frozen=True, kw_only=True, omit_defaults=False):
    """A window that lets the session's own model summarise the older turns when the limit is exceeded.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", window=Summary(tokens=60))
    >>> session = agent.session()
    >>> for city in ("Tokyo", "Kyoto", "Osaka", "Nara"):
    ...     response = session.run(f"I want to see {city}, its gardens and its temples.")
    >>> session.to_dict()["summary"]["messages"], len(session.messages)
    (4, 8)

    The model receives the summary and the turns after it. The stored history stays complete. ``instructions`` are
    added to the request for the summary, such as ``"Keep all order numbers."``. A summary costs one more model call
    before the answer, which counts in the ``usage`` of the turn's response. It is saved when the turn finishes; if the
    turn is retried before its first tool call, it is written again. If the call fails, the turn continues with the
    messages that a ``Window`` would send.
    """

    turns: int | None = None
    tokens: int | None = None
    instructions: str = field(default="", name="summary")


class SavedSummary(Struct):
    """A stored summary of the first ``messages`` messages of a session's history."""

    messages: Annotated[int, Meta(ge=1)]
    text: str

    @property
    def message(self) -> Message:
        """The message that the model receives in place of the summarised ones."""
        return Message.user(f"A summary of our conversation so far:\n\n{self.text}")

    def to_field(self) -> bytes:
        """Return the form that Redis stores. It begins with the number, which scripts read."""
        return f"{self.messages}:{self.text}".encode()

    @classmethod
    def from_field(cls, data: bytes | None) -> SavedSummary | None:
        """Read the form that ``to_field`` returned; without data, return None. Raises ``CorruptRecord``."""
        if not data:
            return None
        try:
            messages, _, text = data.decode().partition(":")
            return cls(int(messages), text)
        except ValueError as exc:
            raise CorruptRecord(f"The stored summary of a session cannot be read: {exc}.") from exc


EVERYTHING = Window()


def window_of(value: int | Window | None) -> Window:
    """Convert an agent's ``window=``: a number is that many turns, None is no limit.

    Raises ``UsageError`` for other values.
    """
    match value:
        case None:
            return EVERYTHING
        case Window():
            return value
        case int() if not isinstance(value, bool):
            return Window(turns=value)
        case _:
            raise UsageError(f"window= must be a number of turns, a Window or a Summary, not {value!r}.")


def window_start(
    history: Sequence[Message],
    window: Window,
    *,
    new: Sequence[Message] = (),
    start: int = 0,
    reported: int | None = None,
) -> int:
    """Return the index of the first message of the history that is sent.

    ``start`` is the start of the window in the last model call. ``reported`` is the number of tokens, input and
    output, that the provider counted for that call; then only the tokens of ``new`` are estimated.
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
    """Return the indexes where turns begin: at each input that follows an answer and has another turn id."""
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
    """Return the first turn of the window for the last turn, by replaying all turns in order.

    ``costs`` contains the tokens of the input and of the rest of each turn, or counts the turns.
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
    """Return three quarters of the limit, or all if it is small (``turns=3`` sends three); half with a summary."""
    if window.instructions is not None:
        return max(int(turns * SHARE_AFTER_SUMMARY), 1)
    return turns - max(turns // 4 - 1, 0)


def _tokens_after_leap(window: Window, tokens: int) -> float:
    return tokens * (SHARE_AFTER_LEAP if window.instructions is None else SHARE_AFTER_SUMMARY)


def _token_costs(turns: Sequence[Sequence[Message]], reported: int | None) -> list[tuple[float, float]]:
    """Estimate the input and output tokens per turn, scaled to the sum that the provider counted."""
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
    """Estimate the tokens of the messages from their size, without a tokenizer."""
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
    """Estimate the tokens of a text from its size."""
    return -(-byte_size(text) // BYTES_PER_TOKEN)


def byte_size(text: str) -> int:
    """Return how many bytes a text has."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
