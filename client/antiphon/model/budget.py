"""Budgets: what all turns together may use in a turn, a session, a day or a month."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, Literal, TypeAlias, cast, get_args

from msgspec import Struct

from antiphon.errors import UsageError

Per: TypeAlias = Literal["turn", "session", "day", "month"]
AtBudget: TypeAlias = Literal["reject", "suspend", "fallback"]
BudgetScope: TypeAlias = Literal["session", "tenant", "user", "agent"]
BUDGET_SCOPES: tuple[BudgetScope, ...] = get_args(BudgetScope)
NANO = 1_000_000_000
"""Ledgers count whole nano-dollars."""
MOST_BUDGETS = 8
_MOST = {"cost": 1_000_000.0, "tokens": 1_000_000_000_000}


class Budget(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, forbid_unknown_fields=True):
    """The most that model calls may use together: ``Budget(cost=5, per="day")``, in US dollars, or ``tokens=``.

    ``per`` is the period: each turn, each session, or each day or month (UTC, by the clock of Redis). Before each
    model call, the worker reserves the most that the call may use; afterwards it settles this hold. Any number
    of parallel turns exceed a budget by at most one model call in total.

    ``reached`` decides what happens to a turn that would call a model when the budget is used up: ``"reject"`` fails
    it with ``BudgetReached``, ``"suspend"`` suspends it until the budget is raised or its next day or month begins,
    and ``"fallback"`` lets the agent's next ``fallback`` answer, which is exempt from this budget.

    >>> Budget(cost=5, per="month").limit
    5
    """

    cost: float | None = None
    tokens: int | None = None
    per: Per = "day"
    reached: AtBudget = "reject"

    @property
    def unit(self) -> Literal["cost", "tokens"]:
        """The unit that the budget counts."""
        return "tokens" if self.cost is None else "cost"

    @property
    def limit(self) -> float:
        """The number of dollars or tokens."""
        return cast("float", getattr(self, self.unit))


class BudgetState(Struct, frozen=True):
    """A budget and how much of it is used, in dollars or tokens.

    ``held`` is the amount that running model calls have reserved. ``estimated`` is the part of ``used`` that no
    service has counted, because the call was stopped or its worker died. ``ends`` is when the day or month ends, in
    ms since 1970. For a budget per turn, these are empty: see ``turn.info().usage``.
    """

    budget: Budget
    used: float = 0.0
    held: float = 0.0
    estimated: float = 0.0
    ends: int | None = None


def checked_budgets(budgets: object) -> list[Budget]:
    """Return the budgets. Raises ``UsageError``, which names the invalid one.

    >>> checked_budgets([Budget(cost=1.0, tokens=5)])
    Traceback (most recent call last):
    antiphon.errors.UsageError: A Budget needs cost= or tokens=, and not both: Budget(cost=1.0, tokens=5).
    """
    if not isinstance(budgets, Iterable) or isinstance(budgets, str | bytes):
        raise UsageError(f"budgets= must be a list of Budget(…), not {budgets!r}.")
    found = list(cast("Iterable[Any]", budgets))
    if len(found) > MOST_BUDGETS:
        raise UsageError(f"Give up to {MOST_BUDGETS} budgets, not {len(found)}.")
    for one in found:
        _check(one)
    return found


def _check(one: object) -> None:
    if not isinstance(one, Budget):
        raise UsageError(f"budgets= must be a list of Budget(…), and has {one!r}.")
    if (one.cost is None) == (one.tokens is None):
        raise UsageError(f"A Budget needs cost= or tokens=, and not both: {one!r}.")
    value, most = getattr(one, one.unit), _MOST[one.unit]
    kinds = (int,) if one.unit == "tokens" else (int, float)
    if type(value) not in kinds or not isfinite(value) or not 0 < value <= most:
        kind = "a whole number from 1" if one.unit == "tokens" else "a number above 0, and"
        raise UsageError(f"Budget({one.unit}=…) must be {kind} up to {most:,.15g}, not {value!r}.")
    for name, known in (("per", Per), ("reached", AtBudget)):
        if getattr(one, name) not in get_args(known):
            words = " or ".join(repr(word) for word in get_args(known))
            raise UsageError(f"Budget({name}=…) must be {words}, not {getattr(one, name)!r}.")
