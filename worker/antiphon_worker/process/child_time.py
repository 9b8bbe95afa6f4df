"""How long child turns may take: none outlives the call, or the attempt of the turn above, that has begun it."""

from __future__ import annotations

import time

from antiphon.input.request import ParentTurn, TurnRequest
from antiphon.tools.children import ChildTool
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.loop.steps import ChildBegun
from antiphon_worker.process.budgets import Attempt

FIRST_WAIT, LONGEST_WAIT = 30.0, 3600.0
"""After how long a parent looks at a child that has sent nothing: first, and at most."""
FOREVER = float("inf")


def is_limited(tool: ChildTool, request: TurnRequest) -> bool:
    """Return whether a child of this call, in a turn with this request, has a time limit."""
    above = request.parent is not None and request.parent.seconds is not None
    return above or bool(request.timeout) or tool.wait_seconds is not None


def call_seconds(tool: ChildTool, attempt: Attempt, now: int) -> float | None:
    """Return how long a child may take that is begun ``now`` (ms, by the clock of Redis). None: for ever.

    The time of the turn that begins it counts only if its caller has limited it: the worker's own limit is one for
    the time in which it holds a turn.
    """
    found = [] if tool.wait_seconds is None else [tool.wait_seconds]
    if attempt.request.timeout:
        found.append(min(attempt.request.timeout, attempt.seconds) - (time.monotonic() - attempt.began))
    if attempt.request.parent is not None:
        found.append(left_of_child(attempt.request.parent, attempt.turn, now))
    least = min(found, default=FOREVER)
    return None if least == FOREVER else max(least, 0.0)


def left_of_child(parent: ParentTurn, turn: ClaimedTurn, now: int) -> float:
    """Return how many seconds a child has left ``now`` (ms), also if the clock of Redis was put back since."""
    if parent.seconds is None:
        return FOREVER
    return parent.seconds - max(now - turn.created, 0) / 1000


class ChildWaits:
    """The waits of a call for its child, which are the same whenever the call is repeated.

    What was waited counts, and not only the time: the clock of Redis may have been put back since.
    """

    def __init__(self, begun: ChildBegun) -> None:
        self._until = begun.until
        self._left = FOREVER if begun.seconds is None else begun.seconds
        self._pause = FIRST_WAIT

    def next(self, now: int) -> float:
        """Return for how many seconds to wait before the child is looked at; 0 or less when its time is over."""
        by_clock = FOREVER if self._until is None else (self._until - now) / 1000
        return min(self._pause, self._left, by_clock)

    def waited(self) -> None:
        """Note that a wait was waited to its end."""
        self._left -= min(self._pause, self._left)
        self._pause = min(self._pause * 2, LONGEST_WAIT)
