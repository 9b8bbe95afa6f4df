"""A sink whose events are observed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from antiphon.events import Event
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.process.lease import Lease
from antiphon_worker.process.publisher import Publisher, TurnSink


class WatchedSink(TurnSink):
    """A sink whose events are observed: each once, of the pieces of a delta only the first, without its text.

    What goes wrong while watching does not harm the turn.
    """

    def __init__(
        self, turn: ClaimedTurn, lease: Lease, publisher: Publisher, see: Callable[[Event], None]
    ) -> None:
        super().__init__(turn, lease, publisher)
        self._see = see

    def body(self, event: Event) -> bytes:
        """Encode an event for the scripts, and let the watcher see it."""
        with suppress(Exception):
            self._see(event)
        return super().body(event)
