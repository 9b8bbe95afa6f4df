"""Answers of a front end to a suspended turn: approvals, rejections and results of client-side tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct

from antiphon.errors import AlreadyDecided, NotSuspended
from antiphon.events import Event, TurnSuspended
from antiphon.model import OpenCall
from antiphon.redis.turn import AsyncTurn


class Answer(Struct):
    """An answer about one call: ``value`` is the reason of a rejection, the arguments of an approval, or the result."""

    call_id: str
    kind: Literal["approve", "reject", "result"]
    value: Any = None
    is_error: bool = False


async def give(turn: AsyncTurn, answers: Iterable[Answer], by: str) -> set[str]:
    """Decide about the calls that the turn waits for, and return the ids of those of its last suspension.

    A repeated request decides once. Answers about other calls, such as those of earlier steps, are ignored.
    """
    info, given = await turn.info(), list(answers)
    waiting = {call.call_id: call for call in info.calls}
    for one in given:
        if one.call_id in waiting:
            with suppress(AlreadyDecided, NotSuspended):  # another request or a time limit was quicker
                await _decide(turn, one, by)
    last = waiting.keys() | {one.call_id for one in info.decisions}
    named = {one.call_id for one in given}
    return named & last or named


async def _decide(turn: AsyncTurn, one: Answer, by: str) -> None:
    match one.kind:
        case "approve":
            await turn.approve(one.call_id, by=by, arguments=one.value)
        case "reject":
            await turn.reject(one.call_id, by=by, reason=one.value)
        case "result":
            await turn.tool_result(one.call_id, one.value, is_error=one.is_error, by=by)


async def still_open(turn: AsyncTurn, event: TurnSuspended) -> list[OpenCall]:
    """Return the pending calls of this suspension, or none after the turn has continued."""
    calls = {call.call_id for call in event.calls}
    return [call for call in (await turn.info()).calls if call.call_id in calls]


async def behind_suspension(events: AsyncIterator[Event], calls: Collection[str]) -> AsyncIterator[Event]:
    """Yield the events after the turn waited for these calls, or all events without calls."""
    passed = not calls
    async for event in events:
        if passed:
            yield event
        elif isinstance(event, TurnSuspended):
            passed = any(call.call_id in calls for call in event.calls)
