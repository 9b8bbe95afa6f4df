"""Budgets: what the turns of a session, a tenant, a user or an agent may use together."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from antiphon.client import AsyncBudgets
from antiphon.model.budget import Budget, BudgetScope, BudgetState
from antiphon.redis.budget_lists import StoredBudget
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import Given, OfTenant

LISTED: tuple[BudgetScope, ...] = ("tenant", "agent", "user", "session")
OF_TENANT: tuple[BudgetScope, ...] = ("tenant", "user")
PAGE = 50


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


class BudgetsQuery(OfTenant, kw_only=True):
    """Which budgets: of a ``scope``, or of all; of a ``tenant``. ``cursor`` is that of the page before."""

    scope: BudgetScope | None = None
    cursor: Annotated[str, Meta(max_length=40)] | None = None


class StoredBudgets(Struct):
    """Stored budgets, and how much of each is used. ``cursor`` is for the next page, null at the end."""

    budgets: list[StoredBudget]
    cursor: str | None


@operation("GET", "/budgets", right="admin")
async def list_budgets(call: Call[BudgetsQuery, None]) -> StoredBudgets:
    """List the stored budgets of tenants, agents, users and sessions, and how much of each is used

    A key of one tenant lists those of its tenant and of its tenant's users. Budgets that an App declares are not
    listed. A page may be empty before the end.
    """
    call.caller.check_every_session()
    asked, tenant = call.query, call.caller.tenant_for(call.query.tenant)
    if asked.scope is not None and asked.scope not in OF_TENANT:
        call.caller.check_everywhere()
    scopes: list[BudgetScope] = [
        one for one in LISTED if asked.scope in (None, one) and (tenant is None or one in OF_TENANT)
    ]
    begun, _, place = (asked.cursor or ":0").partition(":")
    at = next((n for n, one in enumerate(scopes) if one == begun), 0)
    found: list[StoredBudget] = []
    for scope in scopes[at:]:
        if len(found) >= PAGE:
            return StoredBudgets(found, f"{scope}:0")
        page = await call.client.budgets(scope, None).page(tenant=tenant, cursor=place)
        found += page.budgets
        if page.cursor is not None:
            return StoredBudgets(found, f"{scope}:{page.cursor}")
        place = "0"
    return StoredBudgets(found, None)


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


OPERATIONS = [list_budgets, show_budgets, set_budgets]
