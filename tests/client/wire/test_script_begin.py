"""`begin`: the holder of a turn notes the revision on which it runs, once, and publishes what has changed."""

from support.cells import body, stranger

from antiphon.wire.revisions import begin


async def test_the_revision_and_the_pins_are_kept_and_the_change_is_published_once(cell):
    turn = await cell.started("t1")
    for _ in range(2):  # the answer was lost
        assert await begin(cell, turn, "r2", pins={"support": "r2"}, bodies=[body("agent_changed")])
    assert (await cell.event_types())[2:] == ["agent_changed"]
    assert await cell.redis.hget("ant:turn:t1", "revision") == b"r2"
    assert await cell.redis.hget("ant:session:s", "pins") == b'{"support":"r2"}'


async def test_pins_that_are_not_given_stay(cell):
    turn = await cell.started("t1")
    await cell.redis.hset("ant:session:s", "pins", '{"support":"r1"}')
    assert await begin(cell, turn, "r2")
    assert await cell.redis.hget("ant:session:s", "pins") == b'{"support":"r1"}'
    assert len(await cell.events()) == 2


async def test_under_another_fence_nothing_is_written(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    assert not await begin(
        cell, stranger(turn, "0-other"), "r2", pins={"support": "r2"}, bodies=[body("agent_changed")]
    )
    assert await cell.contents() == before
