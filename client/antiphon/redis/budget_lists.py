"""Lists the stored budgets of a scope, with what is used of each."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.ids import tenant_id
from antiphon.model.budget import Budget, BudgetScope, BudgetState
from antiphon.redis.cells import Cells
from antiphon.wire.budgets import read_ledgers, split_user, stored_budgets, user_of
from antiphon.wire.cell import Cell
from antiphon.wire.lists.budgets import scan_budgets, with_ledgers


class StoredBudget(Struct):
    """A stored budget, and how much of it is used. ``name`` is None for the one of all names that have none.

    ``tenant`` is that of a user.
    """

    scope: BudgetScope
    name: str | None
    tenant: str | None
    state: BudgetState


class BudgetPage(Struct):
    """Stored budgets of a scope. ``cursor`` is for the next page, None at the end; a page before it may be empty."""

    budgets: list[StoredBudget]
    cursor: str | None = None


async def list_budgets(
    cells: Cells, scope: BudgetScope, *, tenant: str | None = None, cursor: str | None = None
) -> BudgetPage:
    """Read a page of budgets, with ``tenant`` only those of one tenant or of its users.

    Raises ``UsageError`` and ``StoreError``.
    """
    place = _place(cursor)
    if tenant is not None and scope not in ("tenant", "user"):
        raise UsageError(f"tenant= lists the budgets of a tenant or its users, not those of each {scope}.")
    any_cell = next(iter(cells))  # all have all budgets
    if tenant is not None and scope == "tenant":
        stored, after = {tenant_id(tenant): await stored_budgets(any_cell, scope, tenant)}, 0
    else:
        prefix = "" if tenant is None else user_of(tenant_id(tenant), "")
        stored, after = await scan_budgets(any_cell, scope, place, prefix=prefix)
    return BudgetPage(await _states(cells, scope, stored), str(after) if after else None)


async def _states(cells: Cells, scope: BudgetScope, stored: dict[str, list[Budget]]) -> list[StoredBudget]:
    """Read what is used of budgets, of each cell in one round trip."""
    wanted: dict[Cell, list[tuple[str, str, Budget]]] = defaultdict(list)
    for name, budgets in sorted(stored.items()):
        of_name = with_ledgers(scope, name, budgets)
        wanted[home_of(cells, scope, name)] += [(name, *one) for one in of_name]
    read = await asyncio.gather(
        *(read_ledgers(cell, [one[1:] for one in some]) for cell, some in wanted.items())
    )
    names = [name for some in wanted.values() for name, *_ in some]
    states = [state for some in read for state in some]
    found = [_stored(scope, name, state) for name, state in zip(names, states, strict=True)]
    return sorted(found, key=lambda one: (one.name or "", one.tenant or ""))


def _stored(scope: BudgetScope, name: str, state: BudgetState) -> StoredBudget:
    tenant, own = split_user(name) if scope == "user" else (None, name)
    return StoredBudget(scope, own or None, tenant, state)


def _place(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
        raise UsageError("cursor= must be the cursor of a page of budgets.")
    return int(cursor)


def home_of(cells: Cells, scope: str, name: str) -> Cell:
    """Return the cell with the ledgers of a scope for days and months."""
    return cells.of_session(name if scope == "session" else f"{scope}:{name}")
