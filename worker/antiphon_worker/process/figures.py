"""Counts how the turns of each revision end, in one worker process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.model.feedback import Figures
from antiphon.wire.cell import Cell
from antiphon.wire.feedback import keep_figures
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
        """The figures since the start of this process, by agent and revision; only agents with turns."""
        revisions = self.app.revisions
        return {(name, revisions[name].id): one for name, one in self._of_agents.items() if one.turns}

    def writer(self, worker: str) -> Callable[[], Awaitable[None]]:
        """Return a function that writes the figures of this process. It raises ``StoreError``."""
        return _Written(self.cell, worker, lambda: self.figures).write

    def count(self, run: TurnAttempt, outcome: Outcome, seconds: float) -> None:
        super().count(run, outcome, seconds)
        figures = self._of_agents.get(run.agent or "")
        if figures is not None:
            _add(figures, run, outcome, seconds)


class _Written:
    """Writes the changed figures of what a process has counted since its start."""

    def __init__(
        self, cell: Cell, worker: str, counted: Callable[[], Mapping[tuple[str, str], Figures]]
    ) -> None:
        self._cell = cell
        self._worker = worker
        self._counted = counted
        self._written: dict[tuple[str, str], Figures] = {}
        self._added_up: dict[tuple[str, str], Figures] = {}  # the part no longer under the process's own name

    async def write(self) -> None:
        """Write what Redis does not have yet. Raises ``StoreError``; the next call then catches up."""
        for revision, counting in self._counted().items():
            found = replace(counting)
            if found == self._written.get(revision):
                continue
            while not await self._keep(revision, found):
                self._added_up[revision] = self._written[revision]
            self._written[revision] = found

    async def _keep(self, revision: tuple[str, str], found: Figures) -> bool:
        gone = self._added_up.get(revision, Figures())
        known = self._written.get(revision, gone) != gone
        return await keep_figures(self._cell, revision, self._worker, found - gone, known=known)


async def add_figures(cell: Cell, runner: CountingRunner) -> None:
    """Add the figures of a process that runs a single turn. If Redis is unavailable, they are lost."""
    for revision, found in runner.figures.items():
        with suppress(StoreError):
            await keep_figures(cell, revision, "", found, known=False)


def _add(figures: Figures, run: TurnAttempt, outcome: Outcome, seconds: float) -> None:
    """Add a turn if it has ended. This runs for every turn, so it makes few calls."""
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
