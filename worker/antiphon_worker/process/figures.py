"""Counts how the turns of each revision end, in one worker process."""

from __future__ import annotations

from typing import Any

from antiphon.model.feedback import Figures
from antiphon_worker.loop.steps import ToolFinished
from antiphon_worker.process.outcomes import Cancelled, Failed, Finished, Outcome
from antiphon_worker.process.turn import TurnAttempt, TurnRunner


class CountingRunner(TurnRunner):
    """A runner that counts the ended turns of the App's agents."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._of_agents = {name: Figures() for name in self.app.revisions}

    @property
    def figures(self) -> dict[tuple[str, str], Figures]:
        """The figures since the start of this process, by agent and revision, of those with turns."""
        revisions = self.app.revisions
        return {(name, revisions[name].id): one for name, one in self._of_agents.items() if one.turns}

    def count(self, run: TurnAttempt, outcome: Outcome, seconds: float) -> None:
        super().count(run, outcome, seconds)
        figures = self._of_agents.get(run.agent or "")
        if figures is not None:
            _add(figures, run, outcome, seconds)


def _add(figures: Figures, run: TurnAttempt, outcome: Outcome, seconds: float) -> None:
    """Add a turn, if it has ended. This runs for every turn: it calls little."""
    kind = outcome.__class__
    if kind is Finished:
        figures.finished += 1
    elif kind is Failed:
        figures.failed += 1
    elif kind is Cancelled:
        figures.cancelled += 1
    else:
        return
    figures.seconds += seconds
    used = run.meter.used if run.meter else None
    if used is not None:
        figures.tokens += used.tokens
        figures.cost += used.cost or 0.0
    for entry in run.journal.entries if run.journal else ():
        if entry.__class__ is ToolFinished:
            figures.tool_calls += 1
            figures.tool_errors += entry.result.is_error  # type: ignore[union-attr]
