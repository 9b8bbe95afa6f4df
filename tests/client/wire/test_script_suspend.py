"""`suspend`: a turn waits for decisions and holds nothing."""

import pytest
from support.cells import LEASE_MS, START_MS, body, stranger

from antiphon.model import OpenCall, Wait

DAY_MS = 24 * 3600_000
PAY = OpenCall("c1", "pay", {"amount": 3})
LOOK = OpenCall("c2", "look", kind="tool", seconds=20.0, at_limit="approve")


async def test_a_suspended_turn_says_what_it_waits_for_and_holds_nothing(cell):
    await cell.put_each("t1", "t2")
    turn = await cell.take_one()
    assert await cell.hold(turn, PAY, LOOK) == ""
    *_, step, event = await cell.events()
    assert step["type"] == "step_finished", "what was not yet published comes before"
    assert (event["type"], event["turn_id"], event["run"], event["attempt"], event["step"]) == (
        "turn_suspended", "t1", 1, 1, 1,
    )  # fmt: skip
    assert event["calls"] == [
        {
            "call_id": "c1", "name": "pay", "arguments": {"amount": 3}, "kind": "approval",
            "until": START_MS + 30 * DAY_MS,
        },
        {
            "call_id": "c2", "name": "look", "arguments": {}, "kind": "tool", "seconds": 20.0, "at_limit": "approve",
            "until": START_MS + 20_000,
        },
    ]  # fmt: skip
    fields = await cell.redis.hgetall("ant:session:s")
    assert (fields[b"fence"], fields[b"holder"], fields[b"turn"]) == (b"", b"", b"")
    assert b"s" not in await cell.redis.hgetall("ant:held:w1")
    assert await cell.redis.hget("rq:job:t1", "status") == b"deferred"
    assert await cell.redis.zrange("rq:wip:antiphon", 0, -1) == []
    assert await cell.redis.zscore("ant:suspended", "t1") == START_MS
    assert await cell.inbox() == ["t1", "t2"]
    assert await cell.look_at() == START_MS + 20_000
    assert (await cell.take()).turns == [], "the session's next turn waits behind it"


HOUR_MS = 3_600_000
NAP = Wait("c1", "sleep", seconds=60.0)
NIGHT = Wait("c2", "sleep", seconds=8 * 3600.0)
PAID = Wait("c3", "event paid", "event", 8 * 3600.0, event="paid")


@pytest.mark.parametrize(
    ("waits", "after"),
    [([NAP], 60_000), ([NIGHT], HOUR_MS), ([NIGHT, NAP], 60_000), ([PAID], 30_000), ([NIGHT, PAY], 30_000)],
)
@pytest.mark.parametrize("aside", [False, True])
async def test_a_turn_that_only_sleeps_is_left_alone_for_an_hour(cell, waits, after, aside):
    await cell.hold(await cell.started("t1"), *waits, aside=aside)
    seen = await cell.redis.zscore(*(("ant:aside", "t1") if aside else ("ant:active", "s")))
    assert seen == START_MS + after


@pytest.mark.parametrize("wait", [PAID, PAY])
async def test_what_has_waited_long_is_looked_at_less_often(cell, wait):
    await cell.hold(await cell.started("t1"), wait)
    gaps = []
    while await cell.now() < START_MS + 7 * HOUR_MS:
        now = await cell.now()
        gaps.append(await cell.look_at() - now)
        assert await cell.reap_after(gaps[-1]) == []
    assert gaps[:5] == [30_000] * 5
    assert gaps[5:] == sorted(gaps[5:])
    assert gaps[-1] == HOUR_MS
    assert len(gaps) < 35


async def test_a_turn_that_was_passed_by_is_looked_at_again(cell):
    await cell.hold(await cell.started("t1"), PAID, aside=True)
    for looks in (2, 3):
        assert await cell.reap_after(30_000) == []
        assert await cell.redis.zscore("ant:aside", "t1") == START_MS + looks * 30_000


async def test_a_sleep_is_left_alone_when_the_other_waits_are_over(cell):
    await cell.hold(await cell.started("t1"), NIGHT, PAY)
    await cell.decide()
    assert await cell.reap_after(30_000) == []
    assert await cell.look_at() == await cell.now() + HOUR_MS


async def test_a_repeated_suspend_changes_nothing(cell):
    turn = await cell.started("t1")
    await cell.hold(turn)
    before = await cell.contents()
    assert await cell.hold(turn) == ""
    assert await cell.contents() == before


async def test_a_repetition_after_the_turn_went_on_changes_nothing(cell):
    turn = await cell.started("t1")
    await cell.hold(turn)
    await cell.decide()
    await cell.take_one()
    before = await cell.contents()
    assert await cell.hold(turn) == ""
    assert await cell.contents() == before


@pytest.mark.parametrize("fence", ["", "0-other"])
async def test_only_the_holder_suspends(cell, fence):
    turn = await cell.started("t1")
    before = await cell.contents()
    assert await cell.hold(stranger(turn, fence)) is None
    assert await cell.contents() == before


async def test_a_turn_that_is_to_be_cancelled_is_not_suspended(cell):
    turn = await cell.started("t1")
    await cell.cancel(turn.turn_id, "enough", "nothing")
    assert await cell.hold(turn) == "enough"
    assert await cell.status() == "running"
    await cell.end(turn, "cancelled")


async def test_a_turn_that_was_cancelled_in_rq_is_not_suspended(cell):
    turn = await cell.started("t1")
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert await cell.hold(turn) == "cancelled in RQ"
    await cell.end(turn, "cancelled")


async def test_a_later_suspension_forgets_the_calls_of_the_earlier_one(cell):
    await cell.hold(await cell.started("t1"), PAY, LOOK)
    await cell.decide("c1")
    await cell.decide("c2", "result", content="a tree")
    turn = await cell.take_one()
    assert len(turn.decisions) == 2
    await cell.hold(turn, OpenCall("c3", "pay"))
    fields = (await cell.turn(turn.turn_id)).fields
    assert [name for name in fields if name.startswith(("wait:", "decision:"))] == ["wait:1"]
    await cell.decide("c3")
    again = await cell.take_one()
    assert b'"c3"' in again.decisions[0]
    assert len(again.decisions) == 1


async def test_the_next_turns_pass_by_a_turn_that_lets_them(cell):
    await cell.put("t1", ttl_ms=60_000)
    await cell.put("t2")
    await cell.hold(await cell.take_one(), aside=True)
    assert await cell.inbox() == ["t2"]
    assert await cell.redis.zscore("ant:aside", "t1") == START_MS + 30_000
    other = await cell.take_one()
    assert other.turn_id == "t2"
    await cell.end(other)
    for kind in ("session", "history", "events", "turns"):
        assert await cell.redis.pttl(f"ant:{kind}:s") == -1, "the session lives while it waits"
    assert await cell.look_at() is None
    await cell.decide()
    assert await cell.inbox() == ["t1"]
    turn = await cell.take_one()
    assert await cell.redis.zcard("ant:aside") == 0
    await cell.end(turn)
    assert await cell.history() == [b'"t2"', b'"t1"'], "in the order of finishing"
    assert 0 < await cell.redis.pttl("ant:history:s") <= 60_000


async def test_a_turn_that_was_passed_by_goes_on_behind_the_one_that_runs(cell):
    for name in ("t1", "t2", "t3"):
        await cell.put(name)
    await cell.hold(await cell.take_one(), aside=True)
    other = await cell.take_one()
    await cell.redis.delete("rq:job:t1")  # with RQ's tools
    await cell.decide()
    assert await cell.inbox() == ["t2", "t1", "t3"]
    assert await cell.status() == "waiting"
    assert await cell.redis.hget("rq:job:t1", "status") == b"deferred"
    await cell.end(other)
    assert (await cell.take_one()).turn_id == "t1"


async def test_a_snapshot_shows_a_turn_that_was_passed_by_and_begins_with_its_second_part(cell):
    await cell.hold(await cell.started("t1"), aside=True)
    await cell.end(await cell.started("t2"))
    found = await cell.snapshot("s", turns="pending")
    assert [record.turn_id for record in found.turns] == ["t1"]
    await cell.decide()
    await cell.take_one()
    found = await cell.snapshot("s", turns="pending")
    assert [event["type"] for event in await cell.events() if event["seq"] > found.cursor] == ["turn_started"]


async def test_a_suspended_turn_is_not_trimmed_away(cell):
    await cell.put_each("t0", "t1")
    await cell.end(await cell.take_one())
    await cell.hold(await cell.take_one())
    await cell.put("t2")
    await cell.cancel("t2", "not this one", keep_events=1)
    assert [e["type"] for e in await cell.events() if e["turn_id"] == "t1"][-1] == "turn_suspended"


async def test_a_session_with_a_suspended_turn_does_not_expire(cell):
    await cell.hold(await cell.started("t1", ttl_ms=1_000))
    for key in ("session:s", "history:s", "events:s", "turn:t1", "journal:t1"):
        assert await cell.redis.pttl(f"ant:{key}") in (-1, -2)


async def test_a_turn_that_never_waits_has_no_field_of_this(cell):
    turn = await cell.started("t1")
    await cell.say(turn, 1, body())
    await cell.end(turn)
    fields = (await cell.turn(turn.turn_id)).fields
    assert not [
        name for name in fields if name.partition(":")[0] in ("wait", "decision", "calls", "suspended_at")
    ]
    assert await cell.redis.hget("ant:session:s", "aside") is None
    assert turn.decisions == []


async def test_the_lease_is_free_for_another_worker(cell):
    turn = await cell.started("t1")
    await cell.hold(turn)
    assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == ["SUPERSEDED"]
    await cell.decide()
    again = await cell.take_one("w2")
    assert again.turn_id == "t1"
    assert again.journal == [b'{"step":1}']
