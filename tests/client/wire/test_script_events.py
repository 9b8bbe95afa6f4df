"""`events/send`: an event reaches each call that waits for it once, before or after it was sent."""

import json

import pytest
from support.cells import START_MS

from antiphon.input.ids import TurnId
from antiphon.model import OpenCall, Wait
from antiphon.redis.sent_events import send_event
from antiphon.wire.suspension import claimed_decisions

DAY_MS = 24 * 3600_000


def paid(call="c1", *, after=0, seconds=3600.0, name="paid"):
    return Wait(call, f"event {name}", "event", seconds, event=name, after=after)


async def send(cell, data="7", *, name="paid", key="k1", tenant=None):
    return await send_event([cell], name, data, key=key, tenant=tenant)


async def received(cell, wait=None):
    """What the next attempt at the turn receives of its wait."""
    decision = claimed_decisions(await cell.take_one())[(wait or paid()).id]
    return decision.arguments and decision.arguments["data"]


async def kinds(cell):
    return [event["type"] for event in await cell.events()]


async def test_an_event_reaches_a_turn_that_waits_and_the_turn_goes_on(cell):
    await cell.hold(await cell.started("t1"), paid())
    assert (await cell.take()).turns == []
    assert await send(cell, {"amount": 3}) == 1
    event, resumed = (await cell.events())[-2:]
    assert event["type"] == "event_received"
    assert (event["event_name"], event["wait_id"], len(event["event_id"])) == ("paid", "event paid:c1", 32)
    assert (event["run"], event["step"]) == (1, 1)
    assert (resumed["type"], resumed["decisions"]) == ("turn_resumed", [])
    assert await received(cell) == {"amount": 3}


async def test_an_event_that_was_sent_before_reaches_the_turn_as_soon_as_it_waits(cell):
    turn = await cell.started("t1")
    assert await send(cell) == 0
    await cell.hold(turn, paid())
    assert (await kinds(cell))[-3:] == ["turn_sleeping", "event_received", "turn_resumed"]
    assert await received(cell) == "7"


async def test_events_reach_a_call_in_their_order_each_once(cell):
    turn = await cell.started("t1")
    for key in ("one", "two", "one"):
        await send(cell, key, key=key)
    found, after = [], 0
    for _ in range(2):
        await cell.hold(turn, paid(after=after))
        turn = await cell.take_one()
        got = claimed_decisions(turn)[paid().id].arguments
        after = got["position"]
        found.append(got["data"])
    assert found == ["one", "two"]
    await cell.hold(turn, paid(after=after))
    assert (await cell.take()).turns == [], "it has received both"
    assert await send(cell, "one", key="one") == 0, "a repetition is the same event"
    assert await send(cell, "three", key="three") == 1
    assert await received(cell) == "three"


async def test_a_repeated_call_has_the_first_answer_and_changes_nothing(cell):
    await cell.hold(await cell.started("t1"), paid())
    assert await send(cell) == 1
    before = await cell.contents()
    assert await send(cell, "something else") == 1
    assert await cell.contents() == before


async def test_every_waiting_turn_receives_an_event_but_none_of_another_tenant(cell):
    for number, tenant in enumerate(["", "acme", "acme", "other"]):
        await cell.hold(await cell.started(f"t{number}", f"s{number}", tenant=tenant), paid())
    assert await send(cell, tenant="acme") == 2
    assert {turn.turn_id for turn in (await cell.take()).turns} == {"t1", "t2"}
    assert await send(cell) == 1
    assert (await cell.take_one()).turn_id == "t0"
    assert await send(cell, name="paid acme".replace(" ", ":")) == 0


async def test_one_turn_may_wait_for_several_events_and_for_people(cell):
    calls = paid("c1"), paid("c2", name="sent"), OpenCall("c3", "pay")
    await cell.hold(await cell.started("t1"), *calls)
    await send(cell, name="sent")
    await cell.decide("c3")
    assert (await cell.take()).turns == []
    await send(cell, "8")
    turn = await cell.take_one()
    found = claimed_decisions(turn)
    assert [found[call.id].arguments["data"] for call in calls[:2]] == ["8", "7"]
    assert found["c3"].kind == "approve"


@pytest.mark.parametrize("aside", [False, True])
async def test_without_an_event_the_wait_is_over_at_its_time(cell, aside):
    await cell.hold(await cell.started("t1"), paid(seconds=60.0), aside=aside)
    assert await cell.reap_after(59_000) == []
    await cell.reap_after(1_000)
    assert await received(cell) is None
    assert await send(cell) == 0, "no turn waits any more"


async def test_an_event_is_kept_for_a_day_and_its_key_as_long(cell):
    turn = await cell.started("t1")
    await send(cell, "old")
    await cell.wait(DAY_MS)
    await send(cell, "new")
    await cell.hold(turn, paid())
    assert await received(cell) == "new"


async def test_of_a_tenant_the_last_events_are_kept(cell, monkeypatch):
    from antiphon.input import limits

    fewer = limits.Limits(tenant_events=2)
    monkeypatch.setattr("antiphon.redis.sent_events.LIMITS", fewer)
    turn = await cell.started("t1")
    for key in ("a", "b", "c"):
        await send(cell, key, key=key)
        await cell.wait(1)
    await send(cell, "theirs", tenant="acme")
    await cell.hold(turn, paid())
    assert await received(cell) == "b"
    assert await cell.redis.zcard("ant:event:paid") == await cell.redis.hlen("ant:event_data:paid") == 2
    assert await cell.redis.zcard("ant:tenant_events:") == 2


async def test_what_an_interrupted_delivery_has_left_out_is_made_up_for(cell, monkeypatch):
    monkeypatch.setattr("antiphon.redis.sent_events.MOST_BATCHES", 1)
    monkeypatch.setattr("antiphon.redis.sent_events.BATCH", 1)
    for number in range(2):
        await cell.hold(await cell.started(f"t{number}", f"s{number}"), paid())
    assert await send(cell, "first") == 1, "the sender dies between two batches"
    await cell.take_one()
    assert await send(cell, "second", key="k2") == 0, "the other turn receives what it has not, in order"
    assert await received(cell) == "first"


async def test_the_reaper_makes_up_for_it_too(cell):
    await cell.hold(await cell.started("t1"), paid())
    await cell.redis.delete("ant:waiters:paid")
    assert await send(cell) == 0
    [act] = await cell.reap_after(30_000)
    assert act.what == "resumed"
    assert await received(cell) == "7"


async def test_a_turn_that_was_cancelled_in_rq_receives_nothing(cell):
    await cell.hold(await cell.started("t1"), paid())
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert await send(cell) == 0
    assert "event_received" not in await kinds(cell)


async def test_a_turn_that_is_cancelled_before_a_worker_ends_it_receives_nothing(cell):
    await cell.hold(await cell.started("t1"), paid())
    assert await cell.cancel(TurnId("t1"), "enough", keep="partial") == "requested"
    assert await send(cell) == 0
    assert "event_received" not in await kinds(cell)
    assert not await cell.redis.hexists("ant:turn:t1", "decision:1")


async def test_a_damaged_turn_keeps_no_other_from_its_event(cell):
    for number in range(2):
        await cell.hold(await cell.started(f"t{number}", f"s{number}"), paid())
    await cell.redis.rename("ant:events:s0", "whole")
    await cell.redis.set("ant:events:s0", "damaged")
    assert await send(cell) == 1
    assert (await cell.take_one()).turn_id == "t1"
    await cell.redis.rename("whole", "ant:events:s0")
    acts = await cell.reap_after(30_000)
    assert ("t0", "resumed") in [(act.turn_id, act.what) for act in acts], (
        "it receives its event when it is mended"
    )


async def test_a_turn_that_waits_says_for_what_and_until_when(cell):
    await cell.hold(await cell.started("t1"), paid())
    *_, event = await cell.events()
    assert event["type"] == "turn_sleeping"
    assert event["waits"] == [
        {"call_id": "c1", "name": "event paid", "kind": "event", "seconds": 3600.0, "event": "paid",
         "until": START_MS + 3600_000},
    ]  # fmt: skip
    fields = await cell.redis.hgetall("ant:turn:t1")
    assert json.loads(fields[b"waits"]) == event["waits"]


async def test_everything_that_an_event_writes_has_a_ttl(cell):
    await cell.hold(await cell.started("t1"), paid())
    await send(cell, tenant="acme")
    for key in await cell.redis.keys("ant:*event*") + await cell.redis.keys("ant:waiters:*"):
        if key not in (b"ant:events:s", b"ant:event_position"):
            assert await cell.redis.pttl(key) > 0, key


async def test_an_event_that_is_too_old_is_passed_over_and_forgotten(cell):
    turn = await cell.started("t1")
    await send(cell, "old", key="old")
    await cell.wait(1)
    await send(cell, "new", key="new")
    await cell.wait(DAY_MS - 1)
    await cell.hold(turn, paid())
    assert await received(cell) == "new"
    for key in ("ant:event:paid", "ant:tenant_events:"):
        assert await cell.redis.zcard(key) == 1
