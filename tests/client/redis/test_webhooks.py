"""Webhooks as callers set and see them. What workers deliver: tests/worker/upkeep."""

import pytest

from antiphon.client import AsyncClient, Client, Webhook
from antiphon.errors import LimitReached, NotFound, UsageError, WrongTenant
from antiphon.wire.lists import webhooks as wire

URL = "https://example.com/hooks"
SECRET = "whsec_" + "c2VjcmV0" * 5
pytestmark = pytest.mark.lasting_keys("ant:webhook*", "ant:dispatched")


def test_a_webhook_is_set_changed_listed_and_deleted(redis_url):
    with Client(redis_url) as client:
        hooks = client.webhooks()
        first = hooks.set("a", URL)
        assert first.startswith("whsec_")
        assert hooks.set("a", URL + "/2", types=["turn_failed"], agent="smith") == first
        assert hooks.set("b", "http://10.0.0.1:8080/x?y=z", secret=SECRET, private=True) == SECRET
        every = ["turn_finished", "turn_failed", "turn_cancelled", "turn_suspended"]
        assert list(hooks) == [
            Webhook("a", URL + "/2", ["turn_failed"], None, "smith", False, 0, 0, 0, None),
            Webhook("b", "http://10.0.0.1:8080/x?y=z", every, None, None, True, 0, 0, 0, None),
        ]
        hooks.delete("a")
        with pytest.raises(NotFound, match="Unknown webhook: 'a'"):
            hooks.delete("a")
        assert [one.name for one in hooks] == ["b"]


async def test_a_tenant_sees_and_changes_its_own(client):
    await client.webhooks(tenant="acme").set("a", URL)
    await client.webhooks().set("b", URL)
    assert [(one.name, one.tenant) async for one in client.webhooks(tenant="acme")] == [("a", "acme")]
    other = client.webhooks(tenant="other")
    for refused in (other.delete("a"), other.set("a", URL), other.delete("b")):
        with pytest.raises(WrongTenant):
            await refused


async def test_it_holds_in_every_cell(redis_url):
    second = redis_url.removesuffix("/0") + "/1"
    async with AsyncClient([redis_url, second]) as client:
        secret = await client.webhooks().set("a", URL)
        for cell in client.connections.cells:
            (one,) = await wire.stored_webhooks(cell)
            assert one.fields["secret"].decode() == secret
            await cell.redis.hincrby(cell.keys.webhook("a"), "delivered", 2)
        assert [one.delivered async for one in client.webhooks()] == [4]
        await client.webhooks().delete("a")
        assert [await wire.stored_webhooks(cell) for cell in client.connections.cells] == [[], []]


async def test_there_is_a_limit(redis_url, monkeypatch):
    monkeypatch.setattr(wire, "MOST_WEBHOOKS", 2)
    async with AsyncClient(redis_url) as client:
        for name in ("a", "b", "a"):
            await client.webhooks().set(name, URL)
        with pytest.raises(LimitReached, match="2 webhooks already"):
            await client.webhooks().set("c", URL)


@pytest.mark.parametrize(
    "wrong",
    [{"name": "a:b"}, {"name": ""}, {"url": "http://example.com"}, {"url": "ftp://example.com", "private": True},
     {"url": "https://"}, {"url": "https://user:pass@example.com"}, {"url": "https://example.com/#x"},
     {"url": "https://example.com/\nx"}, {"url": "https://example.com:99999"}, {"url": 5}, {"url": "https://ä.example"},
     {"types": ["turn_started"]}, {"secret": "short"}, {"secret": []}, {"secret": [SECRET] * 4},
     {"secret": "whsec_" + "x" * 8}, {"secret": SECRET.removeprefix("whsec_")}],
)  # fmt: skip
async def test_what_is_no_webhook_is_refused(wrong):
    async with AsyncClient("redis://localhost:1/0", retries=0) as client:
        options = {"name": "a", "url": URL, **wrong}
        with pytest.raises(UsageError) as refused:
            await client.webhooks().set(**options)
        assert SECRET not in refused.value.message


DAMAGES = {
    "text": ("SET", "ant:webhook:bad", "x"),
    "a list": ("RPUSH", "ant:webhook:bad", "x"),
    "no types": ("HSET", "ant:webhook:bad", "url", URL),
    "deliveries": ("SET", "ant:deliveries:bad", "x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_webhook_is_listed_with_its_damage_and_can_be_set_again(client, damage):
    """A tenant is not shown one of which the tenant cannot be read."""
    await client.webhooks(tenant="acme").set("bad", URL)
    await client.webhooks(tenant="acme").set("good", URL)
    (cell,) = client.connections.cells
    await cell.redis.delete(DAMAGES[damage][1])
    await cell.redis.execute_command(*DAMAGES[damage])
    found = {one.name: one async for one in client.webhooks()}
    assert (found["good"].error, "damaged" in found["bad"].error) == (None, True)
    readable = damage == "deliveries"
    names = [one.name async for one in client.webhooks(tenant="acme")]
    assert names == (["bad", "good"] if readable else ["good"])
    if not readable:
        with pytest.raises(WrongTenant):
            await client.webhooks(tenant="acme").delete("bad")
    await client.webhooks().delete("bad")
    await client.webhooks(tenant="acme").set("bad", URL)
    assert [one.error async for one in client.webhooks(tenant="acme")] == [None, None]
