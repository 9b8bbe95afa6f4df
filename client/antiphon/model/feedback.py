"""Feedback about a turn, and the figures of a revision's turns."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from antiphon.errors import UsageError

MOST_NOTE = 4000


class Feedback(Struct, omit_defaults=True, frozen=True):
    """A rating of a turn: a ``score`` from -1 (bad) to 1 (good), optionally with a ``note`` and its author (``by``).

    ``at`` is the time of the rating, in ms since 1970, by the clock of Redis.
    """

    score: float
    note: str | None = None
    by: str | None = None
    at: int = 0


class Figures(Struct, omit_defaults=True):
    """Totals of a revision's turns that ended in the last weeks.

    ``seconds`` counts their last attempts only, ``tokens`` the whole turns; ``cost`` is in US dollars. ``rated`` is
    the number of turns with feedback, and ``scores`` the sum of their scores.
    """

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    rated: int = 0
    scores: float = 0.0

    @property
    def turns(self) -> int:
        """The number of turns that have ended.

        >>> Figures(finished=8, failed=2).turns
        10
        """
        return self.finished + self.failed + self.cancelled

    @property
    def mean_seconds(self) -> float | None:
        """The mean duration of a turn's last attempt, in seconds; None without turns.

        >>> Figures(finished=4, seconds=2.0).mean_seconds
        0.5
        """
        return self.seconds / self.turns if self.turns else None

    @property
    def score(self) -> float | None:
        """The mean score of the turns with feedback; None without feedback.

        >>> Figures(rated=4, scores=2.0).score
        0.5
        """
        return self.scores / self.rated if self.rated else None

    def __sub__(self, other: Figures) -> Figures:
        return Figures(*(getattr(self, name) - getattr(other, name) for name in self.__struct_fields__))

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


def checked_feedback(score: Any, note: Any, by: Any) -> Feedback:
    """Check the feedback about a turn. Raises ``UsageError``."""
    if not isinstance(score, int | float) or isinstance(score, bool) or not math.fabs(score) <= 1:
        raise UsageError(f"score must be a number from -1 (bad) to 1 (good), not {score!r}.")
    if note is not None and not (isinstance(note, str) and len(note) <= MOST_NOTE):
        raise UsageError(f"note must be text of at most {MOST_NOTE:,} characters.")
    if by is not None and not (isinstance(by, str) and 0 < len(by) <= 200):
        raise UsageError("by must be text of 1 to 200 characters.")
    return Feedback(float(score), note, by)
