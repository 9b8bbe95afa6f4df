"""Events that programs send to the turns that wait for them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from antiphon.input.limits import LIMITS
from antiphon_gateway.http.operations import Call, operation, read_bytes
from antiphon_gateway.interface.bodies import Given
from antiphon_gateway.problems import Refused


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


@operation("POST", "/events/{name}/from/{signer}", right=None)
async def receive_event(call: Call[None, None]) -> EventSent:
    """Send an event that a service has signed, as GitHub, Stripe and Standard Webhooks do; its data is the body

    The signature takes the place of a key. A repetition is the same event for a day.
    """
    body = await read_bytes(call.request, LIMITS.event_bytes)
    name = call.path["name"]
    by = call.services.access.signers.verified(call.path["signer"], name, call.request.headers, body)
    call.services.quotas.take(f"signer {by.signer}", call.services.limits.rate)
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise Refused(400, "invalid_body", f"The body is not JSON: {exc}.") from None
    key = f"{by.signer} {by.key}"
    return EventSent(await call.client.send_event(name, data, key=key, tenant=by.tenant))


OPERATIONS = [send_event, receive_event]
