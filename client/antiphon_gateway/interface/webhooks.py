"""Webhooks: URLs that workers tell of the ends of a tenant's turns."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from antiphon.client import AsyncWebhooks, Webhook
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.problems import Refused

__all__ = ["OPERATIONS"]

MOST_OF_A_TENANT = 10
"""A deployment has 100: no tenant may take them all."""


class SetWebhook(Struct, kw_only=True, forbid_unknown_fields=True):
    """A URL, and of what it is told: ends of these ``types``, of turns of this ``agent``; all if they are left out.

    Without a ``secret`` it keeps its own, or gets one. ``private`` allows ``http://`` and addresses that are not
    public: it is for keys of every session of every tenant, as is ``tenant``.
    """

    url: str
    types: list[str] | None = None
    agent: str | None = None
    secret: Annotated[str, Meta(max_length=1000)] | None = None
    private: bool = False
    tenant: str | None = None


class WebhooksQuery(Struct, kw_only=True):
    """``tenant`` is for keys of every tenant."""

    tenant: str | None = None


class WebhookList(Struct):
    """Webhooks by name, without their secrets."""

    webhooks: list[Webhook]


class WebhookSecret(Struct):
    """What signs the webhook's messages: a secret, or several with spaces between them while one replaces another."""

    secret: str


@operation("GET", "/webhooks", right="admin")
async def list_webhooks(call: Call[WebhooksQuery, None]) -> WebhookList:
    """List the webhooks of the key's tenant, and how their deliveries go"""
    return WebhookList([one async for one in _of_tenant(call, call.query.tenant)])


@operation("PUT", "/webhooks/{webhook}", right="admin")
async def set_webhook(call: Call[None, SetWebhook]) -> WebhookSecret:
    """Tell a URL of the ends of turns from now on, or change the webhook of this name

    The messages are signed as standardwebhooks.com says, and sent again until they are acknowledged.
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
    """Remove a webhook; what it was not told yet, it will not be told"""
    await _of_tenant(call, None).delete(call.path["webhook"])


def _of_tenant(call: Call[Any, Any], asked: str | None) -> AsyncWebhooks:
    """The webhooks that the caller may use. Raises ``Refused``: they tell of every session of a tenant."""
    call.caller.check_every_session()
    return call.client.webhooks(tenant=call.caller.tenant_for(asked))


OPERATIONS = [list_webhooks, set_webhook, delete_webhook]
