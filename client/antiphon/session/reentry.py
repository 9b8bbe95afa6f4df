"""Detects calls that would deadlock because they wait for the turn that they are part of.

The runtime marks the code of a turn's tools, and an event stream marks the code that reads it. The marks are context
variables, so they also apply to tasks, to the threads of tools and to the background loop.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from antiphon.errors import UsageError
from antiphon.events import Event

__all__ = ["Reading", "own_turns", "turns_read_here", "waits_for_its_reader", "waits_for_itself", "within"]


class _Mark:
    """A turn that the code belongs to. Not active after the turn has ended, even in tasks that a tool left running."""

    __slots__ = ("active", "session_id", "turn_id")

    def __init__(self, session_id: str, turn_id: str) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self.active = True


_marks: ContextVar[tuple[_Mark, ...]] = ContextVar("antiphon_within", default=())


@contextmanager
def within(session_id: str, turn_id: str) -> Generator[None]:
    """Mark the code in this block as part of the turn."""
    mark = _Mark(session_id, turn_id)
    token = _marks.set((*_marks.get(), mark))
    try:
        yield
    finally:
        mark.active = False
        _marks.reset(token)


def own_turns(session_id: str) -> set[str]:
    """Return the turns of a session that the running code is part of.

    Turn ids are unique everywhere; session ids only within one Redis or one process.
    """
    return {mark.turn_id for mark in _marks.get() if mark.active and mark.session_id == session_id}


class Reading:
    """The reader of a turn's events. It is handling an event until it requests the next one."""

    __slots__ = ("turn_id",)

    def __init__(self) -> None:
        self.turn_id = ""  # set while an event of an unfinished turn is being handled

    def given(self, event: Event) -> Event:
        """Note that the event is being handled, and return it."""
        self.turn_id = "" if event.terminal else event.turn_id
        others = (one for one in _reading.get() if one.turn_id and one is not self)
        _reading.set((*others, self))
        return event

    def asks(self) -> None:
        """Note that the reader has handled its event, or has left the stream."""
        self.turn_id = ""


_reading: ContextVar[tuple[Reading, ...]] = ContextVar("antiphon_reading", default=())


def turns_read_here() -> set[str]:
    """Return the turns whose events the running code is handling. They may wait until it requests the next event."""
    return {one.turn_id for one in _reading.get() if one.turn_id}


def waits_for_its_reader(session_id: str) -> UsageError:
    """Return the error for a call that would wait for the turn whose events the caller is reading."""
    return UsageError(
        "This call would deadlock: it would wait for the turn whose events you are reading. Call it when "
        "event.terminal is true, or after the loop.",
        session_id=session_id,
    )


def waits_for_itself(session_id: str) -> UsageError:
    """Return the error for a call that would wait for its own turn."""
    return UsageError(
        "This call would wait for the turn that it is part of. In a tool, return the result (also a child's answer), "
        "change the session through the tool's Context, or use a separate session: session.child().",
        session_id=session_id,
    )
