"""Shares of a queue: of a tenant's turns one stands in the queue, and the others wait in the tenant's line."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError
from support.cells import LEASE_MS, START_MS, TestCell

from antiphon.errors import StoreError, TenantLimit
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import OpenCall
from antiphon.redis.deployment import TenantLimits, set_tenant_limits
from antiphon.wire.editing import Change, change_session


async def put_all(cell: TestCell, tenant: str, *turns: str, **options) -> None:
    """One turn in a session of its own, a millisecond after the other."""
    for turn in turns:
        await cell.put(turn, f"of-{turn}", tenant=tenant, **options)
        await cell.wait(1)


async def line(cell: TestCell, share: str = "@a", queue: str = "antiphon") -> list[str]:
    return [turn.decode() for turn in await cell.redis.zrange(cell.keys.line(queue, share), 0, -1)]


async def limit(cell: TestCell, tenant: str = "", **limits: int) -> None:
    await set_tenant_limits([cell], tenant, TenantLimits(**limits))


async def claimed(cell: TestCell, limit: int = 1, **options) -> list[str]:
    return [turn.turn_id for turn in (await cell.take(limit=limit, **options)).turns]


async def in_flight(cell: TestCell, tenant: str = "a") -> int:
    return await cell.redis.zcount(cell.keys.tenant(tenant), "-inf", "(0")


async def nothing_of_shares(cell: TestCell) -> bool:
    patterns = ("ant:share:*", "ant:line:*", "ant:tenant:*")
    return not [key for pattern in patterns for key in await cell.redis.keys(pattern)]


async def test_of_a_tenant_one_turn_stands_in_the_queue_and_the_others_wait(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    assert await cell.queue() == ["a1"]
    assert await line(cell) == ["a2", "a3"]
    assert [await cell.status(turn) for turn in ("a1", "a2")] == ["queued", "waiting"]
    assert await cell.redis.hget("rq:job:a2", "status") == b"deferred"
    assert await cell.redis.zrange("rq:deferred:antiphon", 0, -1) == [b"a2", b"a3"]
    assert await cell.look_at("of-a2") == START_MS + 1 + 30_000


async def test_a_claim_lets_the_next_turn_of_the_tenant_in_behind_all_others(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await put_all(cell, "b", "b1")
    await cell.put("n1", "of-nobody")
    assert await cell.queue() == ["a1", "b1", "n1"]
    assert await claimed(cell) == ["a1"]
    assert await cell.queue() == ["b1", "n1", "a2"]
    assert await cell.status("a2") == "queued"
    assert await cell.redis.zrange("rq:deferred:antiphon", 0, -1) == [b"a3"]
    assert await claimed(cell, 8) == ["b1", "n1", "a2", "a3"]
    assert await line(cell) == []


async def test_a_turn_that_was_let_in_is_looked_at_half_a_minute_later(cell):
    await put_all(cell, "a", "a1", "a2")
    await cell.wait(5_000)
    assert await claimed(cell, 1) == ["a1"]
    assert await cell.queue() == ["a2"]
    assert await cell.look_at("of-a2") == await cell.now() + 30_000


async def test_however_many_turns_a_tenant_has_another_one_waits_for_one_of_them(cell):
    await put_all(cell, "a", *(f"a{n}" for n in range(10, 40)))
    await put_all(cell, "b", "b1")
    assert await claimed(cell, 4) == ["a10", "b1", "a11", "a12"]


async def test_one_claim_takes_as_many_turns_of_one_tenant_as_there_is_room_for(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    assert await claimed(cell, 8) == ["a1", "a2", "a3"]
    assert await cell.redis.exists(cell.keys.share("@a"), cell.keys.line("antiphon", "@a")) == 0


async def test_turns_without_a_tenant_and_priority_know_no_share(cell):
    for number in range(3):
        await cell.put(f"t{number}", f"s{number}")
    assert await cell.queue() == ["t0", "t1", "t2"]
    assert await nothing_of_shares(cell)


async def test_each_queue_has_a_place_for_the_tenant(cell):
    await put_all(cell, "a", "a1", "a2")
    await put_all(cell, "a", "a3", "a4", queue="other")
    assert (await cell.queue(), await cell.queue("other")) == (["a1"], ["a3"])
    assert await claimed(cell, queues=["other"]) == ["a3"]
    assert (await cell.queue(), await cell.queue("other")) == (["a1"], ["a4"])


async def test_nothing_is_left_of_a_share_when_its_turns_have_ended(cell):
    await put_all(cell, "a", "a1", "a2")
    await put_all(cell, "a", "a3", queue="other")
    for turn in (await cell.take(queues=["antiphon", "other"])).turns:
        assert await cell.end(turn)
    assert await nothing_of_shares(cell)


async def test_only_the_first_turn_of_a_session_stands_in_line(cell):
    await put_all(cell, "a", "a1", "a2")
    await cell.put("later", "of-a2", tenant="a")
    assert await line(cell) == ["a2"]
    for turn in (await cell.take()).turns:
        await cell.end(turn)
    assert await cell.queue() == ["later"]


async def test_a_turn_of_a_session_is_in_line_by_the_time_of_its_submission(cell):
    await put_all(cell, "a", "a1")
    await cell.put("early", "of-a1", tenant="a")
    await cell.wait(1)
    await put_all(cell, "a", "a2", "a3")
    await cell.end(await cell.take_one(limit=1))
    assert await cell.queue() == ["a2"]
    assert await line(cell) == ["early", "a3"]


async def test_a_turn_in_line_that_is_cancelled_leaves_it(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    assert await cell.cancel(TurnId("a2"), "enough") == "cancelled"
    assert await line(cell) == ["a3"]
    assert await cell.status("a2") == "cancelled"
    assert await cell.cancel(TurnId("a1"), "enough") == "cancelled"
    assert await cell.queue() == ["a3"]


async def test_a_turn_that_was_given_back_goes_on_before_all_others(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    turn = await cell.take_one(limit=1)
    await cell.give_back(turn, "drain")
    assert await cell.queue() == ["a1", "a2"]
    await cell.take_one(limit=1)
    await cell.reap_after(LEASE_MS)
    assert await cell.queue() == ["a1", "a2"]
    assert await claimed(cell) == ["a1"]
    assert await cell.queue() == ["a2"], "it had not the place: nobody enters for it"


async def test_a_turn_that_is_tried_again_waits_for_its_place(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await put_all(cell, "b", "b1")
    await cell.give_back(await cell.take_one(limit=1), "error", delay_ms=500)
    assert await cell.status("a1") == "retrying"
    await cell.reap_after(500)
    assert await cell.status("a1") == "waiting"
    assert await cell.queue() == ["b1", "a2"]
    assert await line(cell) == ["a1", "a3"], "it was submitted first"


async def test_a_turn_that_is_tried_again_goes_before_nobody(cell):
    await put_all(cell, "a", "a1")
    await cell.give_back(await cell.take_one(), "error", delay_ms=500)
    await put_all(cell, "b", "b1")
    await cell.reap_after(500)
    assert await cell.queue() == ["b1", "a1"]


async def test_a_cancelled_turn_that_a_worker_must_end_does_not_wait(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    turn = await cell.take_one(limit=1)
    await cell.append_step(turn, length=0, step=1, entries=[b"{}"], bodies=[])
    await cell.give_back(turn, "error", delay_ms=60_000)
    assert await cell.cancel(TurnId("a1"), "enough") == "requested"
    assert await cell.queue() == ["a1", "a2"]


async def test_a_turn_in_line_that_was_cancelled_in_rq_is_cancelled_when_its_time_comes(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await cell.redis.hset("rq:job:a2", "status", "canceled")
    assert await claimed(cell) == ["a1"]
    assert await cell.queue() == ["a3"]
    await cell.reap()
    assert await cell.status("a2") == "cancelled"


async def test_what_rqs_tools_push_into_the_queue_keeps_its_place_in_line(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await cell.redis.lpush("rq:queue:antiphon", "a3")
    assert await claimed(cell) == ["a1"]
    assert await line(cell) == ["a3"]


async def test_an_emptied_queue_gets_its_turn_back_and_the_line_moves_on(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await cell.redis.delete("rq:queue:antiphon")
    await cell.reap_after(30_000)
    assert await cell.queue() == ["a1"]
    assert await line(cell) == ["a2", "a3"]


async def test_a_turn_that_could_not_enter_a_damaged_queue_keeps_the_place_of_its_share(cell):
    await cell.redis.set("rq:queue:antiphon", "no list")
    with pytest.raises(StoreError):
        await put_all(cell, "a", "a1")
    await cell.redis.delete("rq:queue:antiphon")
    await put_all(cell, "a", "a2")
    assert (await cell.queue(), await line(cell)) == ([], ["a2"])
    await cell.reap_after(30_000)
    assert (await cell.queue(), await line(cell)) == (["a1"], ["a2"])


async def test_a_failed_turn_that_runs_again_stands_at_the_end_of_the_line(cell):
    await put_all(cell, "a", "a1", "a2")
    await cell.end(await cell.take_one(limit=1), "failed")
    await put_all(cell, "a", "a3")
    await cell.requeue(TurnId("a1"))
    assert await line(cell) == ["a3", "a1"]
    assert await cell.status("a1") == "waiting"


async def test_a_turn_that_rq_requeues_waits_in_line(cell):
    await put_all(cell, "a", "a1", "a2")
    await cell.end(await cell.take_one(limit=1), "failed")
    await cell.redis.hset("rq:job:a1", "status", "queued")
    await cell.redis.lpush("rq:queue:antiphon", "a1")
    assert await claimed(cell) == ["a2"]
    assert await cell.status("a1") == "queued"
    assert await cell.queue() == ["a1"]


async def test_a_delayed_turn_takes_its_place_when_it_is_due(cell):
    await cell.put("a0", "of-a0", tenant="a", due_in_ms=1000)
    await put_all(cell, "a", "a1", "a2")
    await cell.reap_after(1000)
    assert await cell.queue() == ["a1"]
    assert await line(cell) == ["a2", "a0"]


async def test_an_edit_between_turns_brings_nobody_before_his_turn(cell):
    await put_all(cell, "a", "a1", "a2")
    change = Change(bodies=[b'{"type":"session_closed","turn_id":"","run":0}'])
    assert await change_session(cell, SessionId("of-a2"), "op", change, when="between", ttl_ms=None)
    assert await cell.queue() == ["a1"]
    assert await line(cell) == ["a2"]


# the reaper


async def test_a_line_that_nobody_has_moved_is_moved_by_the_reaper(cell):
    """So it is after a claim by a worker of the release before."""
    await put_all(cell, "a", "a1", "a2", "a3")
    await cell.redis.lpop("rq:queue:antiphon")
    await cell.redis.hset("ant:turn:a1", "status", "finished")
    await cell.redis.delete("ant:inbox:of-a1")
    await cell.redis.zrem("ant:active", "of-a1")
    await cell.reap_after(31_000)
    assert await cell.queue() == ["a2"]
    assert await line(cell) == ["a3"]
    await cell.redis.flushdb()
    await cell.set_clock(START_MS)


async def test_a_turn_that_no_line_has_is_offered_by_the_reaper(cell):
    await put_all(cell, "a", "a1", "a2")
    await cell.redis.delete(cell.keys.line("antiphon", "@a"))
    await cell.reap_after(31_000)
    assert await line(cell) == ["a2"]


async def test_a_turn_in_line_whose_record_is_gone_holds_nobody_up(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await cell.redis.delete("ant:turn:a2")
    assert await claimed(cell) == ["a1"]
    assert await cell.queue() == ["a3"]


async def test_a_place_whose_turn_is_set_aside_holds_nobody_up(cell):
    await put_all(cell, "a", "a1", "a2", "a3")
    await cell.redis.hset("ant:turn:a1", "crashes", "abc")
    assert await claimed(cell) == []
    await cell.reap_after(30_000)
    await cell.reap_after(30_000)
    assert await cell.queue() == ["a2"]
    await cell.redis.hset("ant:turn:a1", "crashes", "0")


async def test_a_turn_that_is_let_in_while_it_is_mended_has_its_place(cell):
    await put_all(cell, "a", "a9", "a1")
    for junk, what in (("junk", "quarantined"), ("0", "mended")):
        for turn in ("a9", "a1"):
            await cell.redis.hset(cell.keys.turn(turn), "errors", junk)
        await cell.reap_after(61_000)
        assert await cell.redis.hlen(cell.keys.quarantined) == (2 if what == "quarantined" else 0)
    assert await cell.queue() == ["a9", "a1"], "nobody waits behind what is set aside"
    await put_all(cell, "a", "a2")
    assert await line(cell) == ["a2"]


@pytest.mark.parametrize("kind", ["share:@a", "line:antiphon:@a", "tenant:a"])
async def test_a_damaged_share_keeps_no_turn_from_its_way(cell, kind):
    await put_all(cell, "a", "a1")
    await cell.put("next", "of-a1")
    turn = await cell.take_one()
    await cell.redis.delete(f"ant:{kind}")
    await cell.redis.set(f"ant:{kind}", "junk")
    assert await cell.end(turn)
    assert await cell.queue() == ["next"]
    await cell.redis.delete(f"ant:{kind}")


async def test_a_damaged_line_is_shown_with_the_sessions_that_wait_in_it(cell):
    await put_all(cell, "a", "a1", "a2")
    await cell.redis.set(cell.keys.line("antiphon", "@a"), "junk")
    await cell.reap_after(30_000)
    assert await cell.redis.hkeys("ant:quarantined") == [b"of-a2"]
    await cell.redis.delete(cell.keys.line("antiphon", "@a"))
    await cell.reap_after(60_000)
    assert await line(cell) == ["a2"]


# turns in flight


async def test_turns_beyond_the_limit_in_flight_wait_until_others_have_ended(cell):
    await limit(cell, in_flight=2)
    await put_all(cell, "a", "a1", "a2", "a3", "a4")
    turns = (await cell.take()).turns
    assert [turn.turn_id for turn in turns] == ["a1", "a2"]
    assert (await cell.queue(), await line(cell)) == ([], ["a3", "a4"])
    await cell.end(turns[0])
    assert await cell.queue() == ["a3"]
    assert await in_flight(cell) == 2


@pytest.mark.parametrize("again", [False, True], ids=["new", "requeued"])
async def test_a_turn_that_is_interrupted_before_it_began_waits_for_its_place_too(again, cell):
    await limit(cell, in_flight=1)
    if again:
        await cell.end(await cell.started("t1", "s1", tenant="a"), "failed")
    other = await cell.started("other", "s2", tenant="a")
    if again:
        await cell.requeue(TurnId("t1"))
    else:
        await cell.put("t1", "s1", tenant="a")
    await cell.put("t2", "s1", tenant="a", if_busy="interrupt")
    assert (await cell.take()).turns == []
    assert (await in_flight(cell), await line(cell)) == (1, ["t1"])
    await cell.end(other)
    interrupted = await cell.take_one()
    assert (interrupted.turn_id, interrupted.stop) == ("t1", "interrupted by turn t2")
    await cell.end(interrupted, "cancelled")
    assert await cell.end(await cell.take_one())


async def test_a_tenant_at_its_limit_takes_its_place_nowhere(cell):
    await limit(cell, in_flight=1)
    await put_all(cell, "a", "a1")
    turn = await cell.take_one()
    await put_all(cell, "a", "a2", queue="other")
    await put_all(cell, "a", "a3")
    assert (await cell.queue(), await cell.queue("other")) == ([], [])
    await cell.end(turn)
    assert (await cell.queue(), await cell.queue("other")) == ([], ["a2"]), "it has waited longest"


@pytest.mark.parametrize("only", ["", "t1"])
async def test_a_retry_that_rqs_scheduler_offers_waits_for_its_place_too(only, cell):
    await limit(cell, in_flight=1)
    await cell.give_back(await cell.started("t1", "s1", tenant="a"), "error", delay_ms=1_000)
    second = await cell.started("t2", "s2", tenant="a")
    await cell.wait(1_000)
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take(only=only)).turns == []
    assert (await in_flight(cell), await cell.status("t1")) == (1, "waiting")
    await cell.end(second)
    first = await cell.take_one()
    assert (first.turn_id, first.attempt, first.errors) == ("t1", 2, 1)
    await cell.end(first)


async def test_a_turn_that_waits_to_be_tried_again_is_not_in_flight(cell):
    await limit(cell, in_flight=1)
    await put_all(cell, "a", "a1", "a2")
    await cell.give_back(await cell.take_one(), "error", delay_ms=500)
    assert await cell.queue() == ["a2"]
    await cell.reap_after(500)
    assert await line(cell) == ["a1"]


@pytest.mark.parametrize("why", ["retrying", "suspended"])
async def test_a_turn_that_comes_back_has_no_place_in_a_queue_of_its_own(why, cell):
    await limit(cell, in_flight=1)
    await put_all(cell, "a", "a1", queue="other")
    first = await cell.take_one(queues=["other"])
    await put_all(cell, "a", "a2")
    await put_all(cell, "a", "a3", queue="other")
    if why == "retrying":
        await cell.give_back(first, "error", delay_ms=1_000)
    else:
        await cell.hold(first, OpenCall("c", "pay", seconds=1.0))
    assert await cell.queue() == ["a2"]
    await cell.reap_after(31_000)
    assert (await cell.queue(), await cell.queue("other")) == (["a2"], [])
    assert (await in_flight(cell), await line(cell, queue="other")) == (1, ["a1", "a3"])


async def test_a_limit_of_its_own_goes_before_the_default(cell):
    await limit(cell, in_flight=1)
    await limit(cell, "a", in_flight=2)
    await put_all(cell, "a", "a1", "a2")
    await put_all(cell, "b", "b1", "b2")
    assert await claimed(cell, 8) == ["a1", "b1", "a2"]


async def test_a_limit_that_is_raised_lets_turns_in_within_the_reapers_look(cell):
    await limit(cell, "a", in_flight=1)
    await put_all(cell, "a", "a1", "a2")
    assert await claimed(cell, 8, lease_ms=60_000) == ["a1"]
    await limit(cell, "a", in_flight=2)
    await cell.reap_after(31_000)
    assert await cell.queue() == ["a2"]


async def test_what_has_ended_uncounted_is_forgotten_by_the_reaper(cell):
    await limit(cell, in_flight=1)
    await put_all(cell, "a", "a1", "a2")
    await cell.end(await cell.take_one(limit=1))
    await cell.end(await cell.take_one(limit=1))
    await cell.redis.zadd(cell.keys.tenant("a"), {"a1": -1})
    await put_all(cell, "a", "a3")
    assert await line(cell) == ["a3"]
    await cell.reap_after(31_000)
    assert await cell.queue() == ["a3"]


async def test_a_turn_that_goes_on_keeps_its_room(cell):
    await limit(cell, in_flight=1)
    await put_all(cell, "a", "a1", "a2")
    await cell.give_back(await cell.take_one(), "drain")
    assert (await cell.queue(), await line(cell)) == (["a1"], ["a2"])
    assert await claimed(cell, 8) == ["a1"]


# what is refused


async def test_a_tenant_has_so_many_turns_that_wait(cell):
    await limit(cell, waiting=2)
    await put_all(cell, "a", "a1", "a2")
    await cell.put("a3", "of-a3", tenant="a", due_in_ms=1000)
    before = await cell.contents()
    with pytest.raises(TenantLimit, match="has 2 turns that wait") as refused:
        await cell.put("a4", "of-a4", tenant="a")
    assert (refused.value.limit, refused.value.retry_after) == ("waiting", 1.0)
    assert await cell.contents() == before
    assert await cell.put("a2", "of-a2", tenant="a") == 0, "it was accepted before"
    await put_all(cell, "b", "b1")
    await claimed(cell)
    await put_all(cell, "a", "a4")


async def test_a_tenant_submits_so_many_turns_in_any_minute(cell):
    await limit(cell, "a", per_minute=2)
    await cell.put("a1", "s1", tenant="a")
    await cell.wait(40_000)
    await cell.put("a2", "s2", tenant="a")
    assert 0 < await cell.redis.pttl(cell.keys.pace("a")) <= 60_000
    with pytest.raises(TenantLimit, match="has submitted 2 turns in a minute") as refused:
        await cell.put("a3", "s3", tenant="a")
    assert (refused.value.limit, refused.value.retry_after) == ("per_minute", 20.0)
    assert await cell.put("a1", "s1", tenant="a") == 0
    await cell.put("b1", "s3", tenant="b")
    await cell.wait(20_000)
    await cell.put("a3", "s4", tenant="a")
    with pytest.raises(TenantLimit) as refused:
        await cell.put("a4", "s5", tenant="a")
    assert refused.value.retry_after == 40.0
    assert await cell.redis.llen(cell.keys.pace("a")) == 2


async def test_a_clock_that_was_put_back_refuses_nobody(cell):
    await limit(cell, "a", per_minute=1)
    await cell.put("a1", "s1", tenant="a")
    await cell.wait(-3_600_000)
    await cell.put("a2", "s2", tenant="a")


async def test_the_limit_of_a_sessions_tenant_holds_for_those_who_do_not_name_it(cell):
    await limit(cell, "a", per_minute=1)
    await cell.put("a1", "s1", tenant="a")
    with pytest.raises(TenantLimit):
        await cell.put("a2", "s1")


# priorities


async def test_a_turn_of_high_priority_goes_before_those_of_its_tenant(cell):
    await put_all(cell, "a", "n1", "n2")
    await put_all(cell, "a", "l1", priority="low")
    await put_all(cell, "a", "n3")
    await put_all(cell, "a", "h1", "h2", priority="high")
    await put_all(cell, "b", "b1")
    assert await cell.queue() == ["n1", "b1"], "it goes before nobody else's"
    assert await line(cell) == ["h1", "h2", "n2", "n3", "l1"]


async def test_ten_minutes_make_a_turn_of_low_priority_as_good_as_a_normal_one(cell):
    await put_all(cell, "a", "first")
    await put_all(cell, "a", "l1", priority="low")
    await put_all(cell, "a", "n1")
    await cell.wait(600_000)
    await put_all(cell, "a", "n2")
    await put_all(cell, "a", "h1", priority="high")
    assert await line(cell) == ["n1", "h1", "l1", "n2"]


async def test_without_a_tenant_a_high_turn_goes_second_and_a_low_one_last(cell):
    for number in range(1, 4):
        await cell.put(f"n{number}", f"s{number}")
    for number in range(1, 4):
        await cell.put(f"h{number}", f"sh{number}", priority="high")
        await cell.put(f"l{number}", f"sl{number}", priority="low")
        await cell.wait(1)
    assert await cell.queue() == ["n1", "h1", "n2", "n3", "l1"]
    assert await line(cell, "high") == ["h2", "h3"]
    await cell.put("n4", "s4")
    assert await claimed(cell, 99) == ["n1", "h1", "n2", "h2", "n3", "h3", "l1", "n4", "l2", "l3"]


async def test_high_turns_of_one_waiter_after_the_other_leave_every_second_place_to_others(cell):
    for number in range(1, 4):
        await cell.put(f"n{number}", f"s{number}")
    order = []
    for number in range(1, 4):
        await cell.put(f"h{number}", f"sh{number}", priority="high")
        order += await claimed(cell, 2)
    assert order == ["n1", "h1", "n2", "h2", "n3", "h3"]


async def test_a_high_turn_alone_stands_in_the_queue(cell):
    await cell.put("h1", "s1", priority="high")
    assert await cell.queue() == ["h1"]
    assert await claimed(cell) == ["h1"]


@pytest.mark.parametrize("first", ["a turn", "a job"])
async def test_a_high_turn_lets_no_entry_of_a_long_queue_look_lost(cell, first):
    if first == "a job":
        await cell.redis.rpush("rq:queue:antiphon", "job")
    else:
        await cell.put("n0", "s0")
    await cell.wait(1)
    await cell.put("n1", "s1")
    await cell.wait(1)
    await cell.put("h1", "sh", priority="high")
    await cell.redis.rpush("rq:queue:antiphon", *(f"job{n}" for n in range(1000)))
    await cell.redis.lpop("rq:queue:antiphon")
    await cell.redis.hset("ant:turn:n0", "status", "finished")
    await cell.redis.delete("ant:inbox:s0")
    assert [act.what for act in await cell.reap_after(30_000)] == []
    await cell.redis.flushdb()
    await cell.set_clock(START_MS)


async def test_a_sessions_own_order_is_never_changed_by_priorities(cell):
    await cell.put("n1", "s")
    await cell.put("n2", "s")
    await cell.put("h1", "s", priority="high")
    assert await cell.inbox() == ["n1", "n2", "h1"]
    assert await cell.queue() == ["n1"]


async def test_a_repetition_with_another_priority_finds_the_first_turn(cell):
    await cell.put("t1", "s", priority="low")
    assert await cell.put("t1", "s", priority="high") == 0
    assert await cell.redis.hget("ant:turn:t1", "priority") == b"low"


async def test_at_full_memory_turns_end_and_the_line_moves_on(cell):
    await put_all(cell, "a", "a1", "a2")
    turn = await cell.take_one(limit=1)
    await cell.redis.config_set("maxmemory", 1)
    try:
        assert await cell.end(turn)
        with pytest.raises((StoreError, ResponseError)):
            await cell.put("a3", "of-a3", tenant="a")
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert await cell.queue() == ["a2"]
    assert await cell.redis.exists("ant:turn:a3") == 0


async def of_users(cell: TestCell, *turns: str, **options) -> None:
    """Turns of the user that the first letter of their names is."""
    for turn in turns:
        await cell.put(turn, f"of-{turn}", tenant="a", user=turn[0], **options)
        await cell.wait(1)


async def test_users_of_a_tenant_take_turns(cell):
    await of_users(cell, "x0", *(f"x{number}" for number in range(1, 6)), "y1", "y2", "z1")
    assert await cell.queue() == ["x0"]
    assert await line(cell) == ["x1", "y1", "z1", "x2", "y2", "x3", "x4", "x5"]


async def test_a_newcomer_joins_the_end_of_the_current_round(cell):
    await of_users(cell, "x0", "x1", "x2", "x3", "y1", "y2")
    await cell.wait(24 * 3_600_000)
    await of_users(cell, "z1", "z2")
    assert await line(cell) == ["x1", "y1", "x2", "z1", "y2", "x3", "z2"]


async def test_newcomers_without_end_delay_a_user_by_a_round(cell):
    await of_users(cell, "x0", "x1", "x2")
    await cell.wait(3_600_000)
    await of_users(cell, *(f"{name}1" for name in "abcdefg"))
    assert (await line(cell))[:3] == ["x1", "x2", "a1"]


async def test_turns_without_a_user_go_by_their_time(cell):
    await put_all(cell, "a", "n0", "n1")
    await of_users(cell, "x1", "x2", "x3")
    await put_all(cell, "a", "n2", "n3")
    assert await line(cell) == ["n1", "x1", "n2", "n3", "x2", "x3"]


async def test_a_user_whose_turns_have_left_the_line_begins_anew(cell):
    await of_users(cell, "x0", "x1", "x2", "x3", "y1", "y2")
    for turn in ("x1", "x2", "x3"):
        await cell.cancel(TurnId(turn), "")
    await of_users(cell, "x4")
    assert await line(cell) == ["y1", "x4", "y2"]


async def test_priorities_order_the_turns_of_users(cell):
    await of_users(cell, "x0", "x1", "x2")
    await of_users(cell, "x3", "y1", priority="high")
    await of_users(cell, "y2", "z1")
    assert await line(cell) == ["y1", "x3", "x1", "z1", "x2", "y2"]


async def test_a_requeued_turn_of_a_user_keeps_its_time(cell):
    await of_users(cell, "x0", "x1", "x2", "y1")
    turn = await cell.take_one(limit=1)
    await cell.give_back(turn, "error", delay_ms=1_000)
    await cell.reap_after(1_000)
    assert await cell.queue() == ["x1"]
    assert await line(cell) == ["x0", "y1", "x2"]


async def test_the_names_of_users_are_not_kept_with_their_places(cell):
    await of_users(cell, "x0", "x1")
    (known,) = await cell.redis.hkeys(cell.keys.rounds("@a"))
    assert len(known) == 40
    assert 0 < await cell.redis.pttl(cell.keys.rounds("@a")) <= 86_400_000
    await cell.redis.pexpire(cell.keys.rounds("@a"), 60_000)
    await of_users(cell, "y1")
    assert await cell.redis.pttl(cell.keys.rounds("@a")) <= 60_000, "or users without end would stay"


async def test_a_failed_turn_that_runs_again_counts_for_its_user(cell):
    await limit(cell, user_turns=1)
    for turn in ("t1", "t2"):
        await put_all(cell, "a", turn, user="ann")
        await cell.end(await cell.take_one(), "failed")
    await cell.requeue(TurnId("t1"))
    with pytest.raises(TenantLimit) as refused:
        await put_all(cell, "a", "t3", user="ann")
    assert refused.value.limit == "user_turns"
    await put_all(cell, "a", "t3", user="bob")
    for turn in (await cell.take()).turns:
        await cell.end(turn)
    await put_all(cell, "a", "t4", user="ann")
    await cell.end(await cell.take_one())
