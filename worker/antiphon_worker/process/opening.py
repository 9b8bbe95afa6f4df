"""Decrypts the records of claimed turns with this process's keys, and leaves unreadable ones to other workers."""

from __future__ import annotations

import logging

from antiphon.encryption import KEYS_VARIABLE
from antiphon.encryption.records import Sealer
from antiphon.errors import AgentError, KeyMissing
from antiphon.input.request import NewerRecord
from antiphon.wire.records import ClaimedTurn, is_in_the_clear, open_claimed
from antiphon_worker.process.outcomes import GivenBack, seconds_until_newer

log = logging.getLogger("antiphon.turn")

FOR_OTHERS = (NewerRecord, KeyMissing)
"""Errors for a turn that another worker can run: a worker of a newer release, or one that has the key."""


class Opening:
    """Decrypts the turns of a process with its keys."""

    def __init__(self, seal: Sealer) -> None:
        self._seal = seal
        self._said: set[str] = set()

    def open(self, turn: ClaimedTurn) -> ClaimedTurn:
        """Decrypt a turn. Raises ``KeyMissing`` and ``SealBroken``."""
        if is_in_the_clear(self._seal, turn):
            self._say(
                f"A turn of session {turn.session_id} was submitted in plain text: "
                f"give all clients {KEYS_VARIABLE}.",
                "submitted_in_the_clear",
            )
        return open_claimed(self._seal, turn)

    def leave(self, why: AgentError, turn: ClaimedTurn) -> GivenBack:
        """Return the outcome of a turn that is left unchanged for other workers."""
        code = "newer_release" if isinstance(why, NewerRecord) else str(why.code)
        self._say(f"{why.message} This worker gives such turns back.", code)
        return GivenBack(why.message, code, seconds_until_newer(turn))

    def _say(self, text: str, action: str) -> None:
        if action not in self._said:
            self._said.add(action)
            log.warning("%s", text, extra={"action": action})
