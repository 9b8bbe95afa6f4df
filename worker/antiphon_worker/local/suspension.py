"""What a suspended turn of this process waits for, and what was decided. Decisions may come from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

import msgspec

from antiphon.errors import AlreadyDecided, NotSuspended, TurnFailed, UsageError
from antiphon.input.values import now_ms
from antiphon.model import Decision, OpenCall

LONGEST_WAIT_SECONDS = 30 * 86400.0
IN_TIME = "Nobody decided within the time limit."
NOT_DECIDED = "Nobody decided about a tool call of this turn within its time limit."


class Suspension:
    """The pending tool calls of a turn, and the decisions about them. The first decision about a call counts."""

    def __init__(self, turn_id: str, calls: Sequence[OpenCall], made: Iterable[Decision] = ()) -> None:
        now = now_ms()
        self.calls = [
            msgspec.structs.replace(call, until=call.until or now + _longest_ms(call)) for call in calls
        ]
        self._turn_id = turn_id
        self._lock = threading.Lock()
        self._made = {one.call_id: one for one in made}  # guarded by the lock, like the next
        self._over = ""  # the status of a turn that has ended undecided
        self._all: Future[None] = Future()
        self._look()

    @property
    def decisions(self) -> list[Decision]:
        """What was decided, in the order of the calls."""
        with self._lock:
            return [self._made[call.call_id] for call in self.calls if call.call_id in self._made]

    def decide(self, decision: Decision) -> None:
        """Decide about a call. Raises ``AlreadyDecided``, ``NotSuspended``, and ``UsageError`` for another kind."""
        call = next((one for one in self.calls if one.call_id == decision.call_id), None)
        with self._lock:
            first = self._made.get(decision.call_id)
            if first is not None:
                raise AlreadyDecided(decision=first, turn_id=self._turn_id)
            if self._over:
                raise not_suspended(self._turn_id, self._over)
            if call is None:
                raise NotSuspended(
                    f"Turn {self._turn_id} has no pending tool call {decision.call_id!r}: "
                    "turn.info().calls lists its pending tool calls.",
                    status="suspended", turn_id=self._turn_id,
                )  # fmt: skip
            if decision.kind not in ("reject", "result" if call.kind == "tool" else "approve"):
                wanted = "waits for its result" if call.kind == "tool" else "waits to be approved or rejected"
                raise UsageError(f"The call {call.call_id!r} {wanted}.", turn_id=self._turn_id)
            self._made[decision.call_id] = msgspec.structs.replace(decision, at=now_ms())
        self._look()

    def end(self, status: str) -> None:
        """The turn has ended: it takes no decision any more."""
        with self._lock:
            self._over = status

    async def decided(self) -> list[Decision]:
        """Wait until all calls are decided. Time limits decide too. Raises ``TurnFailed`` if one says so."""
        while not self._all.done():
            self._apply_limits()
            if self._all.done():
                break
            left = min(call.until or 0 for call in self.undecided) - now_ms()
            timer = asyncio.create_task(asyncio.sleep(left / 1000))
            done = asyncio.wrap_future(self._all)
            try:
                await asyncio.wait([timer, done], return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
        return self.decisions

    def _apply_limits(self) -> None:
        now = now_ms()
        for call in self.undecided:
            if (call.until or 0) > now:
                continue
            if call.at_limit == "fail":
                raise TurnFailed(NOT_DECIDED, code="not_decided", turn_id=self._turn_id)
            with self._lock:
                self._made.setdefault(
                    call.call_id, Decision(call.call_id, call.at_limit, reason=IN_TIME, at=now)
                )
        self._look()

    @property
    def undecided(self) -> list[OpenCall]:
        """The undecided calls."""
        with self._lock:
            return [call for call in self.calls if call.call_id not in self._made]

    def _look(self) -> None:
        with self._lock:
            if len(self._made) >= len(self.calls) and not self._all.done():
                self._all.set_result(None)


def _longest_ms(call: OpenCall) -> int:
    seconds = LONGEST_WAIT_SECONDS if call.seconds is None else min(call.seconds, LONGEST_WAIT_SECONDS)
    return int(seconds * 1000)


def not_suspended(turn_id: str, status: str) -> NotSuspended:
    """Return the error for a decision about a turn that does not wait for one."""
    return NotSuspended(
        f"Turn {turn_id} is {status}: it is not suspended, so there is nothing to decide.",
        status=status,
        turn_id=turn_id,
    )
