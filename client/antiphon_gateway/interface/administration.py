"""Facts, schedules, webhooks, tenant limits and budgets, and the deployment that they belong to."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.client import (
    AgentRevision,
    AsyncAgents,
    AsyncBudgets,
    AsyncFacts,
    AsyncSchedules,
    AsyncWebhooks,
    Fact,
    Promotion,
    Schedule,
    TenantLimits,
    Webhook,
)
from antiphon.input.options import given
from antiphon.model.budget import Budget, BudgetScope, BudgetState
from antiphon.redis.budgets import StoredBudget
from antiphon.redis.deployment import QueueState, list_queues, list_workers
from antiphon.session.work import options_of
from antiphon.wire.lists.workers import WorkerRow
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.interface.bodies import Given, OfTenant, PageQuery, SetSchedule
from antiphon_gateway.problems import Refused


class FactsQuery(Struct, kw_only=True):
    """Whose facts: an ``agent``'s, a ``session``'s or a whole tenant's, according to the memory's scope.

    ``memory`` is the name of its ``FactModel``. ``tenant`` is for keys of every tenant.
    """

    memory: str = "memory"
    agent: str | None = None
    session: str | None = None
    tenant: str | None = None


class FactText(Struct, kw_only=True, forbid_unknown_fields=True):
    """The text of the fact, at most 1,000 characters."""

    text: str


class FactList(Struct):
    """Facts, the oldest first."""

    facts: list[Fact]


@operation("GET", "/facts", right="read")
async def list_facts(call: Call[FactsQuery, None]) -> FactList:
    """List what a memory knows"""
    return FactList([one async for one in _facts(call)])


@operation("POST", "/facts", right="write", status=201)
async def add_fact(call: Call[FactsQuery, FactText]) -> Answer[Fact]:
    """Add a fact, as a person knows it"""
    fact = await _facts(call).add(call.body.text)
    return Answer(fact, 201, {"location": call.address("facts", fact.id)})


@operation("PATCH", "/facts/{fact}", right="write")
async def edit_fact(call: Call[FactsQuery, FactText]) -> Fact:
    """Change the text of a fact; earlier turns cannot change it again"""
    return await _facts(call).edit(call.path["fact"], call.body.text)


@operation("DELETE", "/facts/{fact}", right="write", status=204)
async def delete_fact(call: Call[FactsQuery, None]) -> None:
    """Delete a fact; it is not extracted again from the same turns"""
    await _facts(call).delete(call.path["fact"])


def _facts(call: Call[FactsQuery, Any]) -> AsyncFacts:
    """Return the facts that the caller may use. Raises ``Refused``.

    Facts of a tenant or an agent come from all its sessions.
    """
    asked = call.query
    if asked.session is None:
        call.caller.check_every_session()
    else:
        call.caller.check_session(asked.session)
    tenant = call.caller.tenant_for(asked.tenant)
    return call.client.memory(asked.memory, tenant=tenant, agent=asked.agent, session=asked.session)


class ScheduleList(Struct):
    """Schedules, in any order."""

    schedules: list[Schedule]


@operation("GET", "/schedules", right="admin")
async def list_schedules(call: Call[PageQuery, None]) -> ScheduleList:
    """List the schedules of all sessions that the key may use"""
    known = call.client.schedules(tenant=call.caller.tenant_for(call.query.tenant))
    return ScheduleList(await call.page(aiter(known), call.query.limit))


@operation("GET", "/sessions/{session}/schedules", right="admin")
async def list_schedules_of_session(call: Call[PageQuery, None]) -> ScheduleList:
    """List the schedules of a session: when each is due next, and what came of its last turn"""
    session, tenant = call.path["session"], call.caller.tenant_for(call.query.tenant)
    await call.client.snapshot(session, tenant=tenant, last=0)  # refuses another tenant's
    known = call.client.schedules(session, tenant=tenant)
    return ScheduleList(await call.page(aiter(known), call.query.limit))


@operation("PUT", "/sessions/{session}/schedules/{schedule}", right="admin", status=204, body=SetSchedule)
async def set_schedule(call: Call[None, Any]) -> None:
    """Submit a turn at an interval, at the times of a cron expression, or for each event

    Each due time, or event that no turn waits for, submits one turn. The schedule replaces the one of the same name.
    """
    asked, options = call.body, given(call.body, options_of("schedule"))
    schedules = call.client.schedules(
        call.path["session"], tenant=call.caller.tenant_for(options.pop("tenant", None))
    )
    if user := call.caller.user_for(options.get("user")):
        options["user"] = user
    await schedules.set(
        call.path["schedule"],
        asked.input,
        every=asked.every,
        cron=asked.cron,
        tz=asked.tz,
        on=asked.on,
        **options,
    )


@operation("POST", "/sessions/{session}/schedules/{schedule}/pause", right="admin", status=204)
async def pause_schedule(call: Call[None, None]) -> None:
    """Submit no turns of this schedule until it is resumed"""
    await _of_session(call).pause(call.path["schedule"])


@operation("POST", "/sessions/{session}/schedules/{schedule}/resume", right="admin", status=204)
async def resume_schedule(call: Call[None, None]) -> None:
    """Submit the turns of a schedule again, from its next time on"""
    await _of_session(call).resume(call.path["schedule"])


@operation("DELETE", "/sessions/{session}/schedules/{schedule}", right="admin", status=204)
async def delete_schedule(call: Call[None, None]) -> None:
    """Remove a schedule; the turns that it has submitted stay"""
    await _of_session(call).delete(call.path["schedule"])


def _of_session(call: Call[None, None]) -> AsyncSchedules:
    return call.client.schedules(call.path["session"], tenant=call.caller.tenant)


MOST_OF_A_TENANT = 10
"""A deployment has at most 100 webhooks: no tenant may use them all."""


class SetWebhook(Struct, kw_only=True, forbid_unknown_fields=True):
    """A URL and the events it receives: ends of these ``types``, of turns of this ``agent``; all if they are left out.

    Without a ``secret`` it keeps its own, or gets one. ``private`` allows ``http://`` and non-public
    addresses: it is for keys of every session of every tenant, as is ``tenant``.
    """

    url: str
    types: list[str] | None = None
    agent: str | None = None
    secret: Annotated[str, Meta(max_length=1000)] | None = None
    private: bool = False
    tenant: str | None = None


class WebhookList(Struct):
    """Webhooks by name, without their secrets."""

    webhooks: list[Webhook]


class WebhookSecret(Struct):
    """The secret that signs the webhook's messages; several, separated by spaces, while one replaces another."""

    secret: str


@operation("GET", "/webhooks", right="admin")
async def list_webhooks(call: Call[OfTenant, None]) -> WebhookList:
    """List the webhooks of the key's tenant, and how their deliveries go"""
    return WebhookList([one async for one in _of_tenant(call, call.query.tenant)])


@operation("PUT", "/webhooks/{webhook}", right="admin")
async def set_webhook(call: Call[None, SetWebhook]) -> WebhookSecret:
    """Set a webhook: a URL that receives completion events from now on

    The messages are signed as standardwebhooks.com specifies, and sent again until they are acknowledged.
    """
    given = call.body
    if given.private:
        call.caller.check_everywhere()
    webhooks, name = _of_tenant(call, given.tenant), call.path["webhook"]
    if call.caller.tenant is not None:
        known = {one.name async for one in webhooks} | {name}
        if len(known) > MOST_OF_A_TENANT:
            raise Refused(
                429, "limit_reached", f"A tenant has at most {MOST_OF_A_TENANT} webhooks: delete one."
            )
    secret = await webhooks.set(
        name, given.url, types=given.types, agent=given.agent, secret=given.secret,
        private=given.private,
    )  # fmt: skip
    return WebhookSecret(secret)


@operation("DELETE", "/webhooks/{webhook}", right="admin", status=204)
async def delete_webhook(call: Call[None, None]) -> None:
    """Remove a webhook; its waiting events are dropped"""
    await _of_tenant(call, None).delete(call.path["webhook"])


def _of_tenant(call: Call[Any, Any], asked: str | None) -> AsyncWebhooks:
    """Return the webhooks that the caller may use. Raises ``Refused``: they report every session of a tenant."""
    call.caller.check_every_session()
    return call.client.webhooks(tenant=call.caller.tenant_for(asked))


class QueueList(Struct):
    """All queues, by name."""

    queues: list[QueueState]


class WorkerList(Struct):
    """All live worker processes."""

    workers: list[WorkerRow]


class AgentsQuery(Struct, kw_only=True):
    """With ``sessions``, the sessions on each revision are counted, which reads all sessions."""

    sessions: bool = False


class AgentList(Struct):
    """The agents of the workers, by name and revision, and what was promoted, by agent."""

    agents: list[AgentRevision]
    promotions: dict[str, Promotion]


class Promote(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which ``revision`` (or label) of an agent sessions take: a ``share`` of all, a ``tenant``'s, one, or all."""

    revision: str
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    tenant: str | None = None
    session: str | None = None


class SetLimits(Struct, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant. A limit that is omitted or null returns to the default."""

    in_flight: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    waiting: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    per_minute: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    user_turns: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    user_in_flight: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    user_per_minute: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    stored_bytes: Annotated[int, Meta(ge=1, le=2**50)] | None = None


@operation("GET", "/queues", right="admin")
async def show_queues(call: Call[None, None]) -> QueueList:
    """Read the queues: how many turns are in each, and the age of the oldest one

    Only for keys of every session of every tenant.
    """
    call.caller.check_everywhere()
    return QueueList(await list_queues(call.client.connections))


@operation("GET", "/workers", right="admin")
async def show_workers(call: Call[None, None]) -> WorkerList:
    """Read the live worker processes and their turns

    Only for keys of every session of every tenant.
    """
    call.caller.check_everywhere()
    return WorkerList(await list_workers(call.client.connections))


@operation("GET", "/agents", right="admin")
async def show_agents(call: Call[AgentsQuery, None]) -> AgentList:
    """Read the agents of the workers by revision, what runs on each, and which ones sessions take

    Only for keys of every session of every tenant.
    """
    known = _agents(call, sessions=call.query.sessions)
    return AgentList([one async for one in known], await known.promotions())


@operation("POST", "/agents/{agent}/promote", right="admin")
async def promote_agent(call: Call[None, Promote]) -> Promotion:
    """Let the next turns of sessions take a revision of an agent

    Only for keys of every session of every tenant.
    """
    asked = call.body
    return await _agents(call).promote(
        f"{call.path['agent']}@{asked.revision}",
        share=asked.share,
        tenant=asked.tenant,
        session=asked.session,
    )


@operation("POST", "/agents/{agent}/pause", right="admin")
async def pause_agent(call: Call[None, None]) -> Promotion:
    """Let no further session take the revision that is promoted to a share

    Only for keys of every session of every tenant.
    """
    return await _agents(call).pause(call.path["agent"])


@operation("POST", "/agents/{agent}/roll-back", right="admin")
async def roll_back_agent(call: Call[None, None]) -> Promotion:
    """Withdraw the revision that was promoted last

    If the path names it as agent@revision, repeating the request changes nothing. Only for keys of every session of
    every tenant.
    """
    return await _agents(call).roll_back(call.path["agent"])


@operation("POST", "/agents/{agent}/reset", right="admin", status=204)
async def reset_agent(call: Call[None, None]) -> None:
    """Forget all promotions of an agent

    Only for keys of every session of every tenant.
    """
    await _agents(call).reset(call.path["agent"])


def _agents(call: Call[Any, Any], *, sessions: bool = False) -> AsyncAgents:
    """Return the agents of the deployment. Raises ``Refused``: all tenants share them."""
    call.caller.check_everywhere()
    return call.client.agents(sessions=sessions)


@operation("GET", "/tenants/{tenant}/limits", right="admin")
async def show_limits(call: Call[None, None]) -> TenantLimits:
    """Read the limits of a tenant; null is unlimited"""
    return await call.client.tenant_limits(call.caller.tenant_for(call.path["tenant"]))


@operation("PUT", "/tenants/{tenant}/limits", right="admin", status=204)
async def set_limits(call: Call[None, SetLimits]) -> None:
    """Set all limits of a tenant; they apply at once to every client and worker

    Only for keys of every session of every tenant.
    """
    call.caller.check_everywhere()
    await call.client.set_tenant_limits(call.path["tenant"], **msgspec.structs.asdict(call.body))


LISTED: tuple[BudgetScope, ...] = ("tenant", "agent", "user", "session")
OF_TENANT: tuple[BudgetScope, ...] = ("tenant", "user")
BUDGETS_PAGE = 50


class BudgetQuery(OfTenant, kw_only=True):
    """The budgets of a ``name`` (a session, tenant, user or agent); without it, the budgets for all names.

    ``tenant`` is the tenant of a user, for keys of every tenant.
    """

    name: str | None = None


class SetBudgets(Given):
    """All budgets of a name. An empty list means no budget; with null, those for all names or the App's apply again."""

    budgets: list[Budget] | None


class BudgetList(Struct):
    """Budgets, and how much of each is used."""

    budgets: list[BudgetState]


class BudgetsQuery(OfTenant, kw_only=True):
    """Which budgets: of one ``scope`` or of all, and of a ``tenant``. ``cursor`` is that of the previous page."""

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
        if len(found) >= BUDGETS_PAGE:
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
    """Return the budgets that the caller may use. Raises ``Refused``: they apply to sessions of every key."""
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


OPERATIONS = [
    list_facts, add_fact, edit_fact, delete_fact,
    list_schedules, list_schedules_of_session, set_schedule, pause_schedule, resume_schedule, delete_schedule,
    list_webhooks, set_webhook, delete_webhook,
    show_queues, show_workers, show_limits, set_limits, list_budgets, show_budgets, set_budgets,
    show_agents, promote_agent, pause_agent, roll_back_agent, reset_agent,
]  # fmt: skip
