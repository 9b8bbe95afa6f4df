"""The signal that stops a running turn."""

from __future__ import annotations

__all__ = ["TurnStopped"]


class TurnStopped(BaseException):
    """The turn must stop. Apart from a cancellation, this is the only exception that a tool call lets through."""
