"""What ends a turn from outside."""

from __future__ import annotations

__all__ = ["TurnStopped"]


class TurnStopped(BaseException):
    """The turn must stop: the only exception but a cancellation that a tool call lets through."""
