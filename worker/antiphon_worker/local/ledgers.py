"""The budget ledgers of a memory cell: what model calls hold and have used."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from antiphon.errors import BudgetReached
from antiphon.model.budget import NANO, Budget
from antiphon.wire.budgets import window_end
from antiphon_worker.local.moves import Answer, Moves
from antiphon_worker.local.records import Record

RANK = {"reject": 3, "suspend": 2, "fallback": 1}
DAY_MS = 86_400_000


class Asked(NamedTuple):
    """A budget that a call draws on, with its ledger."""

    ledger: Record
    scope: str
    name: str
    budget: Budget
    ends: int | None

    @property
    def most(self) -> int:
        cost = self.budget.cost
        return self.budget.tokens or 0 if cost is None else int(cost * NANO + 0.5)


class LedgerTransitions(Moves):
    """The scripts of budgets."""

    def reserve(
        self, turn: str, session: str, fence: str, number: int, cost: Any, tokens: int, lasts_ms: int, switched: str,
        *scopes: Any,
    ) -> Answer:  # fmt: skip
        """Hold what a model call may use at most in all of its budgets, or in none."""
        now, held_as, repeated = self.clock(), f"{fence} {number} ", False
        opened: dict[str, tuple[Record, int]] = {}
        asked: list[Asked] = []
        for scope, payer, part, own, whose, place in _sixes(scopes):
            for budget in self._budgets_of(scope, payer, own):
                if part not in ("all", "inner" if budget.per in ("turn", "session") else "outer"):
                    continue
                name = _ledger(whose or turn, place or session, scope, payer, budget)
                begun = _begun(budget.per, now)
                if name not in opened:
                    ledger = self._ledger(name, begun)
                    begun = max(begun, ledger.number("from"))
                    opened[name] = ledger, begun
                    call = ledger.text(f"call:{turn}")
                    if call and _fence(call) > _fence(fence):
                        return [b"SUPERSEDED"]
                    repeated = repeated or call.startswith(held_as)
                    if call and not call.startswith(held_as):
                        _settle(ledger, turn)
                ledger, begun = opened[name]
                asked.append(Asked(ledger, scope, payer, budget, window_end(budget.per, begun)))
        names = [name.encode() for name in opened]
        wanted = {"cost": int(cost or 0), "tokens": tokens}
        if not repeated:
            no, busy = _refusal(asked, wanted, now, cost == "", switched == "1")
            while busy is not None and self._bury_dead(busy, now):
                no, busy = _refusal(asked, wanted, now, cost == "", switched == "1")
            if no is not None:
                return no
            for name, (ledger, begun) in opened.items():
                self.spent[name] = ledger
                call = f"{held_as}{wanted['cost']} {tokens} {now + lasts_ms}"
                ledger.put(**{"from": begun, f"call:{turn}": call})
                for unit, amount in wanted.items():
                    _add(ledger, f"held_{unit}", amount)
        return [b"RESERVED", names]

    def capture(
        self, turn: str, fence: str, number: int, cost: int, tokens: int, estimated: str, *ledgers: str
    ) -> Answer:
        """Settle a model call: replace its hold by what it has used."""
        for name in ledgers:
            ledger = self.spent.get(name, Record())
            if ledger.text(f"call:{turn}").startswith(f"{fence} {number} "):
                _settle(ledger, turn, {"cost": cost, "tokens": tokens}, estimated=estimated == "1")
        return [b"CAPTURED"]

    def note(self, session_id: str, turn_id: str, fence: str, scope: str) -> Answer:
        """Note which scope's budget a turn will wait for."""
        if self._held(session_id, fence) is None:
            return [b"SUPERSEDED"]
        self.unfunded[turn_id] = scope
        return [b"NOTED"]

    def wake(self, scope: str, since: str, count: int) -> Answer:
        """Queue the turns that wait for a budget of this scope."""
        for turn_id, kept_by in list(self.unfunded.items()):
            if scope in (kept_by, kept_by.partition(" ")[0]):
                del self.unfunded[turn_id]
                turn = self.turns[turn_id]
                if turn.status == "retrying" and turn.record.text("retry_code") == BudgetReached.code:
                    self._ready(turn.session, self.clock(), front=True)
        return [b"WOKEN", b""]

    def _budgets_of(self, scope: str, name: str, own: bytes) -> list[Budget]:
        stored = self.budgets.get(scope, {})
        return msgspec.json.decode(stored.get(name) or own or stored.get("") or b"[]", type=list[Budget])

    def _ledger(self, name: str, begun: int) -> Record:
        """Return a ledger; a new one if there is none, or if its day or month is over."""
        ledger = self.spent.get(name)
        if ledger is not None and ledger.number("from") < begun:
            del self.spent[name]
            ledger = None
        return Record() if ledger is None else ledger

    def _bury_dead(self, ledger: Record, now: int) -> bool:
        """Settle the calls that ended without being settled, by estimate. Returns whether there are any."""
        calls = [name.removeprefix("call:") for name in ledger if name.startswith("call:")]
        dead = [turn for turn in calls if self._is_dead(turn, ledger.text(f"call:{turn}"), now)]
        for turn in dead:
            _settle(ledger, turn)
        return bool(dead)

    def _is_dead(self, turn: str, call: str, now: int) -> bool:
        fence, *_, lasts = call.split(" ")
        if int(lasts) < now:
            return True
        known = self.turns.get(turn)
        return known is not None and known.session.record.text("fence") != fence


def _refusal(
    asked: list[Asked], wanted: dict[str, int], now: int, unpriced: bool, switched: bool
) -> tuple[Answer | None, Record | None]:
    """Return what prevents a call from starting, and the ledger whose rest other calls hold."""
    worst: Asked | None = None
    busy: Record | None = None
    for one in asked:
        unit = one.budget.unit
        used, held = one.ledger.number(unit), one.ledger.number(f"held_{unit}")
        if unit == "cost" and unpriced:
            return [b"UNPRICED"], None
        if one.budget.reached == "fallback" and switched:
            continue
        if used >= one.most:
            if worst is None or RANK[one.budget.reached] > RANK[worst.budget.reached]:
                worst = one
        elif held > 0 and used + held + wanted[unit] > one.most and busy is None:
            busy = one.ledger
    if worst is not None:
        unit, ms = worst.budget.unit, worst.ends - now if worst.ends else 0
        numbers = worst.most, worst.ledger.number(unit), ms
        words = worst.budget.reached, worst.scope, worst.budget.per, unit, *map(str, numbers), worst.name
        return [b"REACHED", *(word.encode() for word in words)], None
    return None if busy is None else [b"BUSY"], busy


def _settle(ledger: Record, turn: str, used: dict[str, int] | None = None, *, estimated: bool = True) -> None:
    """Settle a call; without ``used``, its whole hold counts as used."""
    _, _, cost, tokens, _ = ledger.text(f"call:{turn}").split(" ")
    ledger.drop(f"call:{turn}")
    for unit, held in {"cost": int(cost), "tokens": int(tokens)}.items():
        amount = held if used is None else used[unit]
        _add(ledger, f"held_{unit}", -held)
        _add(ledger, unit, amount)
        if estimated:
            _add(ledger, f"estimated_{unit}", amount)


def _add(ledger: Record, name: str, amount: int) -> None:
    ledger.put(**{name: ledger.number(name) + amount})


def _ledger(turn: str, session: str, scope: str, name: str, budget: Budget) -> str:
    if budget.per in ("turn", "session"):
        return f"turn:{turn}" if budget.per == "turn" else f"session::{session}"
    return f"{scope}:{budget.per}:{name}"


def _begun(per: str, now: int) -> int:
    """Return when the day or month of ``now`` began, in ms; 0 for other budgets."""
    if per == "day":
        return now // DAY_MS * DAY_MS
    if per != "month":
        return 0
    first = datetime.fromtimestamp(now / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(first.timestamp() * 1000)


def _fence(call: str) -> int:
    return int(call.partition("-")[0])


def _sixes(values: tuple[Any, ...]) -> Iterator[tuple[str, str, str, bytes, str, str]]:
    return zip(*[iter(values)] * 6, strict=True)  # type: ignore[return-value]
