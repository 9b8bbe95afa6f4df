"""`route`: the holder of a turn notes what was chosen for it, once, and the turn changes its queue."""

import pytest
from support.cells import LEASE_MS, body, stranger

from antiphon.redis.deployment import TenantLimits, set_tenant_limits
from antiphon.routing import Route
from antiphon.wire.errors import CancelledFirst
from antiphon.wire.revisions import last_route, route_of, write_route

ROUTE, ENTRY = Route("billing", reason="An invoice."), b'{"type":"routed","agent":"billing"}'


async def test_the_choice_is_noted_with_its_event_once(cell):
    turn = await cell.started("t1")
    for _ in range(2):  # the answer was lost
        assert await write_route(cell, turn, ROUTE, entry=ENTRY, bodies=[body("agent_changed")])
    assert (await cell.event_types())[2:] == ["agent_changed"]
    assert await cell.redis.lrange("ant:journal:t1", 0, -1) == [ENTRY]
    assert await last_route(cell, "s") == ROUTE == route_of(await cell.turn("t1"))


async def test_the_turn_is_registered_under_its_new_queue(cell):
    turn = await cell.started("t1")
    assert await write_route(cell, turn, Route(queue="slow"), entry=ENTRY)
    assert await cell.redis.hget("ant:turn:t1", "queue") == b"slow"
    for queue, number in (("default", 0), ("slow", 1)):
        assert await cell.redis.zcard(f"rq:wip:{queue}") == number
    assert await cell.give_back(turn, "drain")
    assert await cell.redis.lrange("rq:queue:slow", 0, -1) == [b"t1"]
    assert await cell.redis.hget("rq:job:t1", "origin") == b"slow"


async def test_a_turn_that_was_cancelled_in_rq_is_told_to_stop_when_it_moves(cell):
    turn = await cell.started("t1")
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert await write_route(cell, turn, Route(queue="slow"), entry=ENTRY)
    with pytest.raises(CancelledFirst, match="cancelled in RQ"):
        await cell.give_back(turn, "drain")
    await cell.end(turn, "cancelled")


async def test_under_another_fence_nothing_is_written(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    assert not await write_route(
        cell, stranger(turn, "0-other"), Route(queue="slow"), entry=ENTRY, bodies=[body("agent_changed")]
    )
    assert await cell.contents() == before


async def move(cell):
    """Claim all turns, move them to the queue ``slow``, and give them back. Returns them in this order."""
    turns = (await cell.take()).turns
    for turn in turns:
        assert await write_route(cell, turn, Route(queue="slow"), entry=ENTRY)
        assert await cell.give_back(turn, "drain", code="routed")
    return [turn.turn_id for turn in turns]


async def line(cell, share):
    return [turn.decode() for turn in await cell.redis.zrange(cell.keys.line("slow", share), 0, -1)]


async def test_turns_that_move_keep_their_order_behind_those_of_the_other_queue(cell):
    await cell.put("t0", "zero", queue="slow")
    for name in ("t1", "t2", "t3"):
        await cell.put(name, f"of-{name}")
    await move(cell)
    assert await cell.queue("slow") == ["t0", "t1", "t2", "t3"]
    assert [turn.attempt for turn in (await cell.take(queues=["slow"])).turns] == [1, 1, 1, 1]


@pytest.mark.parametrize("share", [{"tenant": "a"}, {"priority": "low"}], ids=["tenant", "priority"])
async def test_turns_that_move_stand_in_line_for_the_place_of_their_share(cell, share):
    for name in ("a1", "a2", "a3"):
        await cell.put(name, f"of-{name}", **share)
    await cell.put("b1", "of-b1", tenant="b")
    assert sorted(await move(cell)) == ["a1", "a2", "a3", "b1"]
    whose = f"@{share['tenant']}" if "tenant" in share else "low"
    assert (await cell.queue("slow"), await line(cell, whose)) == (["a1", "b1"], ["a2", "a3"])
    assert await cell.redis.hget("rq:job:a2", "status") == b"deferred"
    order = []
    while (taken := await cell.take(limit=1, queues=["slow"])).turns:
        order.append(taken.turns[0].turn_id)
        await cell.end(taken.turns[0])
    assert order == ["a1", "b1", "a2", "a3"]


async def test_users_of_a_tenant_take_turns_in_the_other_queue(cell):
    for name in ("x1", "x2", "x3", "y1"):
        await cell.put(name, f"of-{name}", tenant="a", user=name[0])
    assert await move(cell) == ["x1", "x2", "y1", "x3"]
    assert (await cell.queue("slow"), (await line(cell, "@a"))[-1]) == (["x1"], "x3")


@pytest.mark.parametrize("limits", [{"in_flight": 1}, {"user_in_flight": 1}], ids=["tenant", "user"])
async def test_a_turn_that_moves_takes_no_room_from_itself(cell, limits):
    await set_tenant_limits([cell], "a", TenantLimits(**limits))
    await cell.put("x1", "of-x1", tenant="a", user="x")
    await move(cell)
    assert await cell.queue("slow") == ["x1"]


async def test_a_turn_whose_worker_dies_before_it_gives_it_back_does_not_go_to_the_front_either(cell):
    await cell.put("t0", "zero", queue="slow")
    turn = await cell.started("t1", "one")
    assert await write_route(cell, turn, Route(queue="slow"), entry=ENTRY)
    await cell.reap_after(LEASE_MS + 1)
    assert await cell.queue("slow") == ["t0", "t1"]
    assert (await cell.take(queues=["slow"])).turns[-1].turn_id == "t1"
    assert await cell.reap() == []


async def test_a_turn_that_moves_leaves_the_place_of_its_share_in_its_former_queue_to_others(cell):
    await set_tenant_limits([cell], "a", TenantLimits(in_flight=2))
    for name in ("a1", "a2", "a3"):
        await cell.put(name, f"of-{name}", tenant="a")
        await cell.wait(1)
    first, second = (await cell.take()).turns
    await set_tenant_limits([cell], "a", TenantLimits(in_flight=1))  # no other turn takes the place at once
    assert await write_route(cell, second, Route(queue="slow"), entry=ENTRY)
    assert await cell.give_back(second, "drain", code="routed")
    await set_tenant_limits([cell], "a", TenantLimits(in_flight=3))
    await cell.end(first)
    assert (await cell.queue("slow"), await cell.queue()) == (["a2"], ["a3"])


async def test_a_turn_that_was_cancelled_in_rq_after_it_moved_does_not_enter_its_new_queue(cell):
    turn = await cell.started("t1")
    assert await write_route(cell, turn, Route(queue="slow"), entry=ENTRY)
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    assert await cell.give_back(turn, "drain", code="routed")
    assert await cell.queue("slow") == []
    assert [done.what for done in await cell.reap()] == ["repaired"]
    again = await cell.take_one(queues=["slow"])
    assert again.stop == "cancelled in RQ", "it has a journal, so a worker ends it"
    await cell.end(again, "cancelled")
