"""`renew`: every lease of a worker in one round trip, each held or not."""

import pytest
from support.cells import LEASE_MS, START_MS, body

from antiphon.wire.cell import SUPERSEDED


async def test_a_renewed_lease_is_not_recovered(cell):
    turn = await cell.started("t1")
    await cell.wait(LEASE_MS - 1)
    assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]
    assert await cell.look_at() == START_MS + 2 * LEASE_MS - 1
    assert await cell.reap_after(LEASE_MS - 1) == []
    assert [done.what for done in await cell.reap_after(1)] == ["recovered"]


async def test_each_lease_has_its_own_answer(cell):
    for number in range(3):
        await cell.put(f"t{number}", f"s{number}")
    turns = (await cell.take()).turns
    await cell.cancel("t1", "enough")
    await cell.end(turns[2])
    answers = await cell.renew("w1", [(turn.session_id, turn.fence) for turn in turns], lease_ms=LEASE_MS)
    assert answers == ["", "enough", SUPERSEDED]


async def test_a_lease_that_ran_out_but_was_not_recovered_is_renewed(cell):
    turn = await cell.started("t1")
    await cell.wait(10 * LEASE_MS)
    assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]
    assert await cell.reap() == []


async def test_a_lost_lease_stays_lost(cell):
    turn = await cell.started("t1")
    await cell.reap_after(LEASE_MS)
    before = await cell.contents()
    leases = [(turn.session_id, turn.fence), (turn.session_id, ""), ("nowhere", ""), ("nowhere", "1-x")]
    assert await cell.renew("w1", leases, lease_ms=LEASE_MS) == [SUPERSEDED] * 4
    assert await cell.contents() == before


async def test_nothing_held_is_nothing_to_renew(cell):
    assert await cell.renew("w1", [], lease_ms=LEASE_MS) == []


async def test_renewing_keeps_the_list_of_what_a_worker_holds(cell):
    turn = await cell.started("t1")
    await cell.redis.expire("ant:held:w1", 5)
    await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS)
    assert await cell.redis.ttl("ant:held:w1") > 3500


async def test_a_turn_cancelled_with_rqs_tools_while_it_runs_is_to_stop(cell):
    await cell.put("t1")
    await cell.put("t2", "s2")
    turns = (await cell.take()).turns
    leases = [(turn.session_id, turn.fence) for turn in turns]
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    for _ in range(2):
        assert await cell.renew("w1", leases, lease_ms=LEASE_MS) == ["cancelled in RQ", ""]
    assert await cell.say(turns[0], 1, body()) == "cancelled in RQ", "every answer says so"
    await cell.end(turns[0], "cancelled")
    await cell.end(turns[1])


async def test_a_turn_that_was_told_to_stop_keeps_its_reason(cell):
    turn = await cell.started("t1")
    await cell.cancel("t1", "enough")
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == ["enough"]
    await cell.end(turn, "cancelled")


@pytest.mark.parametrize("job_stays", [True, False])
async def test_whoever_takes_over_a_turn_cancelled_with_rqs_tools_hears_of_it(cell, job_stays):
    """Its worker had heard of it and died; what it has achieved is kept by the one that ends it."""
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body()])
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS)
    if not job_stays:
        await cell.redis.delete("rq:job:t1")
    await cell.reap(holder="w1")
    await cell.reap()
    again = await cell.take_one("w2")
    assert (again.stop, again.journal) == ("cancelled in RQ", [b"one"])
    await cell.end(again, "cancelled")
