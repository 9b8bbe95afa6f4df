"""`webhooks/*`: who is told of what, who holds a webhook, and what becomes of each delivery."""

import pytest
from support.cells import open_cell

from antiphon.errors import LimitReached
from antiphon.wire.lists import webhooks as wire
from antiphon.wire.lists.notices import follow
from antiphon.wire.lists.webhooks import (
    DamagedWebhook,
    release_webhook,
    settle,
    stored_webhooks,
    take_webhook,
    write_webhook,
)

LEASE_MS, PAUSE_MS = 20_000, 2_000
EVERY = {"types": ",turn_finished,turn_failed,turn_cancelled,turn_suspended,", "tenant": ""}
pytestmark = pytest.mark.lasting_keys("ant:webhook*", "ant:deliveries:*", "ant:dispatched")


async def ended(cell, *turns, status="finished", **options):
    for turn in turns:
        await cell.end(await cell.started(turn, f"s-{turn}", **options), status)


async def take(cell):
    return (await take_webhook(cell, LEASE_MS, PAUSE_MS))[0]


async def due(cell):
    """What is to be delivered now. The webhook is left to the next."""
    taken = await take(cell)
    if taken is None:
        return []
    await release_webhook(cell, taken)
    return [one.notice.turn_id for one in taken.deliveries]


async def looked_at(cell, name="hook"):
    return await cell.redis.zscore("ant:webhooks", name)


async def test_a_webhook_is_told_what_ended_since_it_was_set(cell):
    await follow(cell, 60_000)
    await ended(cell, "before")
    await write_webhook(cell, "hook", EVERY)
    assert await due(cell) == []
    await ended(cell, "t1")
    taken = await take(cell)
    (one,) = taken.deliveries
    now = await cell.now()
    assert (taken.name, taken.now, one.at) == ("hook", now, now)
    assert (one.notice.kind, one.notice.session_id, one.notice.turn_id, one.notice.seq) == (
        "turn_finished", "s-t1", "t1", 3,
    )  # fmt: skip
    assert taken.fields["types"].decode() == EVERY["types"]
    assert await looked_at(cell) == now + LEASE_MS
    assert await take(cell) is None, "it is held"


async def test_one_that_is_set_later_is_not_told_of_what_was_not_yet_handed_out(cell):
    await write_webhook(cell, "a", EVERY)
    await ended(cell, "t1")
    await write_webhook(cell, "b", EVERY)
    assert await due(cell) == ["t1"]
    assert await cell.redis.zcard("ant:deliveries:b") == 0


@pytest.mark.one_server
async def test_deliveries_beyond_the_limit_are_dropped_and_counted(cell):
    await write_webhook(cell, "hook", EVERY)
    await cell.redis.zadd("ant:deliveries:hook", {f"{n}-0": 1 for n in range(100_000)})
    await ended(cell, "t1")
    assert await take(cell) is None, "nothing new"
    (one,) = await stored_webhooks(cell)
    assert (one.waiting, one.fields["dropped"]) == (100_000, b"1")


async def test_notices_that_begin_anew_with_smaller_ids_are_told(cell):
    """A clock that was put back, and a log that was lost."""
    await write_webhook(cell, "hook", EVERY)
    await cell.redis.hset("ant:webhook:hook", "since", "1-0")
    await cell.redis.set("ant:dispatched", "99999999999999-0")
    await ended(cell, "t1")
    taken, (missed, *_) = await take_webhook(cell, LEASE_MS, PAUSE_MS)
    assert (missed, [one.notice.turn_id for one in taken.deliveries]) == ("99999999999999-0", ["t1"])


async def test_each_is_told_of_its_kinds_and_of_its_tenant(cell):
    await write_webhook(cell, "failed", {"types": ",turn_failed,", "tenant": ""})
    await write_webhook(cell, "acme", {**EVERY, "tenant": "acme"})
    await ended(cell, "t1")
    await ended(cell, "t2", status="failed")
    await ended(cell, "t3", tenant="acme")
    await ended(cell, "t4", tenant="other")
    told = {}
    while taken := await take(cell):
        told[taken.name] = [one.notice.turn_id for one in taken.deliveries]
    assert told == {"acme": ["t3"], "failed": ["t2"]}


async def test_one_that_is_set_again_keeps_its_place_and_its_counts(cell):
    await write_webhook(cell, "hook", EVERY)
    await ended(cell, "t1", "t2")
    taken = await take(cell)
    assert await settle(cell, taken, taken.deliveries[0], "delivered")
    await write_webhook(cell, "hook", {**EVERY, "url": "https://example.com/"})
    assert await take(cell) is None, "it is held as before"
    await release_webhook(cell, taken)
    assert await due(cell) == ["t2"]
    (one,) = await stored_webhooks(cell)
    assert (one.fields["delivered"], one.fields["url"]) == (b"1", b"https://example.com/")


async def test_notices_are_handed_out_once_and_behind_the_last_one(cell):
    await write_webhook(cell, "hook", EVERY)
    await ended(cell, "t1")
    for turn in ("t2", "t3"):
        taken = await take(cell)
        await settle(cell, taken, taken.deliveries[0], "delivered")
        await release_webhook(cell, taken)
        assert await due(cell) == []
        newest = await follow(cell, 60_000)
        assert await cell.redis.get("ant:dispatched") == newest.encode()
        await ended(cell, turn)
    assert await due(cell) == ["t3"]


@pytest.mark.parametrize(
    ("what", "count", "left"), [("delivered", 1, 0), ("dropped", 1, 0), ("skipped", 0, 0), ("later", 0, 1)]
)
async def test_what_becomes_of_a_delivery_is_written_once(what, count, left, cell):
    await write_webhook(cell, "hook", EVERY)
    await ended(cell, "t1")
    taken = await take(cell)
    for _ in range(2):
        assert await settle(cell, taken, taken.deliveries[0], what, 5_000, "answered 500")
    (one,) = await stored_webhooks(cell)
    assert (one.waiting, int(one.fields.get(what, 0))) == (left, count)
    assert one.fields.get("error") == (None if what == "skipped" else b"answered 500")
    await release_webhook(cell, taken)
    assert await looked_at(cell) == (await cell.now() + 5_000 if left else float("inf"))
    await cell.wait(5_000)
    assert await due(cell) == ["t1"] * left


async def test_a_new_end_wakes_a_webhook_that_waits_but_no_sooner_one_that_is_held(cell):
    await write_webhook(cell, "hook", EVERY)
    await ended(cell, "t1")
    taken = await take(cell)
    await settle(cell, taken, taken.deliveries[0], "later", 60_000)
    await ended(cell, "t2")
    assert await take(cell) is None
    assert await looked_at(cell) == await cell.now() + LEASE_MS
    await release_webhook(cell, taken)
    assert await due(cell) == ["t2"]
    await ended(cell, "t3")
    assert await due(cell) == ["t2", "t3"]


async def test_a_webhook_whose_holder_was_lost_is_left_alone_for_a_moment(cell):
    await write_webhook(cell, "hook", EVERY)
    await ended(cell, "t1")
    lost = await take(cell)
    await cell.wait(LEASE_MS)
    assert await take(cell) is None
    assert await looked_at(cell) == await cell.now() + PAUSE_MS
    assert not await settle(cell, lost, lost.deliveries[0], "later", 60_000, "late")
    await release_webhook(cell, lost)
    assert await take(cell) is None, "who lost it cannot let go of it"
    await cell.wait(PAUSE_MS)
    taken = await take(cell)
    assert taken.fence > lost.fence
    assert [one.notice.turn_id for one in taken.deliveries] == ["t1"]
    assert b"late" not in taken.fields.values()


async def test_nothing_is_left_of_the_last_webhook(cell):
    for name in ("a", "b"):
        await write_webhook(cell, name, EVERY)
    await ended(cell, "t1")
    taken = await take(cell)
    await write_webhook(cell, "a", {})
    assert await cell.redis.exists("ant:dispatched")
    assert await due(cell) == ["t1"], "the other one is told"
    await write_webhook(cell, "b", {})
    await settle(cell, taken, taken.deliveries[0], "delivered")
    await release_webhook(cell, taken)
    assert await cell.redis.keys("ant:*hook*") + await cell.redis.keys("ant:de*") == []
    assert not await cell.redis.exists("ant:dispatched")


async def test_there_is_a_limit_for_new_ones(redis_url, monkeypatch):
    monkeypatch.setattr(wire, "MOST_WEBHOOKS", 1)
    async with open_cell(redis_url) as cell:
        await write_webhook(cell, "a", EVERY)
        await write_webhook(cell, "a", {**EVERY, "url": "x"})
        with pytest.raises(LimitReached):
            await write_webhook(cell, "b", EVERY)
        assert [one.name for one in await stored_webhooks(cell)] == ["a"]


@pytest.mark.one_server
async def test_many_notices_are_handed_out_in_pages(cell):
    """The first page says that there are more, the last one that there are none."""
    await write_webhook(cell, "hook", EVERY)
    pipe = cell.redis.pipeline(transaction=False)
    for number in range(750):
        fields = {"kind": "turn_finished", "session": "s", "turn": f"t{number}", "seq": 1, "tenant": ""}
        pipe.xadd("ant:notices", fields)
    await pipe.execute()
    taken, (missed, more, _) = await take_webhook(cell, LEASE_MS, PAUSE_MS)
    assert (len(taken.deliveries), missed, more) == (100, "", True)
    assert await cell.redis.zcard("ant:deliveries:hook") == 499, "a page, of which one was the last of before"
    assert await take_webhook(cell, LEASE_MS, PAUSE_MS) == (None, ("", False, False))
    assert await cell.redis.zcard("ant:deliveries:hook") == 750


@pytest.mark.parametrize("name", [b"gone", b"\xff"])
async def test_a_name_without_a_webhook_is_removed(cell, name):
    await write_webhook(cell, "hook", EVERY)
    await cell.redis.zadd("ant:webhooks", {name: 0})
    await ended(cell, "t1")
    assert await due(cell) == []
    assert await due(cell) == ["t1"]
    assert await cell.redis.zrange("ant:webhooks", 0, -1) == [b"hook"]


@pytest.mark.parametrize("key", ["ant:webhook:bad", "ant:deliveries:bad"])
async def test_a_damaged_webhook_delays_no_other_one_and_goes_on_when_it_is_repaired(cell, key):
    for name in ("bad", "hook"):
        await write_webhook(cell, name, EVERY)
    await cell.redis.zadd("ant:webhooks", {"bad": 0})
    before = await cell.redis.dump(key)
    await cell.redis.set(key, "x")
    await ended(cell, "t1")
    damaged, _ = await take_webhook(cell, LEASE_MS, PAUSE_MS)
    assert (damaged.name, "WRONGTYPE" in damaged.why) == ("bad", True)
    assert await due(cell) == ["t1"]
    await cell.redis.delete(key, "ant:deliveries:hook")
    if before:
        await cell.redis.restore(key, 0, before)
    await cell.wait(60_000)
    await ended(cell, "t2")
    assert [await due(cell), await due(cell)] == [["t2"], ["t2"]]


DAMAGES = {
    "no hash": lambda redis: redis.set("ant:webhook:bad", "x"),
    "no types": lambda redis: redis.hdel("ant:webhook:bad", "types"),
    "no tenant": lambda redis: redis.hdel("ant:webhook:bad", "tenant"),
    "no deliveries": lambda redis: redis.set("ant:deliveries:bad", "x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_webhook_that_misses_notices_because_it_is_damaged_is_named_once_a_minute(cell, damage):
    for name in ("bad", "hook"):
        await write_webhook(cell, name, EVERY)
    await cell.redis.delete("ant:webhook:bad" if damage == "no hash" else "ant:deliveries:bad")
    await DAMAGES[damage](cell.redis)
    for number in range(2):
        await ended(cell, f"t{number}")
        assert await everything_due(cell) == (["bad"], [f"t{number}"])
        await ended(cell, f"u{number}")
        assert await everything_due(cell) == ([], [f"u{number}"]), "it is not named again at once"
        await cell.wait(60_000)


async def everything_due(cell):
    """The webhooks that are found to be damaged, and the turns of which the others are told, until nothing is left."""
    damaged, told = [], []
    while taken := await take(cell):
        if isinstance(taken, DamagedWebhook):
            damaged.append(taken.name)
            continue
        for one in taken.deliveries:
            assert await settle(cell, taken, one, "delivered")
            told.append(one.notice.turn_id)
        await release_webhook(cell, taken)
    return damaged, told


async def test_what_is_missed_is_named_and_what_is_left_is_told(cell):
    await write_webhook(cell, "hook", EVERY)
    before = (await cell.redis.get("ant:dispatched")).decode()
    await ended(cell, "t1", "t2", "t3")
    await cell.redis.xtrim("ant:notices", maxlen=2, approximate=False)
    taken, (missed, *_) = await take_webhook(cell, LEASE_MS, PAUSE_MS)
    assert ([one.notice.turn_id for one in taken.deliveries], missed) == (["t2", "t3"], before)
    assert (await take_webhook(cell, LEASE_MS, PAUSE_MS))[1].missed == "", "once"


async def test_a_webhook_taken_between_a_jump_back_and_the_next_look_is_held_for_its_whole_lease(cell):
    await write_webhook(cell, "hook", EVERY)
    await cell.reap()
    await ended(cell, "t1")
    await cell.wait(-5_000)
    assert (await take(cell)).name == "hook"
    await cell.reap()
    await cell.wait(LEASE_MS - 1)
    assert await take(cell) is None
    assert (await cell.redis.hget("ant:webhook:hook", "held")) == b"1", "its holder may still deliver"


async def test_a_clock_that_was_put_back_holds_no_delivery_up(cell):
    for name in ("held", "later"):
        await write_webhook(cell, name, EVERY)
    await cell.reap()
    await ended(cell, "t1")
    for _ in range(2):
        taken = await take(cell)
        if taken.name == "later":
            await settle(cell, taken, taken.deliveries[0], "later", 60_000)
            await release_webhook(cell, taken)
    await cell.reap_after(-3600_000)
    now = await cell.now()
    assert (await looked_at(cell, "held"), await looked_at(cell, "later")) == (now + 20_000, now + 60_000)
    assert [at for _, at in await cell.redis.zrange("ant:deliveries:later", 0, -1, withscores=True)] == [
        now + 60_000
    ]
