"""Budgets: what the turns of a session, a tenant, a user or an agent may use together."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon.client import AsyncBudgets
from antiphon.model.budget import Budget, BudgetState
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import Given, OfTenant


class BudgetQuery(OfTenant, kw_only=True):
    """Whose budgets: those of a ``name`` (of a session, tenant, user or agent), or without it those of all names.

    ``tenant`` is the tenant of a user, for keys of every tenant.
    """

    name: str | None = None


class SetBudgets(Given):
    """All budgets of a name. An empty list is no budget; with null those for all names, or of the App, hold again."""

    budgets: list[Budget] | None


class BudgetList(Struct):
    """Budgets, and how much of each is used."""

    budgets: list[BudgetState]


@operation("GET", "/budgets/{scope}", right="admin")
async def show_budgets(call: Call[BudgetQuery, None]) -> BudgetList:
    """Read the stored budgets of a `session`, `tenant`, `user` or `agent`, and how much of them is used

    A key of one tenant reads those of its tenant and of its tenant's users.
    """
    return BudgetList(await _budgets(call, change=False).read())


@operation("PUT", "/budgets/{scope}", right="admin", status=204)
async def set_budgets(call: Call[BudgetQuery, SetBudgets]) -> None:
    """Set all budgets of a name; turns that were suspended because of one ask again at once

    A key of one tenant sets those of its tenant's users.
    """
    await _budgets(call, change=True).set(call.body.budgets)


def _budgets(call: Call[BudgetQuery, Any], *, change: bool) -> AsyncBudgets:
    """The budgets that the caller may use. Raises ``Refused``: they hold for sessions of every key."""
    scope: Any = call.path["scope"]
    name, tenant = call.query.name, call.query.tenant
    call.caller.check_every_session()
    if scope == "user" and name is not None:
        tenant = call.caller.tenant_for(tenant)
    elif scope == "tenant" and name is not None and not change:
        call.caller.tenant_for(name)
    else:
        call.caller.check_everywhere()
    return call.client.budgets(scope, name, tenant=tenant)


OPERATIONS = [show_budgets, set_budgets]
