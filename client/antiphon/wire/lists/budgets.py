"""The stored budgets, by name, and how much of them is used."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import NamedTuple

from antiphon.model.budget import Budget, BudgetState
from antiphon.text import text_of
from antiphon.wire.budgets import decode_budgets, ledger_of, read_ledgers
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

SCOPES = ("tenant", "agent")
"""Users and sessions are too many for metrics."""
MOST_NAMES = 50
MOST_ROUNDS = 100
_GLOB = re.compile(r"([*?\[\]\\^-])")


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
    stored, _ = await scan_budgets(cell, scope)
    first = {name: stored[name] for name in sorted(filter(None, stored))[:MOST_NAMES]}
    wanted = [
        (name, budget, ledger)
        for name, budgets in first.items()
        for budget in budgets
        if (ledger := ledger_of(scope, name, budget))
    ]
    states = await read_ledgers(cell, ((ledger, budget) for _, budget, ledger in wanted))
    return [NamedBudget(scope, name, state) for (name, *_), state in zip(wanted, states, strict=True)]


async def scan_budgets(
    cell: Cell, scope: str, cursor: int = 0, *, prefix: str = ""
) -> tuple[dict[str, list[Budget]], int]:
    """Read about 50 names of a scope with their budgets, and the cursor for the next ones, which is 0 at the end.

    Where few names begin with ``prefix``, it may find none before the end. Raises ``StoreError`` and ``CorruptRecord``.
    """
    pattern, found = _GLOB.sub(r"\\\1", prefix) + "*", dict[bytes, bytes]()
    for _ in range(MOST_ROUNDS):
        cursor, some = await asked(
            cell.redis.hscan(cell.keys.budgets(scope), cursor, match=pattern, count=MOST_NAMES)
        )
        found |= some
        if not cursor or found:
            break
    return {text_of(name): decode_budgets(budgets) for name, budgets in found.items()}, int(cursor)


def with_ledgers(scope: str, name: str, budgets: Iterable[Budget]) -> list[tuple[str, Budget]]:
    """Return the budgets of a name with their ledgers: '' where there is none, or no name."""
    return [(ledger_of(scope, name, budget) if name else "", budget) for budget in budgets]
