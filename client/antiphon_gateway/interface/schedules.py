"""Schedules of sessions: turns that are submitted again and again."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, Literal, cast

from msgspec import Struct, field

from antiphon.client import AsyncSchedules, Schedule
from antiphon.input.request import AgentSpec
from antiphon.input.values import Priority
from antiphon.model import CallerTool
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import PageSize, Positive

__all__ = ["OPERATIONS"]


class SetSchedule(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is submitted, and when: ``every`` so many seconds, or at the times of ``cron`` text in the time zone ``tz``.

    The other fields are those of a turn. ``tenant`` is for keys of every tenant.
    """

    input: str | dict[str, Any] | list[Any]
    every: Positive | None = None
    cron: str | None = None
    tz: str = "UTC"
    agent: str | AgentSpec | None = None
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    timeout: Positive | None = None
    priority: Priority | None = None
    caller_tools: list[CallerTool] = field(default_factory=list[CallerTool])
    while_suspended: Literal["wait", "continue"] = "wait"
    queue: str | None = None
    tenant: str | None = None


class SchedulesQuery(Struct, kw_only=True):
    """``tenant`` is for keys of every tenant."""

    limit: PageSize = 50
    tenant: str | None = None


class ScheduleList(Struct):
    """Schedules, in any order."""

    schedules: list[Schedule]


@operation("GET", "/schedules", right="admin")
async def list_schedules(call: Call[SchedulesQuery, None]) -> ScheduleList:
    """List the schedules of all sessions that the key may use"""
    known = call.client.schedules(tenant=call.caller.tenant_for(call.query.tenant))
    return ScheduleList(await _listed(call, known))


@operation("GET", "/sessions/{session}/schedules", right="admin")
async def list_schedules_of_session(call: Call[SchedulesQuery, None]) -> ScheduleList:
    """List the schedules of a session: when each is due next, and what came of its last turn"""
    session, tenant = call.path["session"], call.caller.tenant_for(call.query.tenant)
    await call.client.snapshot(session, tenant=tenant, last=0)  # refuses another tenant's
    known = call.client.schedules(session, tenant=tenant)
    return ScheduleList(await _listed(call, known))


@operation("PUT", "/sessions/{session}/schedules/{schedule}", right="admin", status=204)
async def set_schedule(call: Call[None, SetSchedule]) -> None:
    """Submit a turn every so many seconds, or at the times of a cron text

    Each due time submits one turn. The schedule replaces the one of the same name.
    """
    given = call.body
    schedules = call.client.schedules(call.path["session"], tenant=call.caller.tenant_for(given.tenant))
    await schedules.set(
        call.path["schedule"], cast("Any", given.input), every=given.every, cron=given.cron, tz=given.tz,
        agent=given.agent, params=given.params, metadata=given.metadata, timeout=given.timeout,
        priority=given.priority, caller_tools=given.caller_tools or None, while_suspended=given.while_suspended,
        queue=given.queue,
    )  # fmt: skip


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


async def _listed(call: Call[SchedulesQuery, None], known: AsyncSchedules) -> list[Schedule]:
    """The first schedules that the caller may see."""
    found: list[Schedule] = []
    async with aclosing(aiter(known)) as schedules:
        async for one in schedules:
            if call.caller.may_use(one.session_id):
                found.append(one)
            if len(found) == call.query.limit:
                break
    return found


OPERATIONS = [
    list_schedules, list_schedules_of_session, set_schedule, pause_schedule, resume_schedule, delete_schedule,
]  # fmt: skip
