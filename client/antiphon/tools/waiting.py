"""Tools that let a model itself sleep or wait for an event, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from antiphon.errors import EventTimeout, InvalidTool, UsageError
from antiphon.input.ids import event_name
from antiphon.tools.context import Context
from antiphon.tools.durable import seconds_of_duration
from antiphon.tools.functions import Tool


def sleep(*, max: timedelta | float) -> Tool[Any, Any]:  # noqa: A002 - it reads well at the call
    """Return a tool that lets a model put its turn to sleep, for at most ``max`` (a ``timedelta`` or seconds).

    The turn is suspended as in ``Context.sleep``. A model that asks for a longer sleep receives an error with the
    bound. Raises ``InvalidTool`` if ``max`` is not from 1 second to 30 days.

    >>> sleep(max=timedelta(hours=8)).name
    'sleep'
    """
    most = _bound(max)

    async def run(seconds: float, context: Context) -> str:
        if not 0 < seconds <= most:
            raise UsageError(f"seconds must be above 0 and at most {most:g}.")
        await context.sleep(seconds)
        return f"{seconds:g} seconds have passed."

    text = f"Do nothing for a time, and continue then. The longest time is {most:g} seconds."
    return Tool(run, name="sleep", description=text)


def wait_for_event(*, names: Sequence[str], max: timedelta | float) -> Tool[Any, Any]:  # noqa: A002
    """Return a tool that lets a model wait for one of these events, for at most ``max`` (as in ``sleep``).

    A name may end with ``*``: the model then chooses the event with this beginning. The result is the event's
    data, or a sentence that none arrived. Raises ``InvalidTool`` for a name that no event can have.

    >>> wait_for_event(names=["payment:*"], max=3600).name
    'wait_for_event'
    """
    most, known = _bound(max), list(names)
    if not known:
        raise InvalidTool("names= must contain at least one name of an event.")
    for name in known:
        event_name(name.removesuffix("*") or "any")

    async def run(name: str, seconds: float, context: Context) -> Any:
        if not any(name.startswith(one[:-1]) if one[-1:] == "*" else name == one for one in known):
            raise UsageError(f"name must be one of {', '.join(known)}.")
        if not 0 < seconds <= most:
            raise UsageError(f"seconds must be above 0 and at most {most:g}.")
        try:
            return {"received": await context.wait_for_event(name, timeout=seconds)}
        except EventTimeout as exc:
            return exc.message

    text = (
        f"Wait until an event happens. Events: {', '.join(known)}; * stands for any end. "
        f"The longest time is {most:g} seconds."
    )
    return Tool(run, name="wait_for_event", description=text)


def _bound(longest: object) -> float:
    try:
        seconds = seconds_of_duration(longest)
    except UsageError:
        seconds = 0.0
    if seconds < 1:
        raise InvalidTool(f"max= must be a timedelta or seconds, from 1 second to 30 days, not {longest!r}.")
    return seconds
