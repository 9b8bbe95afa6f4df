"""Events that programs send to the turns that wait for them."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from antiphon.input.limits import LIMITS
from antiphon_gateway.http.operations import Call, operation, read_bytes
from antiphon_gateway.interface.bodies import Given
from antiphon_gateway.problems import Refused

FORM = "application/x-www-form-urlencoded"


class SendEvent(Given):
    """An event to send. ``data`` is any JSON of at most 64 KiB.

    The same name, tenant and ``key`` are the same event for a day. ``tenant`` is for keys of every tenant.
    """

    data: Any = None
    key: str | None = None
    tenant: str | None = None


class EventSent(Struct, omit_defaults=True):
    """How many turns an event has reached. It is kept for a day, for turns that wait for it later.

    ``challenge`` answers Slack when it checks the address: no event is sent then.
    """

    turns: int
    challenge: str | None = None


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
    """Send an event that a service has signed, as GitHub, Slack, Stripe and Standard Webhooks do; its data is the body

    The signature takes the place of a key. A repetition is the same event for a day. The data of a form are its
    fields, or its field `payload` as JSON.
    """
    body = await read_bytes(call.request, LIMITS.event_bytes)
    name = call.path["name"]
    by = call.services.access.signers.verified(call.path["signer"], name, call.request.headers, body)
    call.services.quotas.take(f"signer {by.signer}", call.services.limits.rate)
    data = _data(body, call.request.headers.get("content-type", ""))
    if by.scheme == "slack" and (challenge := _challenge(data)):
        return EventSent(0, challenge)
    key = f"{by.signer} {by.key}"
    return EventSent(await call.client.send_event(name, data, key=key, tenant=by.tenant))


def _data(body: bytes, content_type: str) -> Any:
    """Return what a service has sent as JSON or as a form. Raises ``Refused``."""
    try:
        if content_type.partition(";")[0].strip().lower() == FORM:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
            return msgspec.json.decode(fields["payload"]) if "payload" in fields else fields
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise Refused(400, "invalid_body", f"The body is neither JSON nor a form: {exc}.") from None


def _challenge(data: Any) -> str | None:
    """Return the answer to Slack's check of the address; None for anything else."""
    asked = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return str(asked.get("challenge", "")) if asked.get("type") == "url_verification" else None


OPERATIONS = [send_event, receive_event]
