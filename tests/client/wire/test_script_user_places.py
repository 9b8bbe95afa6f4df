"""The limit of a user's turns in flight: a user of a tenant has so many places, and a line for the other turns."""

from __future__ import annotations

import asyncio

import pytest
from support.cells import TestCell
from support.eventually import patience

from antiphon.errors import TenantLimit
from antiphon.input.ids import TurnId
from antiphon.model import OpenCall
from antiphon.redis.deployment import TenantLimits, set_tenant_limits


async def limit(cell: TestCell, **limits: int) -> None:
    await set_tenant_limits([cell], "a", TenantLimits(**limits))


async def of_users(cell: TestCell, *turns: str, **options) -> None:
    """Turns of the user that the first letter of their names is, each in a session of its own."""
    for turn in turns:
        await cell.put(turn, f"of-{turn}", **{"tenant": "a", "user": turn[0], **options})
        await cell.wait(1)


async def keys_of(cell: TestCell, kind: str) -> list[bytes]:
    return sorted(await cell.redis.keys(f"ant:user_{kind}:*"))


async def places(cell: TestCell) -> list[str]:
    """All turns that have a place of their user."""
    found = [await cell.redis.smembers(key) for key in await keys_of(cell, "places")]
    return sorted(turn.decode() for turns in found for turn in turns)


async def waiting(cell: TestCell) -> list[str]:
    """The turns in the lines of users."""
    found = [await cell.redis.zrange(key, 0, -1) for key in await keys_of(cell, "line")]
    return [turn.decode() for turns in found for turn in turns]


async def line(cell: TestCell, queue: str = "antiphon") -> list[str]:
    return [turn.decode() for turn in await cell.redis.zrange(cell.keys.line(queue, "@a"), 0, -1)]


async def claimed(cell: TestCell, most: int = 8, **options) -> list[str]:
    return [turn.turn_id for turn in (await cell.take(limit=most, **options)).turns]


async def test_turns_of_a_user_beyond_the_limit_wait_until_others_have_ended(cell):
    await limit(cell, user_in_flight=2)
    await of_users(cell, "x1", "x2", "x3", "x4", "y1")
    turns = (await cell.take()).turns
    assert [turn.turn_id for turn in turns] == ["x1", "x2", "y1"]
    assert (await waiting(cell), await cell.status("x3")) == (["x3", "x4"], "waiting")
    assert await cell.redis.hget("rq:job:x3", "status") == b"deferred"
    await cell.end(turns[2])
    assert await cell.queue() == []
    await cell.end(turns[0])
    assert (await cell.queue(), await places(cell), await waiting(cell)) == (["x3"], ["x2", "x3"], ["x4"])


async def test_places_and_lines_of_users_end_with_their_turns(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2", "x3")
    for expected in ("x1", "x2", "x3"):
        turn = await cell.take_one()
        assert turn.turn_id == expected
        await cell.end(turn)
    assert await keys_of(cell, "places") + await keys_of(cell, "line") == []


async def test_a_user_has_so_many_places_in_the_line_of_the_tenant(cell):
    await limit(cell, user_in_flight=1, in_flight=1)
    await of_users(cell, "x1", "x2", "y1", "y2", "z1")
    assert (await cell.queue(), await line(cell), await waiting(cell)) == (["x1"], ["y1", "z1"], ["x2", "y2"])


async def test_a_turn_that_leaves_the_line_of_its_user_joins_the_current_round(cell):
    await limit(cell, user_in_flight=1, in_flight=1)
    await of_users(cell, "x1", "x2", "x3", "y1", "z1")
    order = []
    for _ in range(5):
        turn = await cell.take_one()
        order.append(turn.turn_id)
        await cell.end(turn)
    assert order == ["x1", "y1", "z1", "x2", "x3"]


async def test_priorities_order_the_line_of_a_user(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    await of_users(cell, "x3", priority="high")
    await of_users(cell, "x4", priority="low")
    assert await waiting(cell) == ["x3", "x2", "x4"]


async def test_users_of_two_tenants_are_two_users(cell):
    await set_tenant_limits([cell], "", TenantLimits(user_in_flight=1, user_turns=2))
    await of_users(cell, "x1", "x2")
    await of_users(cell, "x3", "x4", tenant="b")
    assert (await places(cell), sorted(await waiting(cell))) == (["x1", "x3"], ["x2", "x4"])


async def test_names_with_spaces_are_two_users(cell):
    await set_tenant_limits([cell], "", TenantLimits(user_in_flight=1, user_turns=1, user_per_minute=1))
    await cell.put("t1", "s1", tenant="acme east", user="ann")
    await cell.put("t2", "s2", tenant="acme", user="east ann")
    assert await places(cell) == ["t1", "t2"]


async def test_turns_without_a_tenant_or_a_user_have_no_such_limit(cell):
    await set_tenant_limits([cell], "", TenantLimits(user_in_flight=1))
    await of_users(cell, "x1", "x2", tenant="")
    await of_users(cell, "n1", "n2", user="")
    assert await places(cell) + await waiting(cell) == []
    assert await claimed(cell) == ["x1", "x2", "n1", "n2"]


async def test_turns_without_a_user_are_counted_for_none(cell):
    await set_tenant_limits([cell], "", TenantLimits(user_per_minute=1))
    await of_users(cell, "n1", "n2", user="")
    assert await cell.redis.keys("ant:user*") == []


@pytest.mark.parametrize("why", ["retrying", "suspended"])
async def test_a_turn_that_is_not_in_flight_gives_its_place_away_and_waits_for_one(why, cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    first = await cell.take_one()
    if why == "retrying":
        await cell.give_back(first, "error", delay_ms=1_000)
    else:
        await cell.hold(first, OpenCall("c", "pay", seconds=1.0))
    assert (await cell.queue(), await places(cell)) == (["x2"], ["x2"])
    await cell.reap_after(31_000)
    assert (await waiting(cell), await cell.status("x1")) == (["x1"], "waiting")
    await cell.end(await cell.take_one())
    assert await claimed(cell) == ["x1"]


async def test_a_turn_that_goes_on_keeps_its_place(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    await cell.give_back(await cell.take_one(), "drain")
    assert (await cell.queue(), await places(cell), await waiting(cell)) == (["x1"], ["x1"], ["x2"])


async def test_the_turn_of_a_dead_worker_keeps_its_place(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    await cell.take_one()
    await cell.reap_after(60_000)
    assert (await places(cell), await waiting(cell)) == (["x1"], ["x2"])
    assert await claimed(cell) == ["x1"]


@pytest.mark.parametrize("which", ["x1", "x2"])
async def test_a_cancelled_turn_leaves_its_place_or_its_line(which, cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2", "x3")
    await cell.cancel(TurnId(which), "")
    left = [turn for turn in ("x1", "x2", "x3") if turn != which]
    assert (await places(cell), await waiting(cell), await cell.queue()) == (left[:1], left[1:], left[:1])


async def test_a_turn_that_rqs_tools_have_cancelled_in_the_line_of_its_user_ends(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2", "x3")
    await cell.redis.hset("rq:job:x2", "status", "canceled")
    await cell.end(await cell.take_one())
    await cell.reap_after(1)
    assert await cell.status("x2") == "cancelled"
    assert await claimed(cell) == ["x3"]


async def test_a_failed_turn_that_runs_again_waits_for_a_place(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1")
    await cell.end(await cell.take_one(), "failed")
    await of_users(cell, "x2")
    await cell.requeue(TurnId("x1"))
    assert (await places(cell), await waiting(cell)) == (["x2"], ["x1"])
    await cell.end(await cell.take_one())
    assert await claimed(cell) == ["x1"]


@pytest.mark.parametrize("most", [3, None])
async def test_a_limit_that_is_raised_or_removed_lets_turns_in_within_the_reapers_look(most, cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2", "x3", "x4")
    assert await claimed(cell, lease_ms=60_000) == ["x1"]
    await limit(cell, **({"user_in_flight": most} if most else {}))
    acts = await cell.reap_after(31_000)
    assert acts == [], "that repairs nothing"
    assert await claimed(cell) == ["x2", "x3", *([] if most else ["x4"])]
    assert await waiting(cell) == (["x4"] if most else [])


async def test_turns_that_were_accepted_before_the_limit_have_no_places(cell):
    await of_users(cell, "x1", "x2", "x3")
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x4", "x5")
    assert (await places(cell), await waiting(cell)) == (["x4"], ["x5"])
    for turn in (await cell.take()).turns:
        await cell.end(turn)
    assert await claimed(cell) == ["x5"]


async def test_a_place_whose_turn_has_ended_uncounted_is_free_after_the_reapers_look(cell):
    """A worker of 0.2.0 ends turns without knowing of places."""
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    (key,) = await keys_of(cell, "places")
    await cell.end(await cell.take_one())
    await cell.end(await cell.take_one())
    await cell.redis.sadd(key, "x1", "gone")
    await of_users(cell, "x3")
    assert await waiting(cell) == ["x3"]
    await cell.reap_after(31_000)
    assert (await places(cell), await cell.queue()) == (["x3"], ["x3"])


async def test_the_turns_of_several_queues_share_the_places_of_their_user(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", queue="other")
    await of_users(cell, "x2", "x3")
    await of_users(cell, "x4", queue="other")
    assert (await cell.queue("other"), await cell.queue()) == (["x1"], [])
    await cell.end(await cell.take_one(queues=["other"]))
    assert (await cell.queue("other"), await cell.queue()) == ([], ["x2"])


async def test_the_turns_of_one_session_keep_their_order(cell):
    await limit(cell, user_in_flight=1)
    await cell.put("x1", "s", tenant="a", user="x")
    await cell.put("x2", "s", tenant="a", user="x")
    await of_users(cell, "x3")
    await cell.end(await cell.take_one())
    assert (await places(cell), await waiting(cell)) == (["x3"], ["x2"]), "it came after x3 to the line"
    await cell.end(await cell.take_one())
    assert await claimed(cell) == ["x2"]


@pytest.mark.parametrize("kind", ["places", "line"])
async def test_damaged_keys_of_a_user_keep_no_turn_from_its_end(kind, cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    turn = await cell.take_one()
    (key,) = await keys_of(cell, kind)
    await cell.redis.delete(key)
    await cell.redis.set(key, "junk")
    assert await cell.end(turn)
    await cell.redis.delete(key)
    await cell.reap_after(31_000)
    assert await claimed(cell) == ["x2"]


async def test_at_full_memory_turns_end_and_the_line_of_their_user_moves_on(cell):
    await limit(cell, user_in_flight=1)
    await of_users(cell, "x1", "x2")
    turn = await cell.take_one()
    await cell.redis.config_set("maxmemory", 1)
    try:
        assert await cell.end(turn)
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert await claimed(cell) == ["x2"]


async def test_all_keys_of_users_expire_and_name_nobody(cell):
    await limit(cell, user_in_flight=1, user_turns=5)
    await of_users(cell, "x1", "x2")
    found = await keys_of(cell, "places") + await keys_of(cell, "line") + await keys_of(cell, "turns")
    assert len(found) == 3
    for key in found:
        assert 0 < await cell.redis.pttl(key) <= 31 * 86_400_000
        assert len(key.rsplit(b":", 1)[1]) == 40


async def test_the_limit_holds_while_many_workers_race(cell):
    await limit(cell, user_in_flight=2)
    names = [f"{user}{number}" for number in range(12) for user in "xyz"]
    await asyncio.gather(*(cell.put(name, f"of-{name}", tenant="a", user=name[0]) for name in names))
    running: dict[str, int] = dict.fromkeys("xyz", 0)
    ended: list[str] = []

    async def work(worker: str) -> None:
        while len(ended) < len(names):
            for turn in (await cell.take(worker, limit=1)).turns:
                user = turn.turn_id[0]
                running[user] += 1
                assert running[user] <= 2, "a third turn of the user runs"
                await asyncio.sleep(0)
                running[user] -= 1
                await cell.end(turn)
                ended.append(turn.turn_id)
            await asyncio.sleep(0)

    async with asyncio.timeout(patience(30)):
        await asyncio.gather(*(work(f"w{number}") for number in range(8)))
    assert sorted(ended) == sorted(names)
    assert await keys_of(cell, "places") + await keys_of(cell, "line") == []


async def test_a_user_at_the_limit_of_turns_is_refused_also_where_they_wait(cell):
    await limit(cell, user_in_flight=1, user_turns=2)
    await of_users(cell, "x1", "x2")
    with pytest.raises(TenantLimit) as refused:
        await of_users(cell, "x3")
    assert refused.value.limit == "user_turns"
    await of_users(cell, "y1")


async def bytes_of_turns(cell: TestCell, users: int) -> int:
    """What 100 turns of so many users take, in sessions of their own."""
    before = {*await cell.redis.keys("*")}
    for number in range(100):
        await cell.put(
            f"{users}-{number}", f"of-{users}-{number}", tenant="a", user=f"user-{number % users:03}"
        )
    added = [key for key in await cell.redis.keys("*") if key not in before]
    return sum([await cell.redis.memory_usage(key) for key in added])


async def test_new_users_without_end_take_little_of_the_memory_of_their_turns(cell):
    """Who submits each turn under another name fills Redis hardly faster than with turns of one name."""
    await limit(cell, user_in_flight=100, user_turns=200, user_per_minute=200)
    one, many = await bytes_of_turns(cell, 1), await bytes_of_turns(cell, 100)
    assert many < 1.15 * one
