"""The budgets of a deployment: they are stored in each cell, and each ledger is in one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from antiphon.errors import UsageError
from antiphon.input.ids import session_id, tenant_id, user_name
from antiphon.model.budget import Budget, BudgetScope, BudgetState, checked_budgets
from antiphon.redis.budget_lists import BudgetPage, home_of, list_budgets
from antiphon.redis.connections import Connections
from antiphon.wire.budgets import read_ledgers, stored_budgets, user_of, wake_waiting, write_budgets
from antiphon.wire.lists.budgets import with_ledgers

CHECKS = {"session": session_id, "tenant": tenant_id}


class AsyncBudgets:
    """The budgets of a session, a tenant, a user or an agent by its name, or with None of all names.

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

        They take the place of those that an App declares and of those for all names; an empty list is no budget, and
        with None the others hold again. Workers notice within five seconds that a scope has its first budget; later
        changes hold from the next model call on, and suspended turns ask again at once. What was used before a change
        counts. Raises ``UsageError`` and ``StoreError``; if it fails, repeat it.

        >>> await client.budgets("user", "alice", tenant="acme").set([Budget(tokens=100_000, per="month")])
        """
        checked = None if budgets is None else checked_budgets(budgets)
        for cell in self._connections.cells:
            await write_budgets(cell, self._scope, self._name, checked)
        for cell in self._connections.cells:  # when all of them have the change
            await wake_waiting(cell, self._scope, self._name)

    async def read(self) -> list[BudgetState]:
        """Read the stored budgets that hold for this name, and how much of them is used. Raises ``StoreError``.

        >>> await client.budgets("user", "bob").read()
        []
        """
        home = home_of(self._connections.cells, self._scope, self._name)
        stored = await stored_budgets(home, self._scope, self._name)
        return await read_ledgers(home, with_ledgers(self._scope, self._name, stored))

    async def page(self, *, tenant: str | None = None, cursor: str | None = None) -> BudgetPage:
        """Read a page of all stored budgets of this scope: of each name, and of all names (``name`` is None).

        ``tenant=`` lists the budgets of one tenant or its users. A page has about 50 names, sorted; the pages are in
        no order. A name may be repeated while budgets change. Budgets that an App declares are not listed. Raises
        ``UsageError`` for a ``cursor`` that no page had, and ``StoreError``.

        >>> page = await client.budgets("tenant", None).page()
        >>> [(one.name, one.state.budget.limit) for one in page.budgets]
        [('acme', 5), ('acme', 60)]
        """
        if self._name:
            raise UsageError("page() lists the budgets of all names: use budgets(scope, None).")
        return await list_budgets(self._connections.cells, self._scope, tenant=tenant, cursor=cursor)


def payer_name(scope: BudgetScope, name: str | None, tenant: str | None) -> str:
    """Return the name of a scope in the ledgers, '' for all of its names. Raises ``UsageError``."""
    if scope not in get_args(BudgetScope):
        words = ", ".join(repr(word) for word in get_args(BudgetScope))
        raise UsageError(f"The scope of a budget must be one of {words}, not {scope!r}.")
    if tenant is not None and (scope != "user" or name is None):
        raise UsageError('tenant= is the tenant of a user: it needs the scope "user" and a name.')
    if name is None:
        return ""
    checked = CHECKS.get(scope, user_name)(name)
    return user_of(None if tenant is None else tenant_id(tenant), checked) if scope == "user" else checked
