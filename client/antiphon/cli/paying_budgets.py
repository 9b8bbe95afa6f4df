"""The budgets that pay for a turn, as `antiphon explain` shows them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon.client import AsyncClient
from antiphon.model.budget import BudgetScope, BudgetState
from antiphon.session.turn_info import TurnInfo


class PayingBudget(Struct):
    """A stored budget on which the turn draws, with what is used of it."""

    scope: str
    name: str
    state: BudgetState

    def sentence(self) -> str:
        """Return it as one sentence."""
        state, budget = self.state, self.state.budget
        amounts = ", ".join(
            f"{_amount(budget.unit, number)} {word}"
            for word, number in (("used", state.used), ("held", state.held))
        )
        limit = _amount(budget.unit, budget.limit)
        return f"The {self.scope} {self.name} has a budget of {limit} per {budget.per}: {amounts}."


async def budgets_of_turn(client: AsyncClient, info: TurnInfo) -> list[PayingBudget]:
    """Read the stored budgets of a turn's session, tenant, user and agent that more than this turn draws on."""
    names: dict[BudgetScope, str | None] = {
        "session": info.session_id, "tenant": info.tenant, "user": info.user, "agent": info.agent,
    }  # fmt: skip
    found: list[PayingBudget] = []
    for scope, name in names.items():
        if name:
            options: dict[str, Any] = {"tenant": info.tenant} if scope == "user" and info.tenant else {}
            states = await client.budgets(scope, name, **options).read()
            found += [PayingBudget(scope, name, one) for one in states if one.budget.per != "turn"]
    return found


def _amount(unit: str, number: float) -> str:
    return f"${number:,.6g}" if unit == "cost" else f"{number:,.15g} tokens"
