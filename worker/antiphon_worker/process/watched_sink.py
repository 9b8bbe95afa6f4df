"""A sink whose events are observed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from antiphon.events import Event
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.process.lease import Lease
from antiphon_worker.process.publisher import Publisher, TurnSink


class WatchedSink(TurnSink):
    """A sink whose events are observed: each once; only the first piece of a delta, without its text.

    Errors of the observer do not harm the turn.
    """

    def __init__(
        self, turn: ClaimedTurn, lease: Lease, publisher: Publisher, see: Callable[[Event], None]
    ) -> None:
        super().__init__(turn, lease, publisher)
        self._see = see

    def body(self, event: Event) -> bytes:
        """Encode an event for the scripts, and show it to the observer."""
        with suppress(Exception):
            self._see(event)
        return super().body(event)
