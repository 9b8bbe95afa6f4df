"""Which turns the running code is part of, or reads: a call that waits for one of them would wait for itself.

Whoever runs a turn marks the code of its tools, and a stream of events its reader. The mark goes with the context:
into tasks, into the threads of tools, and to the background loop.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from antiphon.errors import UsageError
from antiphon.events import Event

__all__ = ["Reading", "own_turns", "turns_read_here", "waits_for_its_reader", "waits_for_itself", "within"]


class _Mark:
    """One turn; no longer active when it has ended, whatever task of a tool is left behind."""

    __slots__ = ("active", "session_id", "turn_id")

    def __init__(self, session_id: str, turn_id: str) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self.active = True


_marks: ContextVar[tuple[_Mark, ...]] = ContextVar("antiphon_within", default=())


@contextmanager
def within(session_id: str, turn_id: str) -> Generator[None]:
    """Mark what runs here as part of this turn."""
    mark = _Mark(session_id, turn_id)
    token = _marks.set((*_marks.get(), mark))
    try:
        yield
    finally:
        mark.active = False
        _marks.reset(token)


def own_turns(session_id: str) -> set[str]:
    """The turns of a session that the running code is part of. Ids of sessions are those of one Redis or process,
    ids of turns are everybody's."""
    return {mark.turn_id for mark in _marks.get() if mark.active and mark.session_id == session_id}


class Reading:
    """Code that reads the events of a turn which it owns. It is at work on one until it asks for the next."""

    __slots__ = ("turn_id",)

    def __init__(self) -> None:
        self.turn_id = ""  # while it is at work on an event of a turn that goes on

    def given(self, event: Event) -> Event:
        """The event, to hand to the running code."""
        self.turn_id = "" if event.terminal else event.turn_id
        others = (one for one in _reading.get() if one.turn_id and one is not self)
        _reading.set((*others, self))
        return event

    def asks(self) -> None:
        """It has done with the event that it was given, or has left."""
        self.turn_id = ""


_reading: ContextVar[tuple[Reading, ...]] = ContextVar("antiphon_reading", default=())


def turns_read_here() -> set[str]:
    """The turns an event of which the running code is at work on: they may wait until it asks for the next."""
    return {one.turn_id for one in _reading.get() if one.turn_id}


def waits_for_its_reader(session_id: str) -> UsageError:
    """What is raised instead of waiting for a turn that waits for its reader."""
    return UsageError(
        "This call would wait for the turn whose events are being read here, which waits for its reader: call when "
        "event.terminal is true or after the loop, or leave the loop before.",
        session_id=session_id,
    )


def waits_for_itself(session_id: str) -> UsageError:
    """What is raised instead of waiting for one's own turn."""
    return UsageError(
        "This call would wait for the turn that it is part of: a tool returns what its turn is to know (a child's "
        "answer too), changes its session through its Context, or works in a session of its own (session.child()).",
        session_id=session_id,
    )
