"""What must be true of shares: who stands in a queue for a tenant, who waits in line, what counts for its limits."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.model import Model, Turn

LIMITS: dict[str, dict[str, int]] = {"a": {}, "b": {"in_flight": 2, "waiting": 3}, "c": {"per_minute": 1}}
TENANTS = list(LIMITS)
SHARES = [*(f"@{tenant}" for tenant in TENANTS), "high", "low"]
HEAD_START_MS = {"high": 600_000, "normal": 0, "low": -600_000}
MINUTE_MS = 60_000


class Shares:
    """Places and lines as the scripts must keep them. ``model`` offers turns and knows their sessions."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.places: dict[str, dict[str, str]] = defaultdict(dict)
        self.lines: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self.open: dict[str, dict[str, int]] = defaultdict(dict)  # in flight below zero
        self.pace: dict[str, list[int]] = defaultdict(list)

    def refuses(self, tenant: str) -> str:
        """The limit that one more turn would exceed."""
        limits, now = LIMITS.get(tenant, {}), self._model.now
        if sum(at >= 0 for at in self.open[tenant].values()) >= limits.get("waiting", 10_000):
            return "waiting"
        number = limits.get("per_minute", 0)
        if (
            number
            and len(self.pace[tenant]) >= number
            and now - MINUTE_MS < self.pace[tenant][-number] <= now
        ):
            return "per_minute"
        return ""

    def accept(self, turn: Turn) -> None:
        if turn.tenant:
            self.open[turn.tenant][turn.id] = self._model.now
            self.pace[turn.tenant].append(self._model.now)

    def count(self, turn: Turn, status: str) -> None:
        """Every transition says whether a turn is in flight."""
        if turn.id in self.open[turn.tenant]:
            sign = -1 if status in ("queued", "running") else 1
            self.open[turn.tenant][turn.id] = sign * turn.queued_at

    def has_room(self, tenant: str) -> bool:
        in_flight = sum(at < 0 for at in self.open[tenant].values())
        return in_flight < LIMITS.get(tenant, {}).get("in_flight", 10_000)

    def stands(self, name: str) -> bool:
        turn = self._model.turns.get(name)
        if turn is None or turn.status not in ("queued", "delayed"):
            return False
        return turn.session.id not in self._model.quarantined

    def lines_up(self, turn: Turn) -> bool | None:
        """Whether it waits; None where it needs no place."""
        share, queue = turn.share, turn.queue
        if (
            not share
            or turn.status == "running"
            or (turn.offered and (turn.cancel or turn.status == "queued"))
        ):
            return None
        line, places = self.lines[queue, share], self.places[share]
        taken = self.stands(place := places.get(queue, ""))
        if taken and place == turn.id:
            return False
        if taken or line or not self.has_room(turn.tenant):
            line[turn.id] = turn.queued_at - HEAD_START_MS[turn.priority]
            places.setdefault(queue, "")
            return True
        places[queue] = turn.id
        return False

    def _first(self, share: str) -> tuple[str, str] | None:
        found: tuple[str, str] | None = None
        best = 0
        for queue, place in [*self.places[share].items()]:
            line = self.lines[queue, share]
            if self.stands(place):
                continue
            if not line:
                del self.places[share][queue]
                continue
            name = min(line, key=lambda name: (line[name], name))
            if found is None or line[name] < best:
                found, best = (name, queue), line[name]
        return found

    def let_in(self, turn: Turn) -> None:
        """Somebody of this turn's share has left a queue, or has ended."""
        share = turn.share
        while share and self.has_room(turn.tenant) and (first := self._first(share)):
            name, queue = first
            del self.lines[queue, share][name]
            self.places[share][queue] = name
            new = self._model.turns[name]
            if new.status == "waiting" and new.session.inbox[:1] == [new]:
                if self._model.rq[name] == "canceled":
                    new.session.look_at = self._model.now
                else:
                    self._model.enter_queue(new)

    def leave(self, turn: Turn) -> None:
        """A turn has ended."""
        self.open[turn.tenant].pop(turn.id, None)
        if turn.share:
            self.lines[turn.queue, turn.share].pop(turn.id, None)
            self.let_in(turn)

    def in_line(self, turn: Turn) -> bool:
        return bool(turn.share) and turn.id in self.lines[turn.queue, turn.share]

    def expected(self) -> dict[str, dict[str, Any]]:
        """What stands in the keys of a kind."""
        return {
            "ant:share": {share: places for share, places in self.places.items() if places},
            "ant:line": {f"{queue}:{share}": line for (queue, share), line in self.lines.items() if line},
            "ant:tenant": {tenant: turns for tenant, turns in self.open.items() if turns},
        }
