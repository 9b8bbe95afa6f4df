"""Budgets: model calls hold the most they may use, and a service bills them, whatever happens to their workers.

Each method is one script. The model has the same ledgers; what services bill is added up here independently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon.input.ids import SessionId, TurnId
from antiphon.model import Budget, encode
from antiphon.wire.budgets import (
    Answer,
    Call,
    Payer,
    Reserved,
    capture,
    note_waiting,
    reserve,
    user_of,
    wake_waiting,
    window_end,
)
from antiphon.wire.records import ClaimedTurn
from simulation.direct import run
from simulation.state import State, require

if TYPE_CHECKING:
    from simulation.world import World

AGENT = "agent"
OWN = (Budget(tokens=300, per="session", reached="fallback"),)
"""The budgets that the App declares for the agent."""
NANO = 1e-9
LASTS_MS = 30_000


@dataclass
class Bill:
    """A model call as known to its service: what it may bill, or has billed."""

    cost: int
    tokens: int
    over: bool = False


@dataclass
class Hold:
    """A model call in progress."""

    call: Call
    ledgers: list[str]
    bill: Bill


@dataclass
class Account:
    """What was billed for the calls of a ledger since its day or month began."""

    begun: int = 0
    ends: int | None = None
    bills: dict[tuple[str, str, int], Bill] = field(default_factory=dict)

    def total(self, unit: str) -> int:
        return sum(getattr(bill, unit) for bill in self.bills.values())


@dataclass
class Money:
    """All budgets of a world, whose ledgers are compared after every step."""

    world: World
    accounts: dict[str, Account] = field(default_factory=dict)
    bills: dict[tuple[str, str, int], Bill] = field(default_factory=dict)
    wanted: list[tuple[str, str]] = field(default_factory=list)  # scopes and names with waiting turns

    # callers that set budgets

    def set(self, scope: str, name: str, budgets: Sequence[Budget] | None, *, wakes: bool) -> None:
        """Change the budgets of a name. A caller may die before it ``wakes`` the waiting turns."""
        stored = self.world.model.budgets.setdefault(scope, {})
        key = f"ant:budgets:{scope}"
        if budgets is None:
            stored.pop(name, None)
            self.world.redis.call("HDEL", key, name)
        else:
            stored[name] = encode(budgets)
            self.world.redis.call("HSET", key, name, stored[name])
        self.world.did(f"the budgets of {scope} {name!r} are {budgets}")
        if wakes:
            run(wake_waiting(self.world.cell, scope, name))
            self.world.did(f"whom {scope} {name!r} keeps waiting is woken")

    # workers

    def reserve(
        self,
        turn: ClaimedTurn,
        number: int,
        cost: int | None,
        tokens: int,
        *,
        switched: bool,
        parts: Sequence[str],
    ) -> Answer | Hold:
        """Hold what a call may use, in each cell that has a part of its ledgers; in none if one refuses."""
        call = Call(
            TurnId(turn.turn_id), SessionId(turn.session_id), turn.fence, number, cost, tokens, LASTS_MS
        )
        bill = self.bills.setdefault((call.turn_id, call.fence, number), Bill(cost or 0, tokens))
        payers, ledgers = self._payers(turn), []
        for part in parts:
            answer = run(
                reserve(self.world.cell, call, [(payer, part) for payer in payers], switched=switched)
            )
            self._close_old()
            self.world.did(
                f"reserve {turn.turn_id}/{turn.fence} {number}: {cost}, {tokens} {part}{' switched' * switched}",
                answer,
            )
            if not isinstance(answer, Reserved):
                self.settle(Hold(call, ledgers, bill), 0, 0)
                return answer
            ledgers += answer.ledgers
            for payer in payers:
                self._open(call, payer, part, bill, switched=switched)
        return Hold(call, ledgers, bill)

    def settle(self, hold: Hold, cost: int, tokens: int, *, estimated: bool = False) -> None:
        """Settle a call that a service has billed, whether or not its worker still holds the turn."""
        call, bill = hold.call, hold.bill
        if not bill.over:
            bill.cost, bill.tokens, bill.over = cost, tokens, True
        if hold.ledgers:
            run(
                capture(
                    self.world.cell,
                    call,
                    hold.ledgers,
                    cost=bill.cost,
                    tokens=bill.tokens,
                    estimated=estimated,
                )
            )
            self.world.did(f"capture {call.turn_id}/{call.fence} {call.number}: {bill.cost}, {bill.tokens}")

    def note(self, turn: ClaimedTurn, scope: str) -> bool:
        """Note that a turn will wait for a budget of this scope."""
        name = next(payer.name for payer in self._payers(turn) if payer.scope == scope)
        call = Call(turn.turn_id, turn.session_id, turn.fence, 0, 0, 0, 0)
        answer = run(note_waiting(self.world.cell, call, scope, name))
        self.wanted.append((scope, name))
        return self.world.did(f"{turn.turn_id}/{turn.fence} will wait for {scope} {name!r}", answer)

    def _payers(self, turn: ClaimedTurn) -> list[Payer]:
        user = self.world.model.turns[turn.turn_id].record.text("user")
        names = {
            "session": turn.session_id,
            "tenant": turn.tenant,
            "user": user and user_of(turn.tenant, user),
        }
        return [*(Payer(scope, name) for scope, name in names.items() if name), Payer("agent", AGENT, OWN)]

    # what must hold, whatever the ledgers contain

    def _open(self, call: Call, payer: Payer, part: str, bill: Bill, *, switched: bool) -> None:
        """Start a call; check that what services have billed and may yet bill leaves some of each of its budgets."""
        key = call.turn_id, call.fence, call.number
        for budget in self._budgets(payer):
            if part not in ("all", "inner" if budget.per in ("turn", "session") else "outer"):
                continue
            name = _ledger(call, payer, budget)
            if f"call:{call.turn_id}" not in self.world.model.spent.get(name, {}):
                continue  # a repetition: the call started before it had this budget
            account = self._account(name, budget)
            begins = key not in account.bills
            account.bills[key] = bill
            if begins and not (switched and budget.reached == "fallback"):
                own = getattr(bill, budget.unit)
                others = account.total(budget.unit) - own
                most = round(budget.limit / NANO) if budget.unit == "cost" else budget.limit
                held = others < most or others + own <= most
                require(held, "G22 calls exceed a budget by one of them at most", name, budget, others)

    def _account(self, name: str, budget: Budget) -> Account:
        begun = self.world.model.spent[name].number("from")
        if name in self.accounts and begun > self.accounts[name].begun:
            self._close(name)
        account = self.accounts.setdefault(name, Account())
        account.begun, account.ends = begun, window_end(budget.per, begun)
        return account

    def _budgets(self, payer: Payer) -> list[Budget]:
        return self.world.model._budgets_of(payer.scope, payer.name, encode(payer.own) if payer.own else b"")

    def _close_old(self) -> None:
        """Close the ledgers whose day or month was found to be over by a refused call."""
        for name in [name for name in self.accounts if name not in self.world.model.spent]:
            self._close(name)

    def _close(self, name: str) -> None:
        """Close a ledger; check that it ends with its day or month, or with its session or turn."""
        ends, now = self.accounts.pop(name).ends, self.world.model.now
        held = name.startswith(("session:", "turn:")) or (ends is not None and ends <= now)
        require(held, "G22 a ledger lasts as long as its day or month", name, ends)

    # after every step

    def check(self, state: State) -> None:
        expected = {name: _numbers(ledger) for name, ledger in self.world.model.spent.items()}
        found = {name: _numbers(ledger) for name, ledger in state.all("ant:spent").items()}
        require(found == expected, "G22 ledgers have what calls hold and have used", found, expected)
        noted, waiting = state.at("ant:unfunded", "", {}), self.world.model.noted
        require(noted == waiting, "G22 who waits for a budget is noted", noted, waiting)


def _ledger(call: Call, payer: Payer, budget: Budget) -> str:
    match budget.per:
        case "turn":
            return f"turn:{call.turn_id}"
        case "session":
            return f"session::{call.session_id}"
        case per:
            return f"{payer.scope}:{per}:{payer.name}"


def _numbers(ledger: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return a ledger in comparable form: zero counts as absent."""
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in ledger.items()}
    return {name: value for name, value in texts.items() if value != "0"}
