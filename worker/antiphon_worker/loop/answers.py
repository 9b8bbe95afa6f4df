"""Checks the answers of models: their size and their types."""

from __future__ import annotations

import msgspec

from antiphon.errors import TurnFailed
from antiphon.ext.turns import ModelAnswer
from antiphon.input.limits import check_depth, check_size
from antiphon.model import Item, Message, ToolCall
from antiphon_worker.providers.base import StepResult


def check_answer(message: Message) -> None:
    """Raise ``LimitReached`` for an answer that is too large to keep, or asks for too many or too large calls.

    >>> check_answer(Message.assistant("Hello"))
    """
    calls = 0
    for part in message.parts:
        match part:
            case ToolCall():
                calls += 1
                _check_call(part)
            case Item():
                check_depth(part.item, "An item in the model's answer")
            case _:
                pass
    if calls:
        check_size("answer_calls", calls, "The tool calls of the model's answer")
    check_size("answer_bytes", len(msgspec.json.encode(message)), "The model's answer in bytes")


def _check_call(call: ToolCall) -> None:
    check_depth([call.arguments, call.item], "The arguments of a tool call")
    check_size("call_bytes", len(msgspec.json.encode(call)), "A tool call of the model in bytes")


def check_form(answer: StepResult | ModelAnswer) -> None:
    """Raise ``TurnFailed`` for an answer whose JSON would be unreadable."""
    try:
        msgspec.json.decode(msgspec.json.encode(answer), type=type(answer))
    except msgspec.ValidationError as exc:
        raise TurnFailed(
            f"A provider or function of the App returned an invalid answer: {exc}.",
            code="internal_error",
        ) from exc
