"""Schedules of events: an event that no turn waits for starts one turn, whoever sends it and how often."""

import pytest
from support.waiting import waiting_turn

from antiphon.errors import LimitReached, StoreUnavailable, UsageError
from antiphon.input.request import AgentSpec
from antiphon.redis import schedules as module

AGENT = AgentSpec(provider="scripted", model="m")
pytestmark = [
    pytest.mark.one_server,
    pytest.mark.lasting_keys("ant:*"),
]


async def on(client, pattern, session="s", **options):
    await client.schedules(session).set("push", "A push.", on=pattern, agent=AGENT, **options)


async def of(client, session="s"):
    """The schedule, and the turns of its session."""
    (shown,) = [one async for one in client.schedules(session)]
    (cell,) = client.connections.cells
    return shown, [turn.decode() for turn in await cell.redis.lrange(f"ant:turns:{session}", 0, -1)]


async def test_an_event_that_no_turn_waits_for_starts_one_turn(client):
    await on(client, "github:*")
    for _ in range(3):
        assert await client.send_event("github:push", {"ref": "main"}, key="1") == 1
    assert await client.send_event("gitlab:push", key="2") == 0
    shown, turns = await of(client)
    assert turns == [shown.last_turn]
    assert (shown.on, shown.due, shown.every, shown.cron, shown.paused) == (
        "github:*",
        None,
        None,
        None,
        False,
    )
    said = (await (await client.turn(shown.last_turn)).info()).input
    assert [message.text for message in said] == ["A push.", '{"event":"github:push","data":{"ref":"main"}}']
    assert await client.send_event("github:push") == await client.send_event("github:push") == 1
    assert len((await of(client))[1]) == 3, "without a key each is another event"


async def test_an_event_that_a_turn_waits_for_starts_none(client):
    await on(client, "paid")
    await waiting_turn(client, "other")
    assert await client.send_event("paid", key="1") == 1
    assert await client.send_event("paid", key="1") == 1
    assert (await of(client))[1] == []
    assert await client.send_event("paid", key="2") == 1
    assert len((await of(client))[1]) == 1


@pytest.mark.parametrize(
    ("pattern", "name", "starts"),
    [
        ("paid", "paid", 1),
        ("paid", "paid:7", 0),
        ("paid:*", "paid:7", 1),
        ("paid:*", "paid", 0),
        ("*", "paid", 1),
    ],
)
async def test_a_pattern_is_a_name_or_its_beginning(client, pattern, name, starts):
    await on(client, pattern)
    assert await client.send_event(name) == starts


@pytest.mark.parametrize("wrong", ["", "two words", "a*b", "**", 7])
async def test_what_is_no_pattern_is_refused(client, wrong):
    with pytest.raises(UsageError, match="on= must be the name of an event"):
        await on(client, wrong)


async def test_events_start_turns_of_their_tenant_alone(client):
    await on(client, "paid", "none")
    await on(client, "paid", "acme", tenant="acme", user="alice")
    assert await client.send_event("paid", tenant="other") == 0
    assert await client.send_event("paid", tenant="acme") == 1
    shown, turns = await of(client, "acme")
    info = await (await client.turn(turns[0])).info()
    assert (shown.last_turn, info.tenant, [one.by for one in info.input]) == (turns[0], "acme", ["alice"] * 2)
    assert (await of(client, "none"))[1] == []


async def test_a_schedule_that_is_paused_or_removed_starts_none(client):
    await on(client, "paid")
    schedules = client.schedules("s")
    await schedules.pause("push")
    assert await client.send_event("paid") == 0
    assert (await of(client))[0].paused
    await schedules.resume("push")
    assert await client.send_event("paid") == 1
    assert not (await of(client))[0].paused
    await schedules.set("push", "Tick", every=60, agent=AGENT)
    assert await client.send_event("paid") == 0
    assert (await of(client))[0].on is None
    await schedules.delete("push")
    assert await client.send_event("paid") == 0


async def test_a_turn_that_is_refused_for_now_is_started_when_the_event_is_sent_again(client):
    await on(client, "paid", tenant="acme")
    await client.set_tenant_limits("acme", waiting=1)
    await client.submit("busy", "Hello", agent=AGENT, tenant="acme")
    await client.submit("busy", "Again", agent=AGENT, tenant="acme")
    with pytest.raises(LimitReached):
        await client.send_event("paid", key="1", tenant="acme")
    await client.set_tenant_limits("acme")
    assert await client.send_event("paid", key="1", tenant="acme") == 1


async def test_a_turn_that_is_refused_for_good_is_named_in_its_schedule(client):
    await on(client, "paid")
    session = client.session("s")
    await session.close()
    assert await client.send_event("paid") == 0
    assert "closed" in (await of(client))[0].error


async def test_a_sender_that_dies_between_turn_and_schedule_doubles_nothing(client, monkeypatch):
    await on(client, "paid")

    async def dies(*_):
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(module, "advance", dies)
        with pytest.raises(StoreUnavailable):
            await client.send_event("paid", key="1")
    assert await client.send_event("paid", key="1") == 1
    shown, turns = await of(client)
    assert turns == [shown.last_turn]


async def test_a_damaged_schedule_keeps_no_other_from_starting(client):
    await on(client, "paid", "broken")
    await on(client, "paid")
    (cell,) = client.connections.cells
    await cell.redis.hset("ant:schedule:push:broken", "plan", "?")
    assert await client.send_event("paid") == 1


async def test_an_event_costs_what_its_name_matches(client):
    """However many schedules other events and other tenants have."""
    (cell,) = client.connections.cells

    async def commands():
        before = await cell.redis.info("commandstats")
        assert await client.send_event("github:push", tenant="acme") == 1
        after = await cell.redis.info("commandstats")
        calls = {
            name: stats["calls"] - before.get(name, {"calls": 0})["calls"] for name, stats in after.items()
        }
        return {name: count for name, count in calls.items() if count and name != "cmdstat_info"}

    await on(client, "github:*", tenant="acme")
    await commands()
    few = await commands()
    for number in range(40):
        for tenant in ("acme", "other"):
            await on(client, f"gitlab:{number}", f"{tenant}-{number}", tenant=tenant)
        await on(client, "github:*", f"other-too-{number}", tenant="other")
    assert await commands() == few


async def test_what_an_older_release_has_left_in_the_index_starts_nothing_and_goes(client):
    """It knows no schedules of events: it removes one, or gives its name to another, and leaves the index."""
    (cell,) = client.connections.cells
    await on(client, "paid")
    await on(client, "paid", "t")
    for name in ("s", "t"):
        await cell.redis.delete(f"ant:schedule:push:{name}")
    await cell.redis.hset("ant:schedule:push:t", mapping={"session": "t", "tenant": "", "plan": "{}"})
    assert await client.send_event("paid") == 0
    assert not await cell.redis.exists("ant:event_schedules:")


async def test_the_index_goes_with_a_schedule_and_its_session(client):
    (cell,) = client.connections.cells
    await on(client, "paid", tenant="acme")
    await on(client, "sent", tenant="acme")
    assert await cell.redis.zrange("ant:event_schedules:acme", 0, -1) == [b"sent push:s"]
    await client.session("s", tenant="acme").delete()
    assert not await cell.redis.exists("ant:event_schedules:acme")
