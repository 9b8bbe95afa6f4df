"""The signal that a model call waits for a batch."""

from __future__ import annotations

from antiphon.model import Wait
from antiphon_worker.loop.toolbox import TurnStopped


class StepWaits(TurnStopped):
    """The turn is suspended until ``wait`` is over: then its step has an answer, or goes to the usual endpoint."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.id)
        self.wait = wait
