"""Which turns the running code is part of: a call that waits for one of them would wait for itself.

Whoever runs a turn marks the code of its tools. The mark goes with the context: into tasks, into the threads of tools,
and to the background loop.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from antiphon.errors import UsageError

__all__ = ["own_turns", "waits_for_itself", "within"]


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


def waits_for_itself(session_id: str) -> UsageError:
    """What is raised instead of waiting for one's own turn."""
    return UsageError(
        "This call would wait for the turn that it is part of: a tool returns what its turn is to know (a child's "
        "answer too), changes its session through its Context, or works in a session of its own (session.child()).",
        session_id=session_id,
    )
