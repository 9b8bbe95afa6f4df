"""A turn of this process that has not ended, as far as all who know its id may use it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from antiphon.errors import UsageError
from antiphon.input.values import Keep, check_keep
from antiphon.model import Response, Status
from antiphon.session.streams import EventIterator
from antiphon.session.turn_info import TurnInfo, TurnRun
from antiphon.tools.approval import approval_of, rejection_of, result_of
from antiphon_worker.local.session import LocalSession


class OpenTurn:
    """A running turn. Its caller has its events and its result; others may read it and decide."""

    def __init__(self, session: LocalSession, info: TurnInfo) -> None:
        self._session = session
        self._info = info

    @property
    def id(self) -> str:
        return self._info.turn_id

    @property
    def session_id(self) -> str:
        return self._session.session_id

    def __repr__(self) -> str:
        return f"SubmittedTurn(id={self.id!r}, session_id={self.session_id!r})"

    async def status(self) -> Status:
        """Return the current status."""
        return self._info.status

    async def info(self) -> TurnInfo:
        """Return the turn as it is now."""
        found = msgspec.json.decode(msgspec.json.encode(self._info), type=TurnInfo)
        if (suspension := self._session.suspensions.get(self.id)) is not None:
            found.calls = suspension.undecided if found.status == "suspended" else []
            found.decisions = suspension.decisions
        return found

    async def runs(self) -> list[TurnRun]:
        """Return the runs of the turn, the first one first."""
        return [(await self.info()).last_run]

    async def result(self, timeout: float | timedelta | None = None) -> Response:
        """Only the caller of the turn has its result. Raises ``UsageError``."""
        raise self._of_its_caller()

    def stream(
        self, after: int | str | None = None, *, heartbeat: float | timedelta | None = None
    ) -> EventIterator:
        """Only the caller of the turn has its events. Raises ``UsageError``."""
        raise self._of_its_caller()

    async def cancel(self, reason: str = "cancelled by the client", *, keep: Keep = "steps") -> str:
        """Cancel the turn. ``keep`` is what stays of it in the history."""
        check_keep(keep)
        place = self._session.inbox.current
        if place is not None and place.turn_id == self.id:
            place.stop(reason, keep)
        return "requested"

    async def requeue(self) -> None:
        """The turn has not failed. Raises ``UsageError``."""
        raise UsageError(f"Turn {self.id} is {self._info.status}: only failed turns can be requeued.")

    async def approve(
        self, call_id: str, *, by: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Approve a pending tool call, with other arguments if they are given."""
        self._session.decide(self.id, approval_of(call_id, by, arguments))

    async def reject(self, call_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Reject a pending tool call. The model is told by whom and why."""
        self._session.decide(self.id, rejection_of(call_id, by, reason))

    async def tool_result(
        self, call_id: str, result: Any = None, *, is_error: bool = False, by: str | None = None
    ) -> None:
        """Give the result of a client-side tool."""
        self._session.decide(self.id, result_of(call_id, result, by, is_error=is_error))

    def _of_its_caller(self) -> UsageError:
        return UsageError(
            "The caller of run or stream has this turn: use submit for a turn that others follow."
        )
