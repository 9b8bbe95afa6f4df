"""Workers that stop at a chosen write of a turn's journal."""

from collections.abc import Sequence
from typing import Any

import pytest

from antiphon_worker.process.journal import TurnJournal
from antiphon_worker.process.lease import Stop, StopSignal


class BrokenOff:
    """Counts the writes to journals, and stops the worker at one of them: after it if ``stored``, else before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stored: bool) -> None:
        self.count = 0
        self._at = 0
        append = TurnJournal.append

        async def breaking(journal: TurnJournal, entries: Sequence[Any], events: Sequence[Any]) -> None:
            self.count += 1
            here = self.count == self._at
            if here and not stored:
                raise StopSignal(Stop.DRAINED)
            await append(journal, entries, events)
            if here:
                raise StopSignal(Stop.DRAINED)

        monkeypatch.setattr(TurnJournal, "append", breaking)

    def at(self, number: int) -> None:
        """Count from 0 again, and stop at the write with this number; at none if it is 0."""
        self.count, self._at = 0, number
