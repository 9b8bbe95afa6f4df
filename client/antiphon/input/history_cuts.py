"""Finds where a history may be cut: at a message that a caller names, or at its last question."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.errors import MessageNotFound, UsageError
from antiphon.events import HistoryRewound
from antiphon.input.request import LAST_ANSWER
from antiphon.input.values import is_a
from antiphon.model import Message

MOST_DIGITS = 9  # in the number of a step


class Revision(Struct):
    """The part of a history that a turn replaces.

    The first ``kept`` of its ``length`` messages stay; ``last`` is the id of the last of them. The model receives the
    messages before index ``before``, and then the ``question``, which stays in the history.
    """

    kept: int
    length: int
    last: str
    before: int
    question: Sequence[Message]

    @property
    def event(self) -> HistoryRewound | None:
        """Return the event for subscribers, or None if nothing is removed."""
        return HistoryRewound(message_id=self.last, kept=self.kept) if self.kept < self.length else None


def revision_of(messages: Sequence[Message], revises: str, start: int = 0) -> Revision:
    """Find what a turn revises, in the messages of a history from index ``start`` on.

    Raises ``MessageNotFound``, and ``UsageError`` if the message is not a user's.
    """
    if revises == LAST_ANSWER:
        before, kept = _last_question(messages)
    else:
        before = kept = _kept_before(messages, revises)
    last = messages[kept - 1].id or "" if kept else ""
    return Revision(start + kept, start + len(messages), last, start + before, messages[before:kept])


def kept_behind(messages: Sequence[Message], message_id: str) -> int:
    """Count the messages that stay if this message, or the end of this step (``step_id``), becomes the last.

    Raises ``MessageNotFound``, and ``UsageError`` if a tool call would lose its result.
    """
    turn, _, step = message_id.rpartition("#")
    is_step = turn and step.isdecimal() and len(step) <= MOST_DIGITS
    index = _end_of_step(messages, turn, int(step)) if is_step else _index(messages, message_id)
    if not _may_end(messages, index):
        ends = [
            next((messages[i].id for i in indexes if _may_end(messages, i)), None)
            for indexes in (range(index - 1, -1, -1), range(index + 1, len(messages)))
        ]
        usable = " or ".join(repr(end) for end in ends if end)
        raise UsageError(
            f"The message {message_id!r} is inside a tool exchange, and a tool call must keep its result: use {usable}."
        )
    return index + 1


def step_id(turn_id: str, step: int) -> str:
    """Return the id of a step of a turn: its model call with this number, from 1, with the results of its tool calls.

    Raises ``UsageError``.

    >>> step_id("3fd30542fec17ac25df3953d9e762c6c", 2)
    '3fd30542fec17ac25df3953d9e762c6c#2'
    """
    if not is_a(step, int) or isinstance(step, bool) or step < 1:
        raise UsageError(f"The number of a step must be a whole number of at least 1, not {step!r}.")
    return f"{turn_id}#{step}"


def _end_of_step(messages: Sequence[Message], turn: str, step: int) -> int:
    """Return the index of the last message of a step. Raises ``MessageNotFound``."""
    answers = [i for i, one in enumerate(messages) if one.turn_id == turn and one.role == "assistant"]
    if not 0 < step <= len(answers):
        raise MessageNotFound(
            f"The history has no step {step} of the turn {turn}: it has {len(answers)} of its steps."
        )
    index = answers[step - 1]
    while not _may_end(messages, index):
        index += 1
    return index


def shared_beginning(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Count the leading messages that both have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _kept_before(messages: Sequence[Message], message_id: str) -> int:
    """Count the messages before this user message. Raises ``MessageNotFound`` and ``UsageError``."""
    index = _index(messages, message_id)
    if messages[index].role != "user":
        asked = next((one.id for one in reversed(messages[:index]) if one.role == "user"), None)
        raise UsageError(
            f"The message {message_id!r} has the role {messages[index].role!r}, and only a user's can be edited"
            + (f": the one before it is {asked!r}." if asked else ".")
        )
    return index


def _last_question(messages: Sequence[Message]) -> tuple[int, int]:
    """Return the start and end of the last question: the last user message and the system messages after it.

    Raises ``MessageNotFound``.
    """
    start = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user"), None)
    if start is None:
        raise MessageNotFound("The history has no message of a user to answer again: run a turn first.")
    end = start + 1
    while end < len(messages) and messages[end].role in ("user", "system"):
        end += 1
    return start, end


def _index(messages: Sequence[Message], message_id: str) -> int:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].id == message_id:
            return index
    raise MessageNotFound(
        f"The history has no message with the id {message_id!r}: use the id of one of session.messages."
    )


def _may_end(messages: Sequence[Message], index: int) -> bool:
    return index + 1 == len(messages) or messages[index + 1].role != "tool"
