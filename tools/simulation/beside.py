"""Schedules, which submit turns, and buckets, which determine when a model may be called.

Each method is one script. Its answer and its effects are compared with the expected ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from antiphon.redis.schedules import next_due
from antiphon.wire.lists.schedules import PAUSED, advance, write_schedule
from antiphon.wire.rate_limits import admit, limit
from simulation.direct import run
from simulation.state import State, require

if TYPE_CHECKING:
    from simulation.world import World

BURST_MS, MOST_WAIT_MS, LASTS_MS, SHRINKS = 1000, 600_000, 60_000, 0.97
FIRST_GAP_MS, MOST_GAP_MS = 50, 10_000


@dataclass
class Due:
    """A due schedule that a scheduler has found and is processing."""

    name: str
    due: int
    every_ms: int
    turn: str = ""
    error: str = ""
    submitted: bool = False


@dataclass
class Schedule:
    every_ms: int
    due: float
    fields: dict[bytes, bytes]


@dataclass
class Bucket:
    open: float = 0
    gap: float = 0
    promised: float | None = None
    closed_until: int = 0  # no call starts before this time, which a service has set
    since: int = 0
    used: float = 0  # the gaps of the calls started since then, except for the last one
    last_gap: float = 0


@dataclass
class Beside:
    """All schedules and buckets of a world, compared after every step."""

    world: World
    schedules: dict[str, Schedule] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)

    # schedules

    def write(self, name: str, every_ms: int) -> None:
        """Set or replace a schedule."""
        due = next_due(every_ms, "", "UTC", after=self.world.model.now, now=self.world.model.now)
        fields = {"session": name, "plan": str(every_ms)}
        answer = run(write_schedule(self.world.cell, *_named(name), str(due), fields))
        known = self.schedules.setdefault(name, Schedule(every_ms, due, {}))
        known.every_ms, known.due = every_ms, due
        known.fields |= {key.encode(): value.encode() for key, value in fields.items()}
        self.world.done(f"schedule {name} every {every_ms} ms, next at {due}", answer, True)

    def change(self, name: str, what: str) -> None:
        """Pause, resume or delete a schedule."""
        known, now = self.schedules.get(name), self.world.model.now
        if what == "resume":
            due = str(next_due(known.every_ms if known else 1000, "", "UTC", after=now, now=now))
        else:
            due = PAUSED if what == "pause" else ""
        answer = run(write_schedule(self.world.cell, *_named(name), due, {}))
        if known and due:
            known.due = float(due)
        elif known:
            del self.schedules[name]
        self.world.done(f"{what} schedule {name}", answer, known is not None)

    def forget(self, session: str) -> None:
        """Drop the schedules of a deleted session."""
        for name in [name for name in self.schedules if _named(name)[0] == session]:
            del self.schedules[name]

    def due(self) -> list[Due]:
        """Return what a scheduler finds when it looks."""
        now = self.world.model.now
        return [
            Due(name, int(one.due), one.every_ms) for name, one in self.schedules.items() if one.due <= now
        ]

    def advance(self, found: Due) -> None:
        later = next_due(found.every_ms, "", "UTC", after=found.due, now=self.world.model.now)
        answer = run(advance(self.world.cell, found.name, found.due, later, found.turn, found.error))
        known = self.schedules.get(found.name)
        expected = known is not None and known.due == found.due
        if known and expected:
            known.due = later
            known.fields |= {b"turn": found.turn.encode(), b"error": found.error.encode()}
            require(later > found.due, "a schedule is due once at each time", found, later)
        self.world.done(f"advance schedule {found.name} from {found.due} to {later}", answer, expected)

    # buckets

    def limit(self, scope: str, wait_ms: int, gap_ms: float) -> None:
        """Limit the calls of a model and key, as a service does."""
        answer = run(limit(self.world.cell, scope, wait_ms, gap_ms))
        now, known = self.world.model.now, self.buckets.setdefault(scope, Bucket())
        gap = gap_ms
        if gap <= 0:
            gap = known.gap or FIRST_GAP_MS
            if known.gap and wait_ms and known.open <= now:
                gap = min(known.gap * 2, max(wait_ms, FIRST_GAP_MS))
        known.gap = min(gap, MOST_GAP_MS)
        known.open = min(max(known.open, now + wait_ms), now + MOST_WAIT_MS)
        known.closed_until, known.since = now + wait_ms, 0
        expected = int(known.open) - now + LASTS_MS
        self.world.done(f"limit {scope} for {wait_ms} ms, gap {gap_ms}", answer, expected)

    def admit(self, scope: str) -> None:
        now, known = self.world.model.now, self.buckets.get(scope)
        answer = run(admit(self.world.cell, scope))
        expected = self._admitted(known, now)
        if known and answer == 0:
            self._starts(known, scope, now)
        self.world.done(f"admit {scope}", answer, expected)

    def _admitted(self, known: Bucket | None, now: int) -> int | None:
        if known is None or known.open > now + MOST_WAIT_MS:
            return None
        if known.open <= now:
            known.last_gap, known.open = (
                known.gap,
                float(f"{max(known.open, now - BURST_MS) + known.gap:.0f}"),
            )
            known.gap *= SHRINKS
            return 0
        promised = max(known.open, (known.promised or 0) + known.gap)
        if promised > now + LASTS_MS:
            promised = known.open
        known.promised = float(f"{promised:.0f}")
        return int(f"{promised - now:.0f}")

    def _starts(self, known: Bucket, scope: str, now: int) -> None:
        """Start a call; check that the service allows it, and that calls do not exceed the pace."""
        require(now >= known.closed_until, "no call starts while a limit lasts", scope, now, known)
        if not known.since or now < known.since:  # the first one, or the clock was put back
            known.since, known.used = now, 0
        allowed = now - known.since + BURST_MS
        require(known.used <= allowed, "calls keep to the pace", scope, known, allowed)
        known.used += max(0, known.last_gap - 1)  # times are whole ms

    def clock_jumped(self) -> None:
        """Forget what was measured by the clock before the jump."""
        for known in self.buckets.values():
            known.closed_until = known.since = 0

    # after every step

    def check(self, state: State) -> None:
        due = {name: one.due for name, one in self.schedules.items()}
        found: Any = state.at("ant:schedules", "", {})
        require(found == due, "schedules are due when they were told to be", found, due)
        fields = {name: one.fields for name, one in self.schedules.items()}
        require(state.all("ant:schedule") == fields, "schedules are what was set", fields)
        for scope, one in self.buckets.items():
            shown = {b"open": one.open, b"gap": one.gap, b"promised": one.promised}
            read = {name: float(value) for name, value in state.at("ant:bucket", scope, {}).items()}
            kept = {name: value for name, value in shown.items() if value is not None}
            require(read == kept, "a bucket is what its limits make of it", scope, read, kept)


def _named(schedule: str) -> tuple[str, str]:
    """Return the session of a schedule, and its name there."""
    name, _, session = schedule.partition(":")
    return session, name
