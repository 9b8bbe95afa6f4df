"""Counts how the turns of each revision end, in one worker process."""

from __future__ import annotations

from typing import Any

from antiphon.model.feedback import Figures
from antiphon_worker.loop.steps import ToolFinished
from antiphon_worker.process.outcomes import Cancelled, Failed, Finished, Outcome
from antiphon_worker.process.turn import TurnAttempt, TurnRunner


class CountingRunner(TurnRunner):
    """A runner that counts the ended turns of the App's agents. ``figures`` has them since its start, by revision."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.figures: dict[tuple[str, str], Figures] = {}

    def count(self, run: TurnAttempt, outcome: Outcome, seconds: float) -> None:
        super().count(run, outcome, seconds)
        revision = self.app.revisions.get(run.agent or "")
        if revision is not None and isinstance(outcome, Finished | Failed | Cancelled):
            key = (run.agent or "", revision.id)
            self.figures[key] = self.figures.get(key, Figures()) + _figures(run, outcome, seconds)


def _figures(run: TurnAttempt, outcome: Finished | Failed | Cancelled, seconds: float) -> Figures:
    entries = run.journal.entries if run.journal else []
    results = [entry.result for entry in entries if isinstance(entry, ToolFinished)]
    used = run.meter.used if run.meter else None
    return Figures(
        finished=isinstance(outcome, Finished),
        failed=isinstance(outcome, Failed),
        cancelled=isinstance(outcome, Cancelled),
        tool_calls=len(results),
        tool_errors=sum(result.is_error for result in results),
        tokens=used.tokens if used else 0,
        cost=(used.cost or 0.0) if used else 0.0,
        seconds=seconds,
    )
