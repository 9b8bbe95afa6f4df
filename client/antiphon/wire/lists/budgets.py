"""The stored budgets of tenants and agents for a day or month, by name, and how much of them is used."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from antiphon.model.budget import BudgetState
from antiphon.text import text_of
from antiphon.wire.budgets import decode_budgets, ledger_of, read_ledger
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

SCOPES = ("tenant", "agent")
"""Users and sessions are too many to be listed."""
MOST_NAMES = 50


class NamedBudget(NamedTuple):
    """A budget of a tenant or an agent, and how much of it is used by what this cell counts."""

    scope: str
    name: str
    state: BudgetState


async def named_budgets(cell: Cell) -> list[NamedBudget]:
    """Read the budgets of up to 50 tenants and 50 agents that have budgets of their own. Raises ``StoreError``."""
    found = await asyncio.gather(*(_of_scope(cell, scope) for scope in SCOPES))
    return [one for budgets in found for one in budgets]


async def _of_scope(cell: Cell, scope: str) -> list[NamedBudget]:
    _, stored = await asked(cell.redis.hscan(cell.keys.budgets(scope), 0, count=MOST_NAMES))
    names = sorted(text_of(name) for name in stored if name)[:MOST_NAMES]
    wanted = [
        (name, budget, ledger)
        for name in names
        for budget in decode_budgets(stored[name.encode()])
        if (ledger := ledger_of(scope, name, budget))
    ]
    states = await asyncio.gather(*(read_ledger(cell, ledger, budget) for _, budget, ledger in wanted))
    return [NamedBudget(scope, name, state) for (name, *_), state in zip(wanted, states, strict=True)]
