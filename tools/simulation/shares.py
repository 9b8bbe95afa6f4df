"""What must be true of shares: which turns are in a queue, which wait in line, which count against limits."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from antiphon_worker.local.moves import ENDED, LOOK_AGAIN_MS
from antiphon_worker.local.records import Turn

if TYPE_CHECKING:
    from simulation.model import Model

LIMITS: dict[str, dict[str, int]] = {
    "a": {"user_turns": 3, "user_in_flight": 1},
    "b": {"in_flight": 2, "waiting": 3, "user_in_flight": 1},
    "c": {"per_minute": 1, "user_per_minute": 1},
}  # fmt: skip
TENANTS = list(LIMITS)
SHARES = [*(f"@{tenant}" for tenant in TENANTS), "high", "low"]
HEAD_START_MS = {"high": 600_000, "normal": 0, "low": -600_000}
MINUTE_MS, TRY_AGAIN_MS = 60_000, 1_000
ROUND_MS = 60_000


def share_of(turn: Turn) -> str:
    """Return the share of a turn: its tenant's, or without a tenant that of its priority unless it is normal."""
    tenant = turn.record.text("tenant")
    return f"@{tenant}" if tenant else turn.record.text("priority")


def _head_start(turn: Turn) -> int:
    return HEAD_START_MS[turn.record.text("priority") or "normal"]


class Shares:
    """Places and lines as the scripts must keep them. ``model`` offers turns and has their sessions."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.places: dict[str, dict[str, str]] = defaultdict(dict)
        self.lines: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self.rounds: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)  # the last place of each user
        self.open: dict[str, dict[str, int]] = defaultdict(dict)  # in flight below zero
        self.pace: dict[str, list[int]] = defaultdict(list)  # also of users
        self.user_places: dict[str, set[str]] = defaultdict(set)
        self.user_lines: dict[str, dict[str, int]] = defaultdict(dict)
        self.of_users: dict[str, list[str]] = defaultdict(list)

    def refusal(self, tenant: str, user: str) -> list[Any] | None:
        """Return the answer if another turn would exceed a limit."""
        limits, now, pace = LIMITS.get(tenant, {}), self._model.now, self.pace[tenant]
        most = limits.get("waiting", 10_000)
        if sum(at >= 0 for at in self.open[tenant].values()) >= most:
            return [b"TENANT_LIMIT", b"waiting", most, TRY_AGAIN_MS]
        number = limits.get("per_minute", 0)
        if number and len(pace) >= number and now - MINUTE_MS < pace[-number] <= now:
            return [b"TENANT_LIMIT", b"per_minute", number, pace[-number] + MINUTE_MS - now]
        return self._refusal_of_user(tenant, user) if tenant and user else None

    def _refusal_of_user(self, tenant: str, user: str) -> list[Any] | None:
        limits, now, whose = LIMITS.get(tenant, {}), self._model.now, f"{tenant} {user}"
        turns = self._model.turns
        self.of_users[whose] = [
            name for name in self.of_users[whose] if name in turns and turns[name].status not in ENDED
        ]
        most, number, pace = limits.get("user_turns"), limits.get("user_per_minute", 0), self.pace[whose]
        if most and len(self.of_users[whose]) >= most:
            return [b"TENANT_LIMIT", b"user_turns", most, TRY_AGAIN_MS]
        if number and len(pace) >= number and now - MINUTE_MS < pace[-number] <= now:
            return [b"TENANT_LIMIT", b"user_per_minute", number, pace[-number] + MINUTE_MS - now]
        return None

    def accept(self, tenant: str, turn: Turn) -> None:
        self.open[tenant][turn.id] = self._model.now
        self.pace[tenant].append(self._model.now)
        if user := turn.record.text("user"):
            self.of_users[f"{tenant} {user}"].append(turn.id)
            self.pace[f"{tenant} {user}"].append(self._model.now)

    def count(self, turn: Turn, status: str) -> None:
        """Count a turn as in flight or not; called at every transition."""
        tenant = turn.record.text("tenant")
        if turn.id in self.open[tenant]:
            sign = -1 if status in ("queued", "running") else 1
            self.open[tenant][turn.id] = sign * turn.record.number("queued_at")

    def has_room(self, tenant: str) -> bool:
        in_flight = sum(at < 0 for at in self.open[tenant].values())
        return in_flight < LIMITS.get(tenant, {}).get("in_flight", 10_000)

    def stands(self, name: str) -> bool:
        turn = self._model.turns.get(name)
        return turn is not None and turn.status == "queued" and turn.session.id not in self._model.quarantined

    def lines_up(self, turn: Turn, joins: int | None = None) -> bool | None:
        """Return whether a turn waits in line; None if it needs no place. ``joins``: when it left its user's line."""
        share, record, queue = share_of(turn), turn.record, turn.record.text("queue")
        goes_on = "offered_at" in record and (record.get("cancel") or turn.status == "queued")
        if not share or turn.status == "running" or goes_on:
            return None
        if self._waits_for_user(turn, joins):
            return True
        line, places = self.lines[queue, share], self.places[share]
        taken = self.stands(place := places.get(queue, ""))
        if taken and place == turn.id:
            return False
        if taken or line or not self.has_room(record.text("tenant")):
            line[turn.id] = self._place(turn, share, line, joins) - _head_start(turn)
            places.setdefault(queue, "")
            return True
        places[queue] = turn.id
        return False

    def _place(self, turn: Turn, share: str, line: dict[str, int], joins: int | None) -> int:
        """Return the time by which a turn is ordered in line: users of a tenant take turns."""
        record, at = turn.record, joins or turn.record.number("queued_at")
        user = record.text("user")
        if not user or not record.text("tenant") or "offered_at" in record:
            return at
        last, place = self.rounds[share].get(user, ("", 0))
        if last in line:
            at = place + ROUND_MS
        elif line:
            first = self._model.turns[min(line, key=lambda name: (line[name], name))]
            at = min(at, line[first.id] + _head_start(first) + ROUND_MS + 1)
        self.rounds[share][user] = turn.id, at
        return at

    def _user_of(self, turn: Turn) -> tuple[str, int]:
        """Return whose places a turn takes, and how many there are; '' if they are not limited."""
        tenant, user = turn.record.text("tenant"), turn.record.text("user")
        most = LIMITS.get(tenant, {}).get("user_in_flight", 0) if user else 0
        return (sha1(f"{tenant}\x1f{user}".encode()).hexdigest() if most else ""), most

    def _waits_for_user(self, turn: Turn, joins: int | None) -> bool:
        whose, most = self._user_of(turn)
        if not whose or turn.id in self.user_places[whose]:
            return False
        if not joins and (self.user_lines[whose] or len(self.user_places[whose]) >= most):
            self.user_lines[whose][turn.id] = turn.record.number("queued_at") - _head_start(turn)
            return True
        self.user_places[whose].add(turn.id)
        return False

    def _let_user_in(self, turn: Turn) -> None:
        whose, most = self._user_of(turn)
        line = self.user_lines[whose]
        while whose and line and len(self.user_places[whose]) < most:
            name = min(line, key=lambda name: (line[name], name))
            del line[name]
            self._go_on(name, joins=True)

    def _go_on(self, name: str, *, joins: bool) -> None:
        """Continue with a turn that has left a line."""
        new, now = self._model.turns[name], self._model.now
        if new.status != "waiting" or new.session.inbox[:1] != [new]:
            return
        new.session.look_at = now
        if self._model.rq[name] == "canceled":
            return
        new.session.look_at += LOOK_AGAIN_MS
        if joins and self.lines_up(new, now):
            new.record.put(status="waiting")
        else:
            self._model.enter_queue(new)

    def land(self, turn: Turn) -> None:
        """Free the places of a turn that is no longer in flight."""
        whose, _ = self._user_of(turn)
        self.user_places[whose].discard(turn.id)
        self.user_lines[whose].pop(turn.id, None)
        self.let_in(turn)

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
        """Let waiting turns in after a turn of this share has left a queue or ended."""
        self._let_user_in(turn)
        share, tenant = share_of(turn), turn.record.text("tenant")
        while share and self.has_room(tenant) and (first := self._first(share)):
            name, queue = first
            del self.lines[queue, share][name]
            self.places[share][queue] = name
            self._go_on(name, joins=False)

    def vacate(self, turn: Turn) -> None:
        """Free the slot of a running turn that moves to another queue."""
        places, queue = self.places[share_of(turn)], turn.record.text("queue")
        if places.get(queue) == turn.id:
            places[queue] = ""

    def leave(self, turn: Turn) -> None:
        """Remove a turn that has ended."""
        self.open[turn.record.text("tenant")].pop(turn.id, None)
        if share := share_of(turn):
            self.lines[turn.record.text("queue"), share].pop(turn.id, None)
            self.land(turn)

    def in_line(self, turn: Turn) -> bool:
        """Return whether a turn waits in the line of its share or of its user."""
        lines = self.lines.get((turn.record.text("queue"), share_of(turn)), ())
        return turn.id in lines or turn.id in self.user_lines[self._user_of(turn)[0]]

    def expected(self) -> dict[str, dict[str, Any]]:
        """Return the expected contents of the keys of each kind."""
        return {
            "ant:share": {share: places for share, places in self.places.items() if places},
            "ant:line": {f"{queue}:{share}": line for (queue, share), line in self.lines.items() if line},
            "ant:user_places": {whose: places for whose, places in self.user_places.items() if places},
            "ant:user_line": {whose: line for whose, line in self.user_lines.items() if line},
            "ant:tenant": {tenant: turns for tenant, turns in self.open.items() if turns},
        }
