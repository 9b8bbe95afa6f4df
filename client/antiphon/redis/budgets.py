"""The budgets of a deployment: each cell stores all of them, and each ledger is in one cell."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import get_args

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.ids import session_id, tenant_id, user_name
from antiphon.model.budget import Budget, BudgetScope, BudgetState, checked_budgets
from antiphon.redis.cells import Cells
from antiphon.redis.connections import Connections
from antiphon.wire.budgets import (
    read_ledgers,
    scan_budgets,
    split_user,
    stored_budgets,
    user_of,
    wake_waiting,
    with_ledgers,
    write_budgets,
)
from antiphon.wire.cell import Cell

CHECKS = {"session": session_id, "tenant": tenant_id}


class AsyncBudgets:
    """The budgets of one session, tenant, user or agent by its name, or those of all names if it is None.

    >>> from antiphon import AsyncClient
    >>> from antiphon.model import Budget
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> budgets = client.budgets("tenant", "acme")
    >>> await budgets.set([Budget(cost=5, per="day"), Budget(cost=60, per="month", reached="suspend")])
    >>> [(state.budget.limit, state.used) for state in await budgets.read()]
    [(5, 0.0), (60, 0.0)]
    """

    def __init__(
        self, connections: Connections, scope: BudgetScope, name: str | None, tenant: str | None
    ) -> None:
        self._connections = connections
        self._scope: BudgetScope = scope
        self._name = payer_name(scope, name, tenant)

    async def set(self, budgets: Iterable[Budget] | None) -> None:
        """Set all budgets of this name.

        They replace those that an App declares and those for all names. An empty list means no budget; None makes the
        others apply again. Workers notice the first budget of a scope within five seconds; later changes apply from
        the next model call on, and suspended turns check again at once. Usage before a change counts. Raises
        ``UsageError`` and ``StoreError``; if it fails, repeat it.

        >>> await client.budgets("user", "alice", tenant="acme").set([Budget(tokens=100_000, per="month")])
        """
        checked = None if budgets is None else checked_budgets(budgets)
        for cell in self._connections.cells:
            await write_budgets(cell, self._scope, self._name, checked)
        for cell in self._connections.cells:  # once all of them have the change
            await wake_waiting(cell, self._scope, self._name)

    async def read(self) -> list[BudgetState]:
        """Read the stored budgets that apply to this name, and how much of them is used. Raises ``StoreError``.

        >>> await client.budgets("user", "bob").read()
        []
        """
        home = home_of(self._connections.cells, self._scope, self._name)
        stored = await stored_budgets(home, self._scope, self._name)
        return await read_ledgers(home, with_ledgers(self._scope, self._name, stored))

    async def page(self, *, tenant: str | None = None, cursor: str | None = None) -> BudgetPage:
        """Read a page of the scope's stored budgets: those of each name, and those of all names (``name`` is None).

        ``tenant=`` lists the budgets of one tenant or its users. A page has about 50 names, sorted within the page
        only. A name may be repeated while budgets change. Budgets that an App declares are not listed. Raises
        ``StoreError``, and ``UsageError`` for an invalid ``cursor``, for budgets of one name, and for ``tenant=``
        with another scope than ``"tenant"`` and ``"user"``.

        >>> page = await client.budgets("tenant", None).page()
        >>> [(one.name, one.state.budget.limit) for one in page.budgets]
        [('acme', 5), ('acme', 60)]
        """
        if self._name:
            raise UsageError("page() lists the budgets of all names: use budgets(scope, None).")
        return await list_budgets(self._connections.cells, self._scope, tenant=tenant, cursor=cursor)


def payer_name(scope: BudgetScope, name: str | None, tenant: str | None) -> str:
    """Return a name as the ledgers use it, '' for all names of the scope. Raises ``UsageError``."""
    if scope not in get_args(BudgetScope):
        words = ", ".join(repr(word) for word in get_args(BudgetScope))
        raise UsageError(f"The scope of a budget must be one of {words}, not {scope!r}.")
    if tenant is not None and (scope != "user" or name is None):
        raise UsageError('tenant= is the tenant of a user: it needs the scope "user" and a name.')
    if name is None:
        return ""
    checked = CHECKS.get(scope, user_name)(name)
    return user_of(None if tenant is None else tenant_id(tenant), checked) if scope == "user" else checked


class StoredBudget(Struct):
    """A stored budget, and how much of it is used. ``name`` is None if it is for all names without their own.

    ``tenant`` is the user's tenant.
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
    any_cell = next(iter(cells))  # each cell stores all budgets
    if tenant is not None and scope == "tenant":
        stored, after = {tenant_id(tenant): await stored_budgets(any_cell, scope, tenant)}, 0
    else:
        prefix = "" if tenant is None else user_of(tenant_id(tenant), "")
        stored, after = await scan_budgets(any_cell, scope, place, prefix=prefix)
    return BudgetPage(await _states(cells, scope, stored), str(after) if after else None)


async def _states(cells: Cells, scope: BudgetScope, stored: dict[str, list[Budget]]) -> list[StoredBudget]:
    """Read the usage of budgets, in one round trip per cell."""
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
    """Return the cell with a name's daily and monthly ledgers."""
    return cells.of_session(name if scope == "session" else f"{scope}:{name}")
