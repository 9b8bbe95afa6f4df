"""Events that programs send to the turns that wait for them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import Given


class SendEvent(Given):
    """An event to send. ``data`` is any JSON of at most 64 KiB.

    The same name, tenant and ``key`` are the same event for a day. ``tenant`` is for keys of every tenant.
    """

    data: Any = None
    key: str | None = None
    tenant: str | None = None


class EventSent(Struct):
    """How many turns an event has reached. It is kept for a day for those that will wait for it."""

    turns: int


@operation("POST", "/events/{name}", right="send")
async def send_event(call: Call[None, SendEvent]) -> EventSent:
    """Send an event to the turns that wait for it; only for keys of every session of their tenant"""
    call.caller.check_every_session()
    asked = call.body
    tenant = call.caller.tenant_for(asked.tenant)
    sent = await call.client.send_event(call.path["name"], asked.data, key=asked.key, tenant=tenant)
    return EventSent(sent)


OPERATIONS = [send_event]
