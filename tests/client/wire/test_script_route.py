"""`route`: the holder of a turn notes what was chosen for it, once, and the turn changes its queue."""

from support.cells import body, stranger

from antiphon.routing import Route
from antiphon.wire.routes import last_route, route_of, write_route

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


async def test_under_another_fence_nothing_is_written(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    assert not await write_route(
        cell, stranger(turn, "0-other"), Route(queue="slow"), entry=ENTRY, bodies=[body("agent_changed")]
    )
    assert await cell.contents() == before
