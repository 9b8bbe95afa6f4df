"""What a client reads and follows for a tenant, and what that costs."""

import asyncio

import pytest
from redis.asyncio import Redis
from support.eventually import patience
from support.here import running_worker

from antiphon.client import Client
from antiphon.errors import InvalidId, TurnDeleted, TurnNotFound, WrongTenant
from antiphon.input.request import AgentSpec

AGENT = AgentSpec(provider="scripted", model="any")


async def first(items):
    async for item in items:
        return item
    return None


READS = {
    "snapshot": lambda client, turn, tenant: client.snapshot("s", tenant=tenant),
    "subscribe": lambda client, turn, tenant: first(client.subscribe("s", 0, tenant=tenant)),
    "subscribe to what is new": lambda client, turn, tenant: client.subscribe("s", tenant=tenant).start(),
    "start": lambda client, turn, tenant: client.subscribe("s", 1, tenant=tenant).start(),
    "turn": lambda client, turn, tenant: client.turn(turn.id, tenant=tenant),
    "turns": lambda client, turn, tenant: first(client.turns("s", tenant=tenant)),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("owner", ["acme", None])
async def test_another_tenant_reads_nothing(read, owner, client):
    turn = await client.submit("s", "secret", agent=AGENT, tenant=owner)
    with pytest.raises(WrongTenant, match=r"^The session does not belong to the tenant 'other'"):
        await READS[read](client, turn, "other")
    with pytest.raises(InvalidId):
        await READS[read](client, turn, "")
    await READS[read](client, turn, None)
    if owner:
        await READS[read](client, turn, owner)
    assert (await client.session("s").tenant()) == owner
    await turn.cancel()


@pytest.mark.parametrize("read", ["snapshot", "turns"])
async def test_reading_a_session_that_does_not_exist_finds_nothing_and_claims_nothing(
    read, client, redis_url
):
    async with Redis.from_url(redis_url) as redis:
        found = await READS[read](client, None, "acme")
        assert not getattr(found, "messages", found)
        assert await redis.keys("ant:*") == []


@pytest.mark.parametrize("after", [None, 0])
async def test_a_session_that_another_tenant_begins_meanwhile_is_not_followed(after, client):
    events = client.subscribe("s", after, tenant="other")
    await events.start()
    reading = asyncio.create_task(anext(events))
    turn = await client.submit("s", "secret", agent=AGENT, tenant="acme")
    with pytest.raises(WrongTenant):
        await asyncio.wait_for(reading, patience(60))
    with pytest.raises(WrongTenant):
        await asyncio.wait_for(anext(events), patience(10))
    await events.aclose()
    await turn.cancel()


async def test_a_session_that_its_tenant_begins_meanwhile_is_followed(client, redis_url):
    async with running_worker(redis_url):
        events = client.subscribe("s", tenant="acme")
        await events.start()
        turn = await client.submit("s", "hello", agent=AGENT, tenant="acme")
        seen = []
        while not seen or not seen[-1].terminal:
            seen.append(await asyncio.wait_for(anext(events), patience(10)))
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        assert seen[-1].turn_id == turn.id
        await events.aclose()


async def test_a_session_that_begins_anew_under_another_tenant_is_no_longer_followed(client):
    turn = await client.submit("s", "1", agent=AGENT, tenant="other")
    events = client.subscribe("s", 0, tenant="other")
    assert (await anext(events)).turn_id == turn.id
    await client.session("s").delete()
    new = await client.submit("s", "secret", agent=AGENT, tenant="acme")
    with pytest.raises(WrongTenant):
        [event async for event in events]
    with pytest.raises(TurnDeleted):
        await client.turn(turn.id, tenant="other")
    assert (await client.turn(new.id, tenant="acme")).id == new.id
    for known, tenant in ((turn, "other"), (new, "acme")):
        with pytest.raises(WrongTenant):
            await client.turn(known.id, tenant={"other": "acme", "acme": "other"}[tenant])
    await events.aclose()
    await new.cancel()


async def test_a_turn_that_an_older_release_has_accepted_is_that_of_its_sessions_tenant(client, redis_url):
    async with Redis.from_url(redis_url) as redis:
        turn = await client.submit("s", "1", agent=AGENT, tenant="acme")
        await redis.hdel(f"ant:turn:{turn.id}", "tenant")
        assert (await client.turn(turn.id, tenant="acme")).id == turn.id
        with pytest.raises(WrongTenant):
            await client.turn(turn.id, tenant="other")
        with pytest.raises(TurnNotFound):
            await client.turn("none", tenant="acme")
        await turn.cancel()


def test_the_synchronous_client_takes_a_tenant_too(redis_url):
    with Client(redis_url) as client:
        turn = client.submit("s", "1", agent=AGENT, tenant="acme")
        reads = [
            lambda tenant: client.snapshot("s", tenant=tenant).cursor,
            lambda tenant: next(client.subscribe("s", 0, tenant=tenant)).seq,
            lambda tenant: client.turn(turn.id, tenant=tenant).id,
            lambda tenant: next(client.turns("s", tenant=tenant)).id,
        ]
        for read in reads:
            assert read("acme")
            with pytest.raises(WrongTenant):
                read("other")
        turn.cancel()
