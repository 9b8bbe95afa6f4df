"""`renew`: every lease of a worker in one round trip, each held or not."""

from __future__ import annotations

from support.cells import LEASE_MS, START_MS, open_cell

from antiphon.wire.cell import SUPERSEDED


async def test_a_renewed_lease_is_not_recovered(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.wait(LEASE_MS - 1)
        assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]
        assert await cell.look_at() == START_MS + 2 * LEASE_MS - 1
        await cell.wait(LEASE_MS - 1)
        assert await cell.reap() == []
        await cell.wait(1)
        assert [done.what for done in await cell.reap()] == ["recovered"]


async def test_each_lease_has_its_own_answer(redis_url):
    async with open_cell(redis_url) as cell:
        for number in range(3):
            await cell.put(f"t{number}", f"s{number}")
        turns = (await cell.take()).turns
        await cell.cancel("t1", "enough")
        await cell.end(turns[2])
        answers = await cell.renew("w1", [(turn.session_id, turn.fence) for turn in turns], lease_ms=LEASE_MS)
        assert answers == ["", "enough", SUPERSEDED]


async def test_a_lease_that_ran_out_but_was_not_recovered_is_renewed(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.wait(10 * LEASE_MS)
        assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]
        assert await cell.reap() == []


async def test_a_lost_lease_stays_lost(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.wait(LEASE_MS)
        await cell.reap()
        before = await cell.contents()
        leases = [(turn.session_id, turn.fence), (turn.session_id, ""), ("nowhere", ""), ("nowhere", "1-x")]
        assert await cell.renew("w1", leases, lease_ms=LEASE_MS) == [SUPERSEDED] * 4
        assert await cell.contents() == before


async def test_nothing_held_is_nothing_to_renew(redis_url):
    async with open_cell(redis_url) as cell:
        assert await cell.renew("w1", [], lease_ms=LEASE_MS) == []


async def test_renewing_keeps_the_list_of_what_a_worker_holds(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.redis.expire("ant:held:w1", 5)
        await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS)
        assert await cell.redis.ttl("ant:held:w1") > 3500
