"""Webhooks: which completion events each must deliver, who holds it, and what its endpoint has acknowledged.

Each method is one script. Its answer and its effects are compared with the expected ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from antiphon.wire.lists.webhooks import (
    DamagedWebhook,
    Delivery,
    Taken,
    What,
    release_webhook,
    settle,
    take_webhook,
    write_webhook,
)
from simulation.direct import run
from simulation.state import State, require

if TYPE_CHECKING:
    from simulation.world import World

LEASE_MS, PAUSE_MS = 20_000, 2_000
COUNTED = ("delivered", "dropped")


@dataclass
class Round:
    """A webhook as known to the deliverer that holds it, and the remaining deliveries."""

    taken: Taken
    until: int  # nothing is sent after that time
    heard: Delivery | None = None  # by the endpoint, and not yet recorded in Redis
    left: list[Delivery] = field(default_factory=list)


@dataclass
class Hook:
    types: str
    tenant: str
    since: int  # the number of completion events when it was set
    fence: str = ""
    held: bool = False
    look_at: float = inf
    deliveries: dict[int, tuple[int, float]] = field(
        default_factory=dict
    )  # times of creation and next delivery, by completion event
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    error: str = ""
    held_until: int = 0
    told: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)

    def wants(self, number: int, kind: str, tenant: str) -> bool:
        return number >= self.since and f",{kind}," in self.types and self.tenant in ("", tenant)


@dataclass
class Hooks:
    """All webhooks of a world, compared after every step."""

    world: World
    hooks: dict[str, Hook] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)  # the number of the completion event by log entry
    dispatched: int | None = None
    rounds: list[Round] = field(default_factory=list)  # all rounds that began

    # users

    def write(self, name: str, types: str, tenant: str) -> None:
        run(write_webhook(self.world.cell, name, {"types": types, "tenant": tenant}))
        count = len(self.world.model.notices)
        known = self.hooks.setdefault(name, Hook(types, tenant, count))
        known.types, known.tenant = types, tenant
        self.dispatched = count if self.dispatched is None else self.dispatched
        self.world.done(f"webhook {name} for {types} of {tenant!r}", None, None)

    def remove(self, name: str) -> None:
        run(write_webhook(self.world.cell, name, {}))
        self.hooks.pop(name, None)
        self.dispatched = self.dispatched if self.hooks else None
        self.world.done(f"remove webhook {name}", None, None)

    # deliverers

    def take(self, who: str) -> Round | None:
        taken, (missed, more, _) = run(take_webhook(self.world.cell, LEASE_MS, PAUSE_MS))
        expected = self._take()
        require(not isinstance(taken, DamagedWebhook), "no webhook is damaged", taken)
        due = {self._number(each) for each in taken.deliveries} if taken else set[int]()
        answer = (taken.name, str(taken.fence), due, missed, more) if taken else (None, "", due, missed, more)
        self.world.done(f"{who} takes a webhook", answer, (*expected, "", False))
        if taken is None:
            return None
        known, now = self.hooks[taken.name], self.world.model.now
        require(not due & known.over, "what was acknowledged is told no more", taken.name, due)
        require(now >= known.held_until, "one deliverer at a time holds a webhook", taken.name, known)
        known.held_until = now + LEASE_MS
        self.rounds.append(Round(taken, now + LEASE_MS // 2, left=[*taken.deliveries]))
        return self.rounds[-1]

    def _take(self) -> tuple[str | None, str, set[int]]:
        now = self.world.model.now
        self._dispatch()
        ready = [(known.look_at, name) for name, known in self.hooks.items() if known.look_at <= now]
        if not ready:
            return None, "", set()
        name = min(ready)[1]
        known = self.hooks[name]
        self.world.model.fences += 1
        known.fence, known.held = str(self.world.model.fences), not known.held
        known.look_at = now + (LEASE_MS if known.held else PAUSE_MS)
        if not known.held:
            return None, "", set()
        return name, known.fence, {number for number, (_, at) in known.deliveries.items() if at <= now}

    def _dispatch(self) -> None:
        model = self.world.model
        for number in range(
            len(model.notices) if self.dispatched is None else self.dispatched, len(model.notices)
        ):
            kind, _, turn, _ = model.notices[number]
            for known in self.hooks.values():
                if known.wants(number, kind, model.turns[turn].record.text("tenant")):
                    known.deliveries[number] = model.now, model.now
                    if not known.held:
                        known.look_at = min(known.look_at, model.now)
        self.dispatched = len(model.notices) if self.hooks else None

    def send(self, one: Round) -> None:
        """Send a delivery: the endpoint receives it, even if the deliverer then dies."""
        one.heard = one.left.pop(0)
        number = self._number(one.heard)
        known = self.hooks.get(one.taken.name)
        if known and number >= known.since:
            known.told.add(number)
        self.world.note(f"{one.taken.name} hears of notice {number}")

    def settle(self, one: Round, what: What, ms: int) -> None:
        assert one.heard
        answer = run(settle(self.world.cell, one.taken, one.heard, what, ms, what))
        known, number = self.hooks.get(one.taken.name), self._number(one.heard)
        one.heard = None
        held = known is not None and known.fence == str(one.taken.fence)
        if known:
            self._settle(known, number, what, ms, held)
        self.world.done(f"settle {one.taken.name}/{one.taken.fence}: {number} is {what}", answer, held)

    def _settle(self, known: Hook, number: int, what: What, ms: int, held: bool) -> None:
        if what == "later":
            if held and number in known.deliveries:
                known.deliveries[number] = known.deliveries[number][0], self.world.model.now + ms
        elif known.deliveries.pop(number, None):
            known.over.add(number)
            if what in known.counts:
                known.counts[what] += 1
        if held and what != "skipped":
            known.error = what

    def release(self, one: Round) -> None:
        run(release_webhook(self.world.cell, one.taken))
        known = self.hooks.get(one.taken.name)
        if known and known.fence == str(one.taken.fence):
            known.held, known.held_until = False, 0
            known.look_at = min((at for _, at in known.deliveries.values()), default=inf)
        self.world.done(f"release {one.taken.name}/{one.taken.fence}", None, None)

    def _number(self, delivery: Delivery) -> int:
        return self._numbers()[delivery.notice.id]

    def _numbers(self) -> dict[str, int]:
        if len(self.ids) < len(self.world.model.notices):
            raw = self.world.redis.call("XRANGE", "ant:notices", f"({self.world.noticed}", "+")
            self.ids = {entry_id.decode(): number for number, (entry_id, _) in enumerate(raw)}
        return self.ids

    def clock_jumped(self, ms: int) -> None:
        """A jump forward ends earlier leases; a jump back ends none. Deliverers have their own clocks."""
        for known in self.hooks.values():
            known.held_until = 0 if ms > 0 else known.held_until + ms
        for one in self.rounds:
            one.until += ms

    def move_back(self, moved: Any) -> None:
        """Move times back after a reaper has noticed that the clock was put back."""
        for known in self.hooks.values():
            known.look_at = moved(known.look_at)
            known.deliveries = {number: (made, moved(at)) for number, (made, at) in known.deliveries.items()}

    # after every step

    def check(self, state: State) -> None:
        looked_at: Mapping[str, float] = state.at("ant:webhooks", "", {})
        expected = {name: known.look_at for name, known in self.hooks.items()}
        require(looked_at == expected, "webhooks are looked at", looked_at, expected)
        if not self.hooks:
            left = state.all("ant:webhook"), state.all("ant:deliveries")
            require(left == ({}, {}), "nothing of a removed webhook is left", left)
            return
        for name, known in self.hooks.items():
            found = {key.decode(): value.decode() for key, value in state.at("ant:webhook", name, {}).items()}
            shown = [found.get(key, "") for key in ("types", "tenant", "fence", "error")]
            require(
                shown == [known.types, known.tenant, known.fence, known.error],
                "what a webhook is",
                name,
                found,
            )
            require((found.get("held") == "1") == known.held, "who holds a webhook", name, found, known)
            counts = {key: int(found.get(key, 0)) for key in COUNTED}
            require(counts == known.counts, "what is delivered is counted", name, counts, known.counts)
            made = self._deliveries(state.at("ant:deliveries", name, {}))
            require(made == known.deliveries, "deliveries are what was noticed", name, made, known.deliveries)

    def _deliveries(self, raw: Mapping[str, float]) -> dict[int, tuple[int, float]]:
        numbers = self._numbers() if raw else {}
        parts = ((*member.split(" ")[:2], at) for member, at in raw.items())
        return {numbers[entry]: (int(made), at) for entry, made, at in parts}

    # the end

    def settle_all(self) -> None:
        """Check that endpoints receive all they subscribed to, and that removed webhooks leave nothing."""
        self.world.wait(2 * LEASE_MS)
        for _ in range(40 * (len(self.hooks) + 1)):
            self.world.wait(PAUSE_MS)
            if (one := self.take("the last one")) is None:
                if all(not known.deliveries for known in self.hooks.values()):
                    break
                continue
            while one.left:
                self.send(one)
                self.settle(one, "delivered", 0)
            self.release(one)
        for name, known in self.hooks.items():
            wanted = {
                number
                for number, (kind, _, turn, _) in enumerate(self.world.model.notices)
                if known.wants(number, kind, self.world.model.turns[turn].record.text("tenant"))
            }
            require(wanted <= known.told, "every end that was asked for is told", name, wanted - known.told)
        for name in [*self.hooks]:
            self.remove(name)
