"""The turns of a local session that its history does not hold: open ones, and ended ones that left nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from antiphon.errors import AgentError, TurnNotFound
from antiphon.input.values import Asked, now_ms
from antiphon.model import Message, Response, ServiceAnswer, Status, ToolOutcome
from antiphon.session.turn_info import LeftNothing, TurnInfo, in_place, shown

KEPT_TURNS = 1000
UNTOLD_TURNS = 40


class TurnBook:
    """Lists turns in the order of their submission. ``untold`` are tool calls of turns that no history tells of."""

    def __init__(self) -> None:
        self.untold: dict[str, list[ToolOutcome]] = {}
        self._open: dict[str, TurnInfo] = {}
        self._left: deque[LeftNothing] = deque(maxlen=KEPT_TURNS)
        self._order: deque[str] = deque(maxlen=KEPT_TURNS)

    @property
    def empty(self) -> bool:
        return not self._open and not self._left

    def __contains__(self, turn_id: object) -> bool:
        """Whether a turn is open."""
        return turn_id in self._open

    def open(self, turn_id: str) -> TurnInfo:
        """Return an open turn."""
        return self._open[turn_id]

    def status(self, turn_id: str) -> Status:
        """Return the status of a turn that is open or has ended. Raises ``TurnNotFound``."""
        known = self._open.get(turn_id) or next(
            (one.turn for one in self._left if one.turn.turn_id == turn_id), None
        )
        if known is None and turn_id not in self._order:
            raise TurnNotFound(f"Unknown turn {turn_id!r} in this session.", turn_id=turn_id)
        return "finished" if known is None else known.status

    def enter(self, turn: TurnInfo) -> None:
        """Add a turn that was accepted, or that runs again."""
        if turn.turn_id not in self._order:
            self._order.append(turn.turn_id)
        self._left = deque((one for one in self._left if one.turn is not turn), KEPT_TURNS)
        self._open[turn.turn_id] = turn

    def forget(self, turn: TurnInfo) -> None:
        """Remove a turn that was not accepted, or whose messages the history holds."""
        self._open.pop(turn.turn_id, None)

    def begin(self, turn: TurnInfo) -> None:
        turn.status, turn.attempt, turn.started = "running", 1, turn.started or now_ms()

    def end(
        self, turn: TurnInfo, status: Status, response: Response | None = None, *, place: int | None = None
    ) -> None:
        """Note the end of a turn. ``place`` is where it stands in the history if it left nothing there."""
        if self._open.pop(turn.turn_id, None) is None:
            return
        turn.status, turn.ended = status, now_ms()
        if response is not None:
            turn.messages, turn.usage = response.messages, response.usage
        if place is not None:
            self._left.append(LeftNothing(place, turn))

    def fail(self, turn: TurnInfo, error: AgentError, place: int, response: Response | None = None) -> None:
        if turn.turn_id in self._open:
            turn.code, turn.error, turn.service = str(error.code), error.message, ServiceAnswer.of(error)
        self.end(turn, "failed", response, place=place)

    def cancel(
        self, turn: TurnInfo, reason: str, place: int | None, response: Response | None = None
    ) -> None:
        if turn.turn_id in self._open:
            turn.error = reason
        self.end(turn, "cancelled", response, place=place)

    def remember(self, turn: TurnInfo, calls: list[ToolOutcome]) -> None:
        """Report these calls to the model in the next turn; of many turns, only the last ones."""
        self.untold[turn.turn_id] = calls
        while len(self.untold) > UNTOLD_TURNS:
            del self.untold[next(iter(self.untold))]

    def cut(self, before: Sequence[Message], after: Sequence[Message]) -> None:
        """Remove the positions after the first message that the history has lost."""
        if not self._left:
            return
        pairs = zip(before, after, strict=False)
        same = next((n for n, (old, new) in enumerate(pairs) if old is not new and old != new), None)
        kept = min(len(before), len(after)) if same is None else same
        self._left = deque((one for one in self._left if one.place <= kept), KEPT_TURNS)

    def page(
        self, messages: Sequence[Message], start: int, stop: int | None, turns: Asked, inbox: Sequence[str]
    ) -> list[Message]:
        """Return a slice of the history with the turns that are asked for. ``inbox`` are the ids of turns in order."""
        first, last, _ = slice(start, stop).indices(len(messages))
        page, at_end = list(messages[first:last]), last == len(messages)
        if "failed" in turns:
            left = [
                one for one in self._left
                if first <= one.place and (one.place < last or (at_end and one.place == last))
            ]  # fmt: skip
            page = in_place(page, first, left, list(self._order))
        if "pending" in turns and at_end:
            pending = sorted(self._open.values(), key=lambda turn: _rank(turn.turn_id, inbox))
            page += [message for turn in pending for message in shown(turn)]
        return page


def _rank(turn_id: str, inbox: Sequence[str]) -> int:
    """Delayed turns follow those of the inbox."""
    return inbox.index(turn_id) if turn_id in inbox else len(inbox)
