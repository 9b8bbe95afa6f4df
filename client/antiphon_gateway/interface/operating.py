"""What operators see and set: queues, workers, and the limits of tenants."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from antiphon.client import TenantLimits
from antiphon.redis.many.operating import QueueState, list_queues, list_workers
from antiphon.wire.lists.queues import WorkerRow
from antiphon_gateway.http.operations import Call, operation

__all__ = ["OPERATIONS"]


class QueueList(Struct):
    """All queues, by name."""

    queues: list[QueueState]


class WorkerList(Struct):
    """All worker processes that live."""

    workers: list[WorkerRow]


class SetLimits(Struct, kw_only=True, forbid_unknown_fields=True):
    """The limits of a tenant. One that is left out, or null, is the default again."""

    in_flight: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    waiting: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    per_minute: Annotated[int, Meta(ge=1, le=10_000)] | None = None


@operation("GET", "/queues", right="admin")
async def show_queues(call: Call[None, None]) -> QueueList:
    """Read the queues: how many turns stand in each, and for how long the oldest one

    Only for keys of every session of every tenant.
    """
    call.caller.check_everywhere()
    return QueueList(await list_queues(call.client.connections))


@operation("GET", "/workers", right="admin")
async def show_workers(call: Call[None, None]) -> WorkerList:
    """Read the worker processes that live, and what they run

    Only for keys of every session of every tenant.
    """
    call.caller.check_everywhere()
    return WorkerList(await list_workers(call.client.connections))


@operation("GET", "/tenants/{tenant}/limits", right="admin")
async def show_limits(call: Call[None, None]) -> TenantLimits:
    """Read the limits of a tenant; null is no limit"""
    return await call.client.tenant_limits(call.caller.tenant_for(call.path["tenant"]))


@operation("PUT", "/tenants/{tenant}/limits", right="admin", status=204)
async def set_limits(call: Call[None, SetLimits]) -> None:
    """Set all limits of a tenant: they hold at once, for every client and worker

    Only for keys of every session of every tenant.
    """
    call.caller.check_everywhere()
    given = call.body
    await call.client.set_tenant_limits(
        call.path["tenant"], in_flight=given.in_flight, waiting=given.waiting, per_minute=given.per_minute
    )


OPERATIONS = [show_queues, show_workers, show_limits, set_limits]
